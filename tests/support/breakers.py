"""Breakers in each condition, and events by short names."""

from collections.abc import Mapping
from math import inf, nextafter

from ullage_router.core.breaker import (
    CLOSED,
    Breaker,
    BreakerPolicy,
    Condition,
    Event,
    after,
)

FAILED, ERRED, FULL, ANSWERED = Event.FAILED, Event.ERRED, Event.FULL, Event.ANSWERED
PROBE_ANSWERED, PROBE_FAILED = Event.PROBE_ANSWERED, Event.PROBE_FAILED
POLICY = BreakerPolicy()


def went(*events: tuple[Event, float], policy: BreakerPolicy = POLICY) -> Breaker:
    """A healthy replica, after these events at these moments."""
    breaker = CLOSED
    for event, now_s in events:
        breaker = after(breaker, event, now_s, policy)
    return breaker


def before(now_s: float) -> float:
    """The moment just before."""
    return nextafter(now_s, -inf)


def ejected_at(now_s: float, policy: BreakerPolicy = POLICY) -> Breaker:
    return went(*[(FAILED, now_s)] * policy.eject_after, policy=policy)


def returning_at(now_s: float) -> Breaker:
    return after(ejected_at(now_s - 5.0), PROBE_ANSWERED, now_s, POLICY)


IN_EACH: Mapping[Condition, Breaker] = {
    Condition.CLOSED: CLOSED,
    Condition.STRUCK: went((FAILED, 100.0)),
    Condition.EJECTED: ejected_at(100.0),
    Condition.RETURNING: returning_at(100.0),
}
"""One breaker in each condition, as of 100 s."""
