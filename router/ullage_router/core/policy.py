"""The rules of choosing that an operator may set."""

from typing import Annotated

import msgspec
from msgspec import Meta


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[choose]` in the configuration."""

    floor: Annotated[
        float,
        Meta(
            ge=0.0,
            lt=1.0,
            description="Capacity score, 0..1, that a replica must exceed to be given a request. "
            "Higher refuses earlier.",
        ),
    ] = 0.15
    exponent: Annotated[
        float,
        Meta(
            ge=0.0,
            le=16.0,
            description="A replica's weight is its score to this power. Higher favours the "
            "emptiest replica more, until all requests of one poll interval go there.",
        ),
    ] = 2.0
    stale_after_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=3600.0,
            description="Silence of a sidecar, in seconds, after which its snapshots no longer "
            "vouch: the router goes by its own counts. Higher trusts an old picture for longer.",
        ),
    ] = 3.0
    set_aside_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=3600.0,
            description="How long, in seconds, a replica that gave no answer, or had no room "
            "(503), is left out, unless that would leave nobody. "
            "Higher returns later to one that is back.",
        ),
    ] = 1.0


class RetryPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[retry]` in the configuration. A request goes to two replicas at most, whatever it says."""

    share: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1.0,
            description="Second tries, as a share of the requests of the last 10 s, that may go "
            "to another replica. Higher loses fewer requests with a replica, and loads the others "
            "more when many fail.",
        ),
    ] = 0.1
    spare: Annotated[
        int,
        Meta(
            ge=0,
            description="Second tries that every 10 s may have beside that share, so that a "
            "router with few requests may try again too.",
        ),
    ] = 10
