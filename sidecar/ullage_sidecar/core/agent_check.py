"""What HAProxy's agent-check is told: one line of ASCII for one engine, or for a server's ranks.

    state                           capacity    answer
    serving, ramping                c           up NN%, NN = 100·c rounded, at least 1
                                    0           up 0%
                                    unknown     up 50%
    starting, warming, draining     0           up 0%
    down, hung                      0           down
    (nobody of that name)                       up 50%

Behind a `#` stands why, where there is a reason. Several ranks: the mean of their capacities;
`down` only if all of them are.

Why so, as seen on HAProxy 2.6 (its configuration manual, "agent-check"):

* `NN%` is a share of the server's configured weight (1..256): with `weight 100`, NN is the weight;
  with the default of 1 everything below 100 % would be 0. At `0%` a server gets no new request, and
  those it has go on.
* What an answer leaves out stays as it was, so each answer says it all: behind `down` only `up`
  brings a server back, and an unknown capacity without a weight would keep a stale one for ever.
  Unknown is neither idle nor full: half.
* Never `ready`, `drain`, `maint`: they set the administrative state, which is the operator's of
  HAProxy. `drain` does no more than `0%`, but only `ready` would end it, and `ready` ends an
  operator's own `set server … state maint` as well, at the next check.
* A name that nobody has says nothing of the server behind it. HAProxy's own health check does.
"""

from collections.abc import Sequence
from typing import Final

from ullage_shared.snapshot import Snapshot, State
from ullage_sidecar.core.named import servers

UNKNOWN: Final = 0.5
"""The capacity that an unknown one is taken for."""
MAX_REASON: Final = 100
"""Characters. HAProxy shows little more of an answer."""


def answer(meant: Sequence[Snapshot]) -> str:
    """The line for these replicas, at least one, with its newline."""
    if all(replica.state in (State.DOWN, State.HUNG) for replica in meant):
        return _line("down", _reason(meant))
    capacities = [
        UNKNOWN if replica.capacity_score is None else replica.capacity_score for replica in meant
    ]
    return _line(f"up {_percent(sum(capacities) / len(meant))}%", _reason(meant))


def nobody(replicas: Sequence[Snapshot], asked: str) -> str:
    """The line for a name that none of the node's replicas has."""
    missing = f"no engine {asked}" if asked else "no engine named"
    wanted = ", ".join(servers(replicas))
    return _line(f"up {_percent(UNKNOWN)}%", f"{missing}; wanted one of: {wanted}")


def _percent(capacity: float) -> int:
    return max(1, round(100.0 * capacity)) if capacity > 0.0 else 0


def _reason(meant: Sequence[Snapshot]) -> str:
    for replica in meant:
        if replica.state is not State.SERVING:
            return f"{replica.state}: {replica.reason}"
        if replica.reason:
            return replica.reason
    return ""


def _line(words: str, reason: str) -> str:
    plain = "".join(char if " " <= char <= "~" else "?" for char in reason[:MAX_REASON])
    return f"{words} #{plain}\n" if plain else f"{words}\n"
