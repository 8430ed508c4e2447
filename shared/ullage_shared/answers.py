"""What sidecar and aggregator both answer, as pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from ullage_shared.watch import Rendered

JSON: Final = "application/json"


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP response, before anybody sends it."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


def snapshots(published: Rendered, if_none_match: str | None) -> Answer:
    """The document, or 304 if the asker has it. A copy may be kept, but not used unasked."""
    etag = f'"{published.seq:x}"'
    headers = {"ETag": etag, "Cache-Control": "no-cache"}
    known = [tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")]
    if etag in known or "*" in known:
        return Answer(304, headers=headers)
    return Answer(200, published.body, {**headers, "Content-Type": JSON})


def metrics(registry: CollectorRegistry) -> Answer:
    """Everything countable, as Prometheus text."""
    return Answer(200, generate_latest(registry), {"Content-Type": CONTENT_TYPE_LATEST})


def response(answer: Answer) -> web.Response:
    """As it is sent."""
    return web.Response(status=answer.status, body=answer.body, headers=answer.headers)
