"""`traceparent` and `tracestate` pass; where spans are wanted, each request is one, and a replica's
spans stand below it."""

import sys
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from data_plane import Plane, data_plane, eventually
from raw_client import request
from scripted_backend import Backend, Received, answering, refusing_url, response
from ullage_router import tracing as module
from ullage_router.access import AccessLog
from ullage_router.tracing import exporting, require, tracing
from ullage_shared.config import ConfigError
from ullage_shared.log import Line

WELL = response(b"well")
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAID = f"00-{TRACE}-{PARENT}-01".encode()
STATE = b"vendor=a,other=b"
HEADERS = [(b"Traceparent", SAID), (b"tracestate", STATE), (b"X-Request-Id", b"mine")]
ASK = request(body=b'{"model": "m", "prompt": "x"}', headers=HEADERS)


def parent_of(received: Received) -> tuple[str, str, str, str]:
    """Version, trace, span and flags, as the replica was told."""
    (said,) = received.all(b"traceparent")
    version, trace, span, flags = said.decode().split("-")
    return version, trace, span, flags


async def test_both_pass_unchanged_on_a_second_try_too() -> None:
    async with Backend(answering(WELL)) as well, data_plane(refusing_url(), well.url) as plane:
        while not plane.router.second_tries:
            await (await plane.client()).ask(ASK)
        for received in well.requests:
            assert received.all(b"traceparent") == [SAID]
            assert received.all(b"tracestate") == [STATE]


async def test_without_one_none_is_made_up() -> None:
    async with Backend(answering(WELL)) as well, data_plane(well.url) as plane:
        await (await plane.client()).ask(request(body=b"{}"))
        assert well.requests[0].all(b"traceparent") == []


@asynccontextmanager
async def traced(
    *urls: str, share: float = 1.0
) -> AsyncIterator[tuple[Plane, InMemorySpanExporter, list[Line]]]:
    """A data plane whose spans are kept."""
    spans, lines = InMemorySpanExporter(), list[Line]()
    async with data_plane(*urls) as plane:
        it = tracing(SimpleSpanProcessor(spans), share)
        plane.proxy.tell([it, AccessLog(lines.append)])
        yield plane, spans, lines
        it.close()


def the_last(spans: InMemorySpanExporter) -> ReadableSpan:
    finished: Sequence[ReadableSpan] = spans.get_finished_spans()
    return finished[-1]


async def test_a_request_is_a_span_below_the_clients_and_above_the_replicas() -> None:
    async with Backend(answering(WELL)) as well, traced(well.url) as (plane, spans, lines):
        await (await plane.client()).ask(ASK)
        (span,) = spans.get_finished_spans()
        assert span.context is not None
        assert span.parent is not None
        assert (span.name, span.kind) == ("POST", SpanKind.SERVER)
        assert f"{span.context.trace_id:032x}" == TRACE
        assert f"{span.parent.span_id:016x}" == PARENT
        told = parent_of(well.requests[0])
        assert told == ("00", TRACE, f"{span.context.span_id:016x}", "01")
        assert well.requests[0].all(b"tracestate") == [STATE]
        assert lines[0].fields["trace_id"] == TRACE
    attributes = dict(span.attributes or {})
    assert attributes.pop("ullage.prompt_tokens") > 0  # type: ignore[operator]
    for seconds in ("ullage.ttft_s", "ullage.queue_wait_s"):
        assert 0.0 <= attributes.pop(seconds) < 5.0  # type: ignore[operator]
    assert attributes.pop("ullage.sent_bytes") > 0  # type: ignore[operator]
    assert attributes == {
        "http.request.method": "POST",
        "url.path": "/v1/completions",
        "http.response.status_code": 200,
        "gen_ai.request.model": "m",
        "ullage.request_id": "mine",
        "ullage.replica": well.url.removeprefix("http://"),
        "ullage.why": "own_counts",
        "ullage.tries": 1,
        "ullage.end": "whole",
    }
    assert span.status.status_code is StatusCode.UNSET


async def test_a_request_without_a_trace_begins_one() -> None:
    async with Backend(answering(WELL)) as well, traced(well.url) as (plane, spans, lines):
        await (await plane.client()).ask(request(body=b"{}"))
        span = the_last(spans)
        assert span.parent is None
        assert parent_of(well.requests[0])[1] == lines[0].fields["trace_id"]


