"""The router's configuration: what each key is, its unit, its default, what more of it costs."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ullage_router.core.policy import Policy

__all__ = ["Config", "Limits", "Policy"]


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[limits]`."""

    max_head_bytes: Annotated[
        int,
        Meta(ge=1024, description="Largest request line and headers, in bytes; larger gets 431."),
    ] = 65_536
    max_body_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="Largest request body, in bytes; larger gets 413. Bodies are held "
            "in memory until they are answered.",
        ),
    ] = 67_108_864
    connect_timeout_s: Annotated[
        float,
        Meta(
            gt=0.0,
            le=3600.0,
            description="How long, in seconds, a replica may take to accept a connection before "
            "another is tried.",
        ),
    ] = 2.0
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


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration."""

    listen: Annotated[str, Meta(description="Where clients connect, `host:port`.")] = "0.0.0.0:8080"
    admin: Annotated[
        str,
        Meta(
            description="Where operators look, `host:port`: `/replicas`, `/decisions`, `/metrics`, "
            "`/healthz`. It is not protected: keep it off public networks."
        ),
    ] = "127.0.0.1:9401"
    replicas: Annotated[
        tuple[str, ...],
        Meta(
            description="vLLM servers, `http://host:port`. They get requests even when no sidecar "
            "speaks for them."
        ),
    ] = ()
    sidecars: Annotated[
        tuple[str, ...],
        Meta(
            description="Sidecars, `http://host:port`. Every replica that they publish joins the "
            "fleet; one that is also in `replicas` is matched by its URL."
        ),
    ] = ()
    poll_interval_s: Annotated[
        float,
        Meta(
            ge=0.02,
            le=60.0,
            description="How often, in seconds, each sidecar is asked. Lower sees bursts earlier "
            "and costs a request each time.",
        ),
    ] = 0.5
    choose: Policy = Policy()
    limits: Limits = Limits()
