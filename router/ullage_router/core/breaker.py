"""Who is left out because it fails, for how long, and how it comes back: a breaker per replica.

A replica that fails at once looks empty, and would draw every request. So:

    no answer, or no room (503)     struck: out for `set_aside_s`
    `eject_after` failures in a     ejected: out for eject_s · 2^(ejections in a row − 1), 60 s at
                                    most, and after that until a probe has been answered
    a probe is answered             returning, over `return_s`, with a growing share of its weight
    no answer while it returns      ejected again at once, for twice as long; so does a row of 500s
    a whole return without one      closed: nothing is held against it

    share(t) = 0.1 + 0.9 · t / return_s     of its weight, t seconds after the probe

Linear, so that what is risked grows no faster than what is known; the tenth is the least that
Envoy's slow start gives, so that there is something to judge by. It goes onto the weight, after
any exponent: a tenth means a tenth of its requests.

* Only what is the replica's own fault counts. No room never does: it neither begins a run of
  failures, nor ends one, nor ejects, nor makes a return longer than the moment it costs.
* Never more than `max_ejected_share` of the fleet is left out: what fails as a whole is not
  switched off. Those that last gave a bad sign longest ago are let in again, and change places with
  another once they fail again.
* Time alone lets no ejected replica in. A server that is gone costs one probe every `eject_s`.
* What holds, holds from `since_s` on: a clock set back ends it, and keeps nobody out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from math import floor, inf
from typing import Annotated, Final

import msgspec
from msgspec import Meta

LONGEST_S: Final = 60.0
"""No ejection lasts longer before a probe is due."""
LEAST_SHARE: Final = 0.1
"""Of its weight, with which a replica returns."""
STEP_S: Final = 0.25
"""A growing share may be looked at this seldom."""


class BreakerPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[breaker]` in the configuration."""

    set_aside_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=LONGEST_S,
            description="How long, in seconds, a replica that failed once, or had no room "
            "(503), is left out, unless that would leave nobody. "
            "Higher returns later to one that is back.",
        ),
    ] = 1.0
    eject_after: Annotated[
        int,
        Meta(
            ge=1,
            description="Failures in a row (no connection, an answer cut off, a 5xx of its own) "
            "that eject a replica. Higher loses more requests to one that fails.",
        ),
    ] = 3
    eject_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=LONGEST_S,
            description="How long, in seconds, a replica is ejected before it is probed, and how "
            "long between probes that fail. Doubles with each further ejection in a row, up to "
            "60. Higher returns later to one that is back.",
        ),
    ] = 5.0
    return_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=3600.0,
            description="How long, in seconds, a replica that answered a probe takes to get its "
            "whole share again, from a tenth on. Higher risks fewer requests, and uses it later.",
        ),
    ] = 10.0
    max_ejected_share: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1.0,
            description="Most of the fleet, 0..1, that is ejected at a time, rounded down to whole "
            "replicas. Higher loads the rest more when many fail. 0: nobody is.",
        ),
    ] = 0.5


class Condition(StrEnum):
    """How a replica stands, by how it has answered."""

    CLOSED = "closed"
    """Well."""
    STRUCK = "struck"
    """Out for a moment."""
    EJECTED = "ejected"
    """Out until a probe has been answered."""
    RETURNING = "returning"
    """In again, gradually."""


class Event(StrEnum):
    """What a replica did."""

    FAILED = "failed"
    """No connection, or a reset before or within the answer."""
    ERRED = "erred"
    """A whole answer with a 5xx of its own: one may be the request's fault, a row of them is not.
    """
    FULL = "full"
    """It had no room: its 503."""
    ANSWERED = "answered"
    """Any other whole answer."""
    PROBE_ANSWERED = "probe_answered"
    PROBE_FAILED = "probe_failed"


@dataclass(frozen=True, slots=True)
class Breaker:
    """What is held against one replica. Times are on the router's monotonic clock."""

    condition: Condition = Condition.CLOSED
    failures: int = 0
    """In a row."""
    ejections: int = 0
    """In a row: with no whole return between."""
    since_s: float = 0.0
    """When the condition began; EJECTED, its latest bad sign; RETURNING, its latest 503 too."""
    until_s: float = 0.0
    """Out until then; EJECTED, not to be probed until then."""
    whole_s: float = 0.0
    """RETURNING: when its share is whole."""


CLOSED: Final = Breaker()
"""Nothing is held against it. All healthy replicas share this value."""


