"""The router's configuration: what each key is, its unit, its default, what more of it costs."""

import os
from collections.abc import Iterator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ullage_router.core.breaker import BreakerPolicy
from ullage_router.core.policy import AffinityPolicy, Policy, RetryPolicy
from ullage_router.core.queue import QueuePolicy
from ullage_router.core.rules import Rules
from ullage_shared.tls import ClientKey

__all__ = [
    "Access",
    "Config",
    "Limits",
    "Policy",
    "RetryPolicy",
    "Tls",
    "Trace",
    "at_odds",
    "rules",
    "worker_count",
]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`."""

    max_head_bytes: Annotated[
        int,
        Meta(ge=1024, description="Largest request line and headers, in bytes; larger gets 431."),
    ] = 65_536
    max_headers: Annotated[
        int, Meta(ge=8, description="Most header fields of a request; more get 431.")
    ] = 128
    max_body_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Largest request body, in bytes; larger gets 413. A body is held in "
            "memory until the first byte of its answer.",
        ),
    ] = 67_108_864
    max_connections: Annotated[
        int,
        Meta(
            ge=0,
            description="Most client connections of one worker; a further one gets 503 and is "
            "closed. 0: as many as the open files allowed (`ulimit -n`) suffice for, two to each.",
        ),
    ] = 0
    head_timeout_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=3600.0,
            description="How long, in seconds, a client may take to send a request's head; "
            "then 408.",
        ),
    ] = 15.0
    body_timeout_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=3600.0,
            description="How long, in seconds, a client may pause while it sends a request's "
            "body; then 408.",
        ),
    ] = 30.0
    idle_client_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=86_400.0,
            description="How long, in seconds, a connection without a request stays open.",
        ),
    ] = 75.0
    stalled_client_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=86_400.0,
            description="How long, in seconds, a client may take nothing of the answer that waits "
            "for it; then it is cut off. Slow is not stalled.",
        ),
    ] = 300.0
    connect_timeout_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=3600.0,
            description="How long, in seconds, a replica may take to accept a connection before "
            "another is tried.",
        ),
    ] = 2.0
    first_byte_timeout_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=86_400.0,
            description="How long, in seconds, a replica may take to begin its answer (of a "
            "stream: its first event) before another is tried, else 504. 0: as long as it likes, "
            "since a long prompt may wait long and still be served.",
        ),
    ] = 0.0
    idle_upstream_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=3600.0,
            description="How long, in seconds, an idle connection to a replica is kept. Must be "
            "less than the replica's own limit (vLLM: 5 s).",
        ),
    ] = 4.0
    stop_grace_s: Annotated[
        float,
        Meta(
            ge=0.0,
            le=86_400.0,
            description="How long, in seconds, requests under way may go on after SIGTERM.",
        ),
    ] = 30.0


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tls]`. Files are read at the start and again at SIGHUP."""

    certificate: Annotated[
        str,
        Meta(
            description="PEM file with the certificate chain for clients. Empty: plain HTTP. "
            "`admin` stays plain."
        ),
    ] = ""
    key: Annotated[
        str, Meta(description="PEM file with its private key. Empty: it is in `certificate`.")
    ] = ""
    ca: Annotated[
        str,
        Meta(
            description="PEM file with the authorities that replicas and sidecars at `https://` "
            "are checked against. Empty: the system's."
        ),
    ] = ""
    client_certificate: Annotated[
        str,
        Meta(
            description="PEM file with the certificate chain that sidecars and replicas at "
            "`https://` are shown where they want one (a sidecar's `tls.client_ca`, vLLM's "
            "`--ssl-cert-reqs`). Empty: none."
        ),
    ] = ""
    client_key: ClientKey = ""


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[access]`. Files are read at the start and again at SIGHUP."""

    keys: Annotated[
        str,
        Meta(
            description="File with a name and a SHA-256 for each API key that clients may have, "
            "one to a line (`ullage-router key NAME` makes both). Empty: everybody may send "
            "requests."
        ),
    ] = ""
    replica_key: Annotated[
        str,
        Meta(
            description="File with the API key that replicas want (vLLM's `--api-key`), sent in "
            "the place of what clients send. Empty: what clients send goes on as it came."
        ),
    ] = ""
    sidecar_token: Annotated[
        str,
        Meta(
            description="File with the token that sidecars and aggregators want (their "
            "`access.token`), alone on a line. Not readable by everybody. Empty: they want none."
        ),
    ] = ""


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[trace]`."""

    otlp: Annotated[
        str,
        Meta(
            description="OpenTelemetry collector that gets a span of each request, by OTLP over "
            "HTTP: `http://host:port`. Empty: none; `traceparent` passes unchanged. Wants "
            "`ullage[otel]`."
        ),
    ] = ""
    share: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1.0,
            description="Share, 0..1, of the traces that begin here of which spans are sent; of "
            "others the client decides. A span costs some 150 µs of CPU.",
        ),
    ] = 1.0


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration."""

    listen: Annotated[
        str,
        Meta(
            description="Where clients connect, `host:port`. Not used if systemd gives the sockets "
            "(`ullage-router.socket`)."
        ),
    ] = "0.0.0.0:8080"
    admin: Annotated[
        str,
        Meta(
            description="Where operators look, `host:port`: `/` is a page for people; `/status`, "
            "`/replicas`, `/decisions`, `/explain`, `/metrics`, `/healthz`. It is not protected: "
            "keep it off public networks."
        ),
    ] = "127.0.0.1:9401"
    replicas: Annotated[
        tuple[str, ...],
        Meta(
            description="vLLM servers, `http://host:port` or `https://…`, or sources of them as in "
            "`sidecars`. They get requests even when no sidecar speaks for them; one that hangs is "
            "then not noticed but by `limits.first_byte_timeout_s`."
        ),
    ] = ()
    sidecars: Annotated[
        tuple[str, ...],
        Meta(
            description="Sidecars and aggregators, `http://host:port` or `https://…`, or where "
            "they are listed: `file:/etc/ullage/sidecars.yml` (Prometheus' file_sd form), "
            "`dns+http://name:port`, `srv+http://_ullage._tcp.domain`. Every replica that they "
            "publish joins the fleet; one that is also in `replicas` is matched by its URL."
        ),
    ] = ()
    poll_interval_s: Annotated[
        float,
        Meta(
            ge=0.02,
            le=60.0,
            description="How often, in seconds, each sidecar says how things stand. What changes "
            "meanwhile it pushes; one that cannot is asked, and then lower sees bursts earlier, "
            "and costs a request each time.",
        ),
    ] = 0.5
    workers: Annotated[
        Annotated[int, Meta(ge=1, le=256)] | Literal["auto"],
        Meta(
            description="Processes that share the port, each with a view of the fleet, counts and "
            '`[retry]` of its own; `"auto"`: one for each core.'
        ),
    ] = 1
    name_replica: Annotated[
        bool, Meta(description="Whether answers say who gave them, in `x-ullage-replica`.")
    ] = True
    name_why: Annotated[
        bool,
        Meta(description="Whether answers say which rule chose their replica, in `x-ullage-why`."),
    ] = False
    access_log: Annotated[
        bool,
        Meta(
            description="Whether each request is a line in the log when it has ended. Costs some "
            "50 µs of CPU a request."
        ),
    ] = False
    choose: Policy = Policy()
    affinity: AffinityPolicy = AffinityPolicy()
    breaker: BreakerPolicy = BreakerPolicy()
    queue: QueuePolicy = QueuePolicy()
    retry: RetryPolicy = RetryPolicy()
    limits: Limits = Limits()
    tls: Tls = Tls()
    access: Access = Access()
    trace: Trace = Trace()


def at_odds(config: Config) -> Iterator[str]:
    """Which keys do not go together, and what was wanted."""
    choose = config.choose
    for key, value, relation, other, bound, holds in (
        (
            "choose.stale_after_s",
            choose.stale_after_s,
            "more than",
            "poll_interval_s",
            config.poll_interval_s,
            choose.stale_after_s > config.poll_interval_s,
        ),
        (
            "choose.forget_after_s",
            choose.forget_after_s,
            "more than",
            "choose.stale_after_s",
            choose.stale_after_s,
            choose.forget_after_s > choose.stale_after_s,
        ),
        (
            "affinity.stay_above",
            config.affinity.stay_above,
            "no less than",
            "choose.floor",
            choose.floor,
            config.affinity.stay_above >= choose.floor,
        ),
    ):
        if not holds:
            yield f"{key} = {value}: wanted {relation} {other} = {bound}"


def rules(config: Config) -> Rules:
    """The rules of choosing of one worker."""
    return Rules(config.choose, config.affinity, config.breaker, worker_count(config))


def worker_count(config: Config) -> int:
    """How many processes share the port."""
    return len(os.sched_getaffinity(0)) if config.workers == "auto" else config.workers
