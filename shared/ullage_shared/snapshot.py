"""The wire between sidecar and router: one JSON document per node, schema 1.

Rules
* No decision compares wall clocks of two hosts: `age_s` is the sender's word, the moment of receipt
  the receiver's. `ts` is for people.
* Within one `boot_id`, `seq` only grows and an older one is dropped. A new `boot_id` is a new
  replica; an unknown one may be any, and what is known of the last one holds.
* Unknown fields are ignored. A missing one, or one out of range, is an error that names it, and
  costs only the replica that it concerns. Only `scores`, the speeds, `stalled` and `parts` may be
  missing: they came after the others, and an older sidecar does not send them.
* `null` is unknown: neither idle nor full.
"""

from enum import StrEnum
from typing import Annotated, Final, TypedDict, assert_never

import msgspec
from msgspec import Meta

SCHEMA: Final = 1
PATH: Final = "/v1/snapshots"
WATCH: Final = "watch"
"""Asks for the document a line at a time, as it changes. Who does not offer that sends it once."""
INTERVAL: Final = "interval_ms"
"""Beside it: a line is wanted this often at least; an empty one where nothing has changed."""
SPACING: Final = "spacing_ms"
"""Beside it: no two lines are wanted within this."""
INTERVAL_HEADER: Final = "Ullage-Interval-Ms"
"""Of an answer to it: how often lines come at least, where that is not as was asked for."""
LINES_TYPE: Final = "application/x-ndjson"
"""The content type that says so."""

Ratio = Annotated[float, Meta(ge=0.0, le=1.0)]
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Seconds = Annotated[float, Meta(ge=0.0, le=1e12)]
Speed = Annotated[float, Meta(ge=1e-9, le=1e12)]
"""Its reciprocal is a number, too, however many tokens it is multiplied with."""
Name = Annotated[str, Meta(min_length=1, max_length=1024)]


class State(StrEnum):
    """Where a replica stands in its life."""

    STARTING = "starting"
    """Not answering yet."""
    WARMING = "warming"
    """Answering, but its score is held at 0."""
    RAMPING = "ramping"
    """Its score is discounted."""
    SERVING = "serving"
    DRAINING = "draining"
    """Finishing what it has; wants nothing new."""
    DOWN = "down"
    """Answered before, does not now."""
    HUNG = "hung"
    """Answers, but its engine has work and makes no step."""


SHORT_UP_TO_TOKENS: Final = 1_024
LONG_FROM_TOKENS: Final = 8_192


class RequestClass(StrEnum):
    """What a request asks for most of: a long prompt needs blocks, a short one a sequence slot."""

    __hash__ = str.__hash__  # Enum's own is written in Python, and a router asks at each request.

    SHORT = "short"
    MIXED = "mixed"
    LONG = "long"


def class_of(prompt_tokens: int) -> RequestClass:
    """The class of a prompt: short up to 1,024 tokens, long from 8,192 on, mixed between.

    Mission rule S8 asks for classes by size and names no sizes. These bounds are ours: at vLLM's
    usual 16 tokens per block a short prompt takes 64 blocks at most, a long one 512 at least.
    """
    if prompt_tokens <= SHORT_UP_TO_TOKENS:
        return RequestClass.SHORT
    return RequestClass.LONG if prompt_tokens >= LONG_FROM_TOKENS else RequestClass.MIXED


class Scores(TypedDict, total=False):
    """Headroom for each class but the mixed one, 0 full, 1 empty. An absent one is unknown.

    A class that this version does not know is ignored, whatever its value.
    """

    short: Ratio | None
    long: Ratio | None