def after(breaker: Breaker, event: Event, now_s: float, policy: BreakerPolicy) -> Breaker:
    """What is held against a replica once it has done that. Total.

    Where nothing changes the very same value comes back.
    """
    if breaker is CLOSED and event is Event.ANSWERED:  # Nearly every call.
        return breaker
    breaker = settled(breaker, now_s)
    return TABLE[breaker.condition, event](breaker, now_s, policy)


def settled(breaker: Breaker, now_s: float) -> Breaker:
    """What time alone has made of it."""
    match breaker.condition:
        case Condition.STRUCK if not struck(breaker, now_s):
            return Breaker(failures=breaker.failures) if breaker.failures else CLOSED
        case Condition.RETURNING if not breaker.since_s <= now_s < breaker.whole_s:
            return CLOSED
        case _:
            return breaker


def struck(breaker: Breaker, now_s: float) -> bool:
    """Out for a moment, not ejected: the caller lets it in where nobody else is left."""
    return breaker.since_s <= now_s < breaker.until_s and breaker.condition is not Condition.EJECTED


def out(breaker: Breaker, now_s: float) -> bool:
    """Struck or ejected. Of the ejected, some may have to be let in: see `ejected`."""
    return breaker.condition is Condition.EJECTED or struck(breaker, now_s)


def probe_due(breaker: Breaker, now_s: float) -> bool:
    """Ejected, and it is time to ask whether it is back."""
    if breaker.condition is not Condition.EJECTED:
        return False
    return not breaker.since_s <= now_s < breaker.until_s


def weight_share(breaker: Breaker, now_s: float, policy: BreakerPolicy) -> float:
    """Which part of its weight a replica gets, 0.1..1, if it may be chosen at all.

    An ejected one has the least: it may have to be let in.
    """
    if breaker.condition is Condition.EJECTED:
        return LEAST_SHARE
    if settled(breaker, now_s).condition is not Condition.RETURNING:
        return 1.0
    lacking = (1.0 - LEAST_SHARE) * (breaker.whole_s - now_s) / policy.return_s
    return max(LEAST_SHARE, 1.0 - lacking)


def changes_s(breaker: Breaker, now_s: float) -> float:
    """When time alone next changes `out`, the condition, or the share by a step. inf: never."""
    if breaker.condition is Condition.CLOSED:
        return inf
    if now_s < breaker.since_s:  # The clock was set back: it will be then once more.
        return breaker.since_s
    if breaker.condition is Condition.EJECTED:
        return inf
    if now_s < breaker.until_s:
        return breaker.until_s
    return min(breaker.whole_s, now_s + STEP_S) if now_s < breaker.whole_s else inf


def ejected(breakers: Mapping[str, Breaker], now_s: float, policy: BreakerPolicy) -> frozenset[str]:
    """The keys to leave out, given the breakers of the whole fleet: at most the share of it.

    The struck are not among them, nor do they count: the share is for those who fail for longer,
    and where the struck are all who are left, the caller lets them in before it lets in these.
    """
    bad = [key for key, breaker in breakers.items() if breaker.condition is Condition.EJECTED]
    most = floor(policy.max_ejected_share * len(breakers) + 1e-9)  # 0.29 · 100 is 29.
    if len(bad) <= most:
        return frozenset(bad)

    def latest_s(key: str) -> float:
        since_s = breakers[key].since_s
        return since_s if since_s <= now_s else -inf  # Before the clock was set back.

    return frozenset(sorted(bad, key=latest_s, reverse=True)[:most])


def own_failure(status: int) -> bool:
    """Is an answer with this status the replica's own failure?

    Not 501 and 505, which are about the request; not 503, which says that it has no room.
    """
    return 500 <= status < 600 and status not in (501, 503, 505)


# The rows

Rule = Callable[[Breaker, float, BreakerPolicy], Breaker]


def _keep(breaker: Breaker, _now_s: float, _policy: BreakerPolicy) -> Breaker:
    return breaker


def _clear(_breaker: Breaker, _now_s: float, _policy: BreakerPolicy) -> Breaker:
    return CLOSED


def _end_run(breaker: Breaker, _now_s: float, _policy: BreakerPolicy) -> Breaker:
    """Well again, but its moment stands: what ends now was sent before."""
    return replace(breaker, failures=0) if breaker.failures else breaker


def _strike(breaker: Breaker, now_s: float, policy: BreakerPolicy) -> Breaker:
    until_s = now_s + policy.set_aside_s
    return Breaker(Condition.STRUCK, breaker.failures, since_s=now_s, until_s=until_s)


