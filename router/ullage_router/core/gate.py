"""Is there headroom for those who come? Three states; what each means for an arriving request:

* OPEN      nobody waits: it is decided at once, as on any day
* QUEUEING  some wait, or did a moment ago: it stands behind those of its lane; if none waits, it
            is decided at once, and waits if nobody has headroom
* REFUSING  the same, and some were refused a moment ago: it may be the next

No state refuses by itself. Whoever has nobody of its lane before it is decided by the fleet as it
is now, so that a gate that errs can keep no request from a replica with headroom ("overloaded"
that never clears: dynamo#12138). The way back needs no request either: CALM comes with time.

An overload episode lasts from OPEN until OPEN. Its end takes a moment without anybody waiting, or
an overload at the edge would begin and end with each request.
"""

from collections.abc import Mapping
from enum import Enum, auto
from types import MappingProxyType
from typing import Final

CALM_S: Final = 1.0
"""A moment. Ours: two looks at the sidecars, so that no single picture ends an episode."""


class State(Enum):
    """What the router does for lack of headroom."""

    OPEN = "open"
    QUEUEING = "queueing"
    REFUSING = "refusing"


class Event(Enum):
    """What has happened."""

    WAITS = auto()
    """A request found no headroom, and a place in the queue."""
    REFUSED = auto()
    """A request was refused for lack of headroom: at once, displaced, or after it had waited."""
    QUIET = auto()
    """For `CALM_S` nobody has been refused."""
    CALM = auto()
    """For `CALM_S` nobody has been refused, nor has anybody waited; and there is headroom."""


TABLE: Final[Mapping[tuple[State, Event], State]] = MappingProxyType(
    {
        (State.OPEN, Event.WAITS): State.QUEUEING,
        (State.OPEN, Event.REFUSED): State.REFUSING,
        (State.OPEN, Event.QUIET): State.OPEN,
        (State.OPEN, Event.CALM): State.OPEN,
        (State.QUEUEING, Event.WAITS): State.QUEUEING,
        (State.QUEUEING, Event.REFUSED): State.REFUSING,
        (State.QUEUEING, Event.QUIET): State.QUEUEING,
        (State.QUEUEING, Event.CALM): State.OPEN,
        (State.REFUSING, Event.WAITS): State.REFUSING,
        (State.REFUSING, Event.REFUSED): State.REFUSING,
        (State.REFUSING, Event.QUIET): State.QUEUEING,
        (State.REFUSING, Event.CALM): State.OPEN,
    }
)


def step(state: State, event: Event) -> State:
    """The next state. Total."""
    return TABLE[state, event]