class Parts(msgspec.Struct, frozen=True):
    """What a `capacity_score` is made of, for people: why it is low.

        capacity_score = (free + running + waiting) · penalty · warm_up

    but for rounding. The first three are weighted terms; together they are 1 at most.
    """

    free: Ratio
    """What the free KV blocks add."""
    running: Ratio
    """What the free sequence slots add."""
    waiting: Ratio
    """What the empty waiting queue adds."""
    penalty: Ratio
    """The factor for a queue (mission S3); 1: none."""
    warm_up: Ratio
    """The factor of its state: 0 while it warms up or is not there, less than 1 on the ramp."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One replica: one vLLM engine, or one data-parallel rank of it."""

    id: Name
    """`node/engine`, with `:rank` behind it when the server has several engines."""
    url: Name
    """Where routers reach the server: `http://host:port`."""
    dp_rank: Count | None
    """Sent as `X-data-parallel-rank`; null when the server has one engine. Counted within the
    server: less than the rank in `id` where several servers share the ranks of one model."""
    models: tuple[str, ...]
    """Served names; empty is unknown."""
    state: State
    """Where it stands in its life."""
    reason: str
    """Why the state is not `serving`, the score unknown, or the warm-up given up; and that it has
    work without a step for a while, drained or not. Else empty."""
    capacity_score: Ratio | None
    """Headroom for a request of the mixed class: 0 full, 1 empty."""
    free_block_ratio: Ratio | None
    """Free share of the KV blocks, smoothed, falling trend counted (mission S4, S5)."""
    waiting_depth: Annotated[float, Meta(ge=0.0)] | None
    """Waiting requests, smoothed."""
    running_ratio: Ratio | None
    """Running sequences as a share of `max_num_seqs`, smoothed."""
    free_blocks: Count | None
    """KV blocks free, as last reported."""
    total_blocks: Count | None
    """KV blocks in all."""
    block_size: Count | None
    """Tokens per block."""
    running: Count | None
    """Running sequences, as last reported."""
    max_num_seqs: Count | None
    """Most sequences that run at once."""
    waiting: Count | None
    """Waiting requests, as last reported."""
    exhaustion_s: Seconds | None
    """When the KV blocks will be gone if they go on falling like this; null: they do not fall."""
    boot_id: Name | None
    """The engine's incarnation; null until the sidecar has heard of it."""
    seq: Count
    """Grows whenever anything but ages changes, over restarts of the sidecar too."""
    age_s: Seconds
    """How old this judgement was when it was sent: 0.1 at most from the sidecar that makes it, more
    from an aggregator that passes it on. The age of the engine's own word has gone into it."""
    ts: float
    """Wall clock of the node, Unix seconds, for people."""
    scores: Scores = {}
    """Headroom for requests of the other classes; see `score_for`."""
    step_s: Speed | None = None
    """Seconds of a decode step: of each further token of an answer. These three are learned from
    what the engine did; null until enough was seen, and as they were while it is idle."""
    decode_tokens_per_s: Speed | None = None
    """Tokens that all its sequences together get in a second of decode steps."""
    prefill_tokens_per_s: Speed | None = None
    """Uncached prompt tokens computed in a second. A prompt of N such tokens and M tokens of answer
    take N / this + M · `step_s` seconds here, queueing aside."""
    stalled: bool = False
    """It serves, has work, and has made no step for longer than the sidecar's
    `health.signs_of_life_s`: it may go on at any moment, or be found hung."""
    parts: Parts | None = None
    """What `capacity_score` is made of, for people: what `free` blocks, `running` slots and the
    `waiting` queue add, each 0..1, and the factors `penalty` and `warm_up` on their sum; null: some
    of it is unknown."""


def score_for(snapshot: Snapshot, cls: RequestClass) -> float | None:
    """Headroom for a request of this class, 0..1; `None`: unknown.

    The class's own score, or `capacity_score` where there is none.
    """
    match cls:
        case RequestClass.SHORT:
            own = snapshot.scores.get("short")
        case RequestClass.LONG:
            own = snapshot.scores.get("long")
        case RequestClass.MIXED:
            own = None
        case _:
            assert_never(cls)
    return snapshot.capacity_score if own is None else own


class Document(msgspec.Struct, frozen=True, kw_only=True):
    """What one node (or an aggregator) publishes."""

    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)]
    node: Name
    replicas: tuple[Snapshot, ...]


class _Envelope(msgspec.Struct, frozen=True):
    schema: Annotated[int, Meta(ge=SCHEMA, le=SCHEMA)]
    node: Name
    replicas: tuple[msgspec.Raw, ...]


class SnapshotError(ValueError):
    """The peer's fault: what it sent is no snapshot document. The message names the field."""


_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_envelope: Final = msgspec.json.Decoder(_Envelope)
_snapshot: Final = msgspec.json.Decoder(Snapshot)


def encode(document: Document) -> bytes:
    """Render a document as JSON."""
    return msgspec.json.encode(document)


def decode(body: bytes) -> tuple[Document, tuple[str, ...]]:
    """Read a document: what is sound in it, and a line for each replica that is not.

    Raises `SnapshotError` when the document itself is unusable.
    """
    try:
        envelope = _envelope.decode(body)
    except _UNREADABLE as error:
        raise SnapshotError(f"snapshot document: {error}") from error
    sound, faults = [], []
    for index, raw in enumerate(envelope.replicas):
        try:
            sound.append(_snapshot.decode(raw))
        except _UNREADABLE as error:
            faults.append(f"replicas[{index}]: {error}")
    document = Document(schema=SCHEMA, node=envelope.node, replicas=tuple(sound))
    return document, tuple(faults)
