"""What it costs to be told of requests: µs of CPU time a request, by who wants to be told.

    .venv/bin/python tests/bench/bench_told.py [--requests 300] [--rounds 15]

    nobody      neither access log nor traces: the yardstick
    access log  lines are written to /dev/null, by the writer's thread
    traces      spans are batched, by OpenTelemetry's thread, and thrown away
    both

One client asks the router's own data plane for a streamed answer of 20 chunks, again and again, in
turns: a round is some requests of each kind. CPU time is the process's, all threads, the stub and
the client included: they are the same for all, so the differences to `nobody` are what is told.
Of the rounds' differences: the median, and between which half of them lie. Two rows of `nobody`
say how far that is to be believed.
"""

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Final

from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from data_plane import Plane, data_plane
from raw_client import Client, request
from scripted_backend import LAST_CHUNK, Backend, answering, chunk, chunked_head
from ullage_router.access import AccessLog
from ullage_router.http.story import Witness
from ullage_router.tracing import tracing
from ullage_shared.log import Log
from ullage_shared.log_line import form_of
from ullage_shared.log_writer import Writer

ANSWER: Final = chunked_head() + b"".join(chunk(b"data: x\n\n") for _ in range(20)) + LAST_CHUNK
ASK: Final = request(
    b"/v1/chat/completions",
    b'{"model": "m", "messages": [{"role": "user", "content": "Tell me of ullage."}]}',
    headers=[
        (b"X-Request-Id", b"0af7651916cd43dd8448eb211c80319c"),
        (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ],
)


class Forgetful(InMemorySpanExporter):
    """Keeps nothing."""

    def export(self, spans):
        result = super().export(spans)
        self.clear()
        return result


async def cost_us(plane: Plane, client: Client, told: Sequence[Witness], requests: int) -> float:
    plane.proxy.tell(told)
    await client.ask(ASK)
    begun_s = time.process_time()
    for _ in range(requests):
        await client.ask(ASK)
    return (time.process_time() - begun_s) / requests * 1e6


async def measure(requests: int, rounds: int) -> dict[str, list[float]]:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    access_log = AccessLog(Log(Writer(nowhere), form_of("text")).put)
    traces = tracing(BatchSpanProcessor(Forgetful()), 1.0)
    kinds: dict[str, Sequence[Witness]] = {
        "nobody": (),
        "nobody, again": (),
        "access log": (access_log,),
        "traces": (traces,),
        "both": (traces, access_log),
    }
    costs: dict[str, list[float]] = {kind: [] for kind in kinds}
    async with Backend(answering(ANSWER)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        for _ in range(rounds):
            for kind, told in kinds.items():
                costs[kind].append(await cost_us(plane, client, told, requests))
    traces.close()
    return costs


def main() -> int:
    flags = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    flags.add_argument("--requests", type=int, default=300)
    flags.add_argument("--rounds", type=int, default=15)
    asked = flags.parse_args()
    costs = asyncio.run(measure(asked.requests, asked.rounds))
    yardstick = costs.pop("nobody")
    print(f"a request, client and stub included: {median(yardstick):.0f} µs of CPU")
    for kind, each in costs.items():
        more = [cost - base for cost, base in zip(each, yardstick, strict=True)]
        low, _, high = quantiles(more, n=4)
        print(f"  {kind:<14} {median(more):+6.1f} µs   ({low:+.1f} to {high:+.1f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
