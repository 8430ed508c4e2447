"""The rules of choosing that an operator may set."""

from enum import StrEnum
from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class Way(StrEnum):
    """How one is chosen among those that may be (see `selection`)."""

    __hash__ = str.__hash__  # Enum's own is written in Python.

    WEIGHTED = "weighted"
    HIGHEST = "highest"
    TWO_CHOICES = "two_choices"
    LEAST_IN_FLIGHT = "least_in_flight"
    ROUND_ROBIN = "round_robin"
    LEAST_WAIT = "least_wait"


class Policy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[choose]` in the configuration."""

    way: Annotated[
        Way,
        Meta(
            description="How one replica is chosen among those with headroom: `least_wait`, where "
            "its first token is expected soonest, by what has to be computed before it; "
            "`weighted`, at odds of score ^ `exponent`; `highest` score; `two_choices`, the one "
            "of two with fewer requests from this router; `least_in_flight`; `round_robin`."
        ),
    ] = Way.LEAST_WAIT
    temperature: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1000.0,
            description="Of `least_wait`: a difference in waiting that is about none, in steps of "
            "the engine. Higher spreads requests over more replicas; 0 always takes the least.",
        ),
    ] = 1.0
    floor: Annotated[
        float,
        Meta(
            ge=0.0,
            lt=1.0,
            description="Capacity score, 0..1, that a replica must exceed to be given a request. "
            "Higher refuses earlier.",
        ),
    ] = 0.15
    full_beyond_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=3600.0,
            description="By `least_wait`: how long, in seconds, the queue of a replica may be "
            "whose score is not above `floor` because of it, while it has KV blocks and sequences "
            "free; beyond, it is full. Higher refuses later, and lets wait longer. 0: `floor` "
            "alone decides.",
        ),
    ] = 10.0
    exponent: Annotated[
        Annotated[float, Meta(ge=0.0, le=16.0)] | Literal["auto"],
        Meta(
            description="By `weighted`: a replica's weight is its score to this power. Higher "
            "favours the emptiest replica more, until all requests of one poll interval go there. "
            '`"auto"`: 2 for up to 8 replicas, then 1 + √(8 / replicas).',
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
    forget_after_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=86_400.0,
            description="Silence of a sidecar, in seconds, after which its replicas are left out, "
            "unless all are silent as long. Must be more than `stale_after_s`.",
        ),
    ] = 60.0


class AffinityPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[affinity]` in the configuration."""

    enabled: Annotated[
        bool,
        Meta(
            description="Whether requests that begin alike, or carry the same key, go to the same "
            "replica, whose KV cache knows what they have in common."
        ),
    ] = True
    session_header: Annotated[
        str,
        Meta(
            pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]*$",
            description="Request header that names a session, whose requests belong together. "
            "Empty: none does.",
        ),
    ] = "x-session-id"
    stay_above: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1.0,
            description="Not by `least_wait`: score, 0..1, above which a key's replica keeps its "
            "requests. Between `choose.floor` and this it keeps the share `stay_chance` of them.",
        ),
    ] = 0.3
    stay_chance: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1.0,
            description="Not by `least_wait`: the share of a key's requests that its replica keeps "
            "while its score is between `choose.floor` and `stay_above`. Higher hits "
            "the cache more, and waits more.",
        ),
    ] = 0.7
    dwell_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=86_400.0,
            description="Not by `least_wait`: how long, in seconds, a key that has moved stays "
            "where it is, unless its replica is gone. Lower follows the load, and the cache "
            "hits less.",
        ),
    ] = 30.0
    hot_per_s: Annotated[
        float,
        Meta(
            gt=0.0,
            description="Not by `least_wait`: requests a second of one key, over the whole "
            "cluster, above which one replica is too few for it: it gets one for each "
            "`hot_per_s`. Half of what one replica serves is a good value.",
        ),
    ] = 50.0
    routers: Annotated[
        int,
        Meta(
            ge=1,
            le=1024,
            description="How many routers share the cluster's requests: each counts its part of a "
            "key's rate. (Its own `workers` it knows.)",
        ),
    ] = 1
    max_keys: Annotated[
        int,
        Meta(
            ge=1,
            description="Most keys that one worker remembers; beyond that, those unused for "
            "longest are forgotten. Each takes about 0.3 KB.",
        ),
    ] = 200_000


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