async def test_a_second_try_carries_the_same_span_and_is_counted_in_it() -> None:
    async with (
        Backend(answering(WELL)) as well,
        traced(refusing_url(), well.url) as (plane, spans, _),
    ):
        while not plane.router.second_tries:
            await (await plane.client()).ask(ASK)
        span = the_last(spans)
        assert span.context is not None
        assert (span.attributes or {})["ullage.tries"] == 2
        assert parent_of(well.requests[-1])[2] == f"{span.context.span_id:016x}"


async def test_what_fails_is_a_span_with_an_error() -> None:
    async with traced(refusing_url()) as (plane, spans, _):
        assert (await (await plane.client()).ask(ASK)).status == 502
        span = the_last(spans)
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["ullage.end"] == "replica_failed"


@pytest.mark.parametrize(("flags", "spans_kept"), [("01", 1), ("00", 0)])
async def test_whether_a_trace_is_kept_its_beginner_decides(flags: str, spans_kept: int) -> None:
    said = f"00-{TRACE}-{PARENT}-{flags}".encode()
    async with (
        Backend(answering(WELL)) as well,
        traced(well.url, share=0.0) as (plane, spans, _),
    ):
        client = await plane.client()
        await client.ask(request(headers=[(b"traceparent", said)]))
        assert len(spans.get_finished_spans()) == spans_kept
        assert int(parent_of(well.requests[0])[3], 16) & 1 == int(flags)
        await client.ask(request())
        assert len(spans.get_finished_spans()) == spans_kept
        assert not int(parent_of(well.requests[1])[3], 16) & 1


async def test_what_is_no_request_is_no_span() -> None:
    async with traced() as (plane, spans, lines):
        client = await plane.client()
        await client.send(b"nonsense\r\n\r\n")
        await client.closed()
        assert (len(lines), spans.get_finished_spans()) == (1, ())


# The collector


class Collector(BaseHTTPRequestHandler):
    """A stand-in: takes whatever it is sent."""

    got: list[tuple[str, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, body))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


async def test_spans_reach_a_collector_by_otlp_at_the_latest_at_the_stop() -> None:
    Collector.got = []
    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        it = exporting(f"http://127.0.0.1:{server.server_port}", 1.0, "")
        async with Backend(answering(WELL)) as well, data_plane(well.url) as plane:
            plane.proxy.tell([it])
            for _ in range(3):
                await (await plane.client()).ask(ASK)
        it.close()
        server.shutdown()
        serving.join()
    assert {path for path, _ in Collector.got} == {"/v1/traces"}
    sent = b"".join(body for _, body in Collector.got)
    assert sent.count(bytes.fromhex(TRACE)) == 3
    assert b"ullage-router" in sent


async def test_a_collector_that_is_gone_holds_up_nothing_and_is_kept_nothing_for_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "CLOSE_S", 0.1)
    monkeypatch.setattr(module, "_SEND_WITHIN_S", 0.2)
    before = set(threading.enumerate())
    it = exporting(refusing_url(), 1.0, "")
    async with Backend(answering(WELL)) as well, data_plane(well.url) as plane:
        plane.proxy.tell([it])
        client = await plane.client()
        begun_s = time.perf_counter()
        for _ in range(50):
            assert (await client.ask(ASK)).status == 200
        for _ in range(5000):  # The same, without a client and a replica.
            span = it._tracer.start_span("more")
            span.end()
        assert time.perf_counter() - begun_s < 10.0
        (processor,) = it._provider._active_span_processor._span_processors
        assert len(processor._batch_processor._queue) <= 2048  # type: ignore[attr-defined]
    begun_s = time.perf_counter()
    it.close()
    assert time.perf_counter() - begun_s < 2.0
    # Its threads throw dice between two tries, which are other tests' dice, too.
    await eventually(lambda: set(threading.enumerate()) <= before, within_s=20.0)


def test_without_the_extra_the_key_is_refused_with_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace.export", None)
    with pytest.raises(ConfigError, match=r"trace\.otlp = 'http://c:4318': wanted opentelemetry"):
        exporting("http://c:4318", 1.0, "")
    with pytest.raises(ConfigError, match="wanted opentelemetry"):
        require("http://c:4318")
    require("")