def _strike_again(breaker: Breaker, now_s: float, policy: BreakerPolicy) -> Breaker:
    """The moment begins again; but not for each of hundreds that come back at once."""
    if now_s - breaker.since_s < policy.set_aside_s / 4:
        return breaker
    return _strike(breaker, now_s, policy)


def _count(breaker: Breaker, now_s: float, policy: BreakerPolicy) -> Breaker:
    if breaker.failures + 1 >= policy.eject_after:
        return _eject(breaker, now_s, policy)
    return _strike(replace(breaker, failures=breaker.failures + 1), now_s, policy)


def _note(breaker: Breaker, now_s: float, policy: BreakerPolicy) -> Breaker:
    """As a failure, but nothing was lost: no moment out."""
    if breaker.failures + 1 >= policy.eject_after:
        return _eject(breaker, now_s, policy)
    return replace(breaker, failures=breaker.failures + 1)


def _eject(breaker: Breaker, now_s: float, policy: BreakerPolicy) -> Breaker:
    doubled = 2.0 ** min(breaker.ejections, 64)
    return Breaker(
        Condition.EJECTED,
        breaker.failures + 1,
        breaker.ejections + 1,
        since_s=now_s,
        until_s=now_s + min(policy.eject_s * doubled, LONGEST_S),
    )


def _still_fails(breaker: Breaker, now_s: float, _policy: BreakerPolicy) -> Breaker:
    """What it had in flight, or was given because too many are ejected: no ejection of its own."""
    since_s = max(breaker.since_s, now_s)  # Never earlier: it would hold for longer.
    return replace(breaker, failures=breaker.failures + 1, since_s=since_s)


def _still_gone(breaker: Breaker, now_s: float, policy: BreakerPolicy) -> Breaker:
    """Not twice as long: a server may take minutes to start, and is wanted once it has."""
    return replace(breaker, since_s=now_s, until_s=now_s + policy.eject_s)


def _return(breaker: Breaker, now_s: float, policy: BreakerPolicy) -> Breaker:
    return Breaker(
        Condition.RETURNING,
        ejections=breaker.ejections,
        since_s=now_s,
        until_s=now_s,
        whole_s=now_s + policy.return_s,
    )


def _pause(breaker: Breaker, now_s: float, policy: BreakerPolicy) -> Breaker:
    until_s = now_s + policy.set_aside_s
    whole_s = max(breaker.whole_s, until_s)
    return replace(breaker, since_s=now_s, until_s=until_s, whole_s=whole_s)


TABLE: Final[Mapping[tuple[Condition, Event], Rule]] = {
    (Condition.CLOSED, Event.FAILED): _count,
    (Condition.CLOSED, Event.ERRED): _note,
    (Condition.CLOSED, Event.FULL): _strike,
    (Condition.CLOSED, Event.ANSWERED): _clear,
    (Condition.CLOSED, Event.PROBE_ANSWERED): _keep,
    (Condition.CLOSED, Event.PROBE_FAILED): _keep,
    (Condition.STRUCK, Event.FAILED): _count,
    (Condition.STRUCK, Event.ERRED): _note,
    (Condition.STRUCK, Event.FULL): _strike_again,
    (Condition.STRUCK, Event.ANSWERED): _end_run,
    (Condition.STRUCK, Event.PROBE_ANSWERED): _keep,
    (Condition.STRUCK, Event.PROBE_FAILED): _keep,
    (Condition.EJECTED, Event.FAILED): _still_fails,
    (Condition.EJECTED, Event.ERRED): _still_fails,
    (Condition.EJECTED, Event.FULL): _keep,
    (Condition.EJECTED, Event.ANSWERED): _keep,  # It may have been asked before.
    (Condition.EJECTED, Event.PROBE_ANSWERED): _return,
    (Condition.EJECTED, Event.PROBE_FAILED): _still_gone,
    (Condition.RETURNING, Event.FAILED): _eject,
    (Condition.RETURNING, Event.ERRED): _note,
    (Condition.RETURNING, Event.FULL): _pause,
    (Condition.RETURNING, Event.ANSWERED): _end_run,
    (Condition.RETURNING, Event.PROBE_ANSWERED): _keep,
    (Condition.RETURNING, Event.PROBE_FAILED): _keep,
}
"""What each event does in each condition. What a probe says of one not ejected comes too late."""
