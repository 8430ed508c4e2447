"""Spans: one of kind server for each request, sent to an OpenTelemetry collector by OTLP over HTTP.

A span is the child of the `traceparent` that the client sent, and the request that goes to a
replica carries the span's own, on a second try too: so vLLM's spans stand below it. Without
`[trace] otlp` nothing here is imported, and both fields pass as they came.

Rules
* Spans are sent by a thread, in batches. Where the collector is slow or gone, at most 2,048 wait,
  those beyond are dropped, and no request is held up; a stop waits `CLOSE_S` for the last ones.
* A trace that the client has not begun is kept by chance, at `[trace] share`; one that it has, as
  its `traceparent` says.
* OpenTelemetry's own words about a field that it cannot read hold the field: they are not logged.
"""

import logging
import threading
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ullage_router.http.message import Fields, Request
from ullage_router.http.story import TRACEPARENT, TRACESTATE, End, Story
from ullage_shared.config import ConfigError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

PATH: Final = "/v1/traces"
CLOSE_S: Final = 2.0
_SEND_WITHIN_S: Final = 5.0
_NEEDED: Final = (
    "opentelemetry.exporter.otlp.proto.http.trace_exporter",
    "opentelemetry.sdk.trace.export",
)
_TELL_FIELDS: Final = ("opentelemetry.trace.span", "opentelemetry.trace.propagation.tracecontext")
"""Loggers."""
_MISSING: Final = 'wanted opentelemetry beside it: pip install "ullage[router,otel]"'


class Tracing:
    """Begins and ends the spans of one process."""

    def __init__(self, provider: "TracerProvider") -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("ullage.router")
        self._propagator = TraceContextTextMapPropagator()
        self._kind = SpanKind.SERVER
        self._error = Status(StatusCode.ERROR)

    def begins(self, story: Story, request: Request | None) -> Callable[[Story], None]:
        """Begin a span, and have the request carry it on."""
        if request is None:
            return _nothing
        said = {
            name.decode(): value.decode("latin-1")
            for name in (TRACEPARENT, TRACESTATE)
            if (value := request.fields.first(name)) is not None
        }
        span = self._tracer.start_span(
            story.method or "", context=self._propagator.extract(said), kind=self._kind
        )
        context = span.get_span_context()
        story.trace_id = f"{context.trace_id:032x}"
        parent = f"00-{story.trace_id}-{context.span_id:016x}-{context.trace_flags:02x}"
        request.fields = _carrying(request.fields, parent.encode())
        return lambda story: self._end(span, story)

    def _end(self, span: Any, story: Story) -> None:
        if span.is_recording():
            span.set_attributes(attributes(story))
            if story.end != End.WHOLE or (story.status or 0) >= 500:
                span.set_status(self._error)
        span.end()

    def close(self) -> None:
        """Send what is left; wait for that `CLOSE_S` at most."""
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_S)


def attributes(story: Story) -> dict[str, str | int | float]:
    """What a span says of its request; what is not known is left out."""
    told = {
        "http.request.method": story.method,
        "url.path": story.path,
        "http.response.status_code": story.status,
        "gen_ai.request.model": story.model,
        "ullage.request_id": story.request_id,
        "ullage.replica": story.replica,
        "ullage.why": story.why,
        "ullage.score": story.score,
        "ullage.prompt_tokens": story.prompt_tokens,
        "ullage.queue_wait_s": story.waited_s,
        "ullage.tries": story.tries,
        "ullage.ttft_s": story.ttft_s,
        "ullage.sent_bytes": story.sent_bytes,
        "ullage.end": str(story.end),
    }
    return {name: value for name, value in told.items() if value is not None}


def require(otlp: str) -> None:
    """Raises `ConfigError` if spans are wanted, and what they need is not installed."""
    if not otlp:
        return
    try:
        for name in _NEEDED:
            import_module(name)
    except ImportError as error:
        raise ConfigError(f"trace.otlp = {otlp!r}: {_MISSING}") from error


def exporting(otlp: str, share: float, ca: str) -> Tracing:
    """Spans go to the collector at `otlp`. Raises `ConfigError`: a package is missing."""
    require(otlp)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    exporter = OTLPSpanExporter(otlp + PATH, certificate_file=ca or None, timeout=_SEND_WITHIN_S)
    return tracing(BatchSpanProcessor(exporter), share)


def tracing(processor: Any, share: float) -> Tracing:
    """Spans go to `processor`, an OpenTelemetry `SpanProcessor`."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

    for name in _TELL_FIELDS:
        logging.getLogger(name).setLevel(logging.ERROR)
    provider = TracerProvider(
        sampler=ParentBased(TraceIdRatioBased(share)),
        resource=Resource.create({"service.name": "ullage-router"}),
        shutdown_on_exit=False,
    )
    provider.add_span_processor(processor)
    return Tracing(provider)


def _carrying(fields: Fields, parent: bytes) -> Fields:
    kept = [text for text in fields.kept if text[:12].lower() != b"traceparent:"]
    return Fields([*kept, b"traceparent: " + parent], fields.values)


def _nothing(_: Story) -> None:
    """What came was no request."""
