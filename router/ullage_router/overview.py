"""What operators see of a router with several workers: each is asked, and their pages made one.

Rule: a worker that does not answer within `_WAIT_S` holds nobody up; the page says that it is
missing.
"""

import asyncio
import time
from collections.abc import Iterable, Iterator
from typing import Final

import aiohttp
import orjson
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from yarl import URL

from ullage_router import aggregate, aggregate_status
from ullage_router.admin import compact, json_page, metrics_page, pages
from ullage_router.http.errors import Refusal
from ullage_router.workers import Worker, Workers

_WAIT_S: Final = 1.0
NO_WORKER: Final = Refusal(503, "no_worker", "No worker of this router answers at present.")
_FRAMING: Final = ("connection", "content-length", "host", "transfer-encoding")


class Overview:
    """The admin port of the supervisor."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._began_s = time.monotonic()
        self._one_at_a_time = asyncio.Lock()
        """Counts that came late must not take the place of later ones."""

    def app(self) -> web.Application:
        """The pages of a single process, over all workers."""
        return pages(
            self._status,
            self._replicas,
            self._decisions,
            self._explain,
            self._healthz,
            self._metrics,
        )

    async def _status(self, _: web.Request) -> web.Response:
        answers, silent = await self._ask("/status")
        if not answers:
            return json_page(NO_WORKER.content, NO_WORKER.status)
        parsed = {worker.number: orjson.loads(page) for worker, page in answers.items()}
        own = {
            "uptime_s": round(time.monotonic() - self._began_s, 1),
            "restarts": self._workers.restarts,
            "stopping": self._workers.stopping,
        }
        return compact(aggregate_status.status(parsed) | own | _who(answers, silent))

    async def _replicas(self, _: web.Request) -> web.Response:
        answers, silent = await self._ask("/replicas")
        content = aggregate.replicas([orjson.loads(page) for page in answers.values()])
        return json_page(content | _who(answers, silent))

    async def _decisions(self, _: web.Request) -> web.Response:
        answers, _silent = await self._ask("/decisions")
        parsed = {worker.number: orjson.loads(page) for worker, page in answers.items()}
        return json_page(aggregate.decisions(parsed))

    async def _explain(self, request: web.Request) -> web.Response:
        """One worker's view: which one would get the request, only the kernel knows."""
        body = await request.read()
        ready = [worker for worker in self._workers.alive.values() if worker.ready]
        for worker in sorted(ready, key=lambda worker: worker.number):
            page = await _explained(worker, request, body)
            if page is not None:
                return page
        return json_page(NO_WORKER.content, NO_WORKER.status)

    async def _healthz(self, _: web.Request) -> web.Response:
        answers, silent = await self._ask("/healthz")
        parsed = [orjson.loads(page) for page in answers.values()]
        status, content = aggregate.health(parsed, stopping=self._workers.stopping)
        return json_page(content | _who(answers, silent), status)

    async def _metrics(self, _: web.Request) -> web.Response:
        async with self._one_at_a_time:
            answers, silent = await self._ask("/metrics")
            alive = self._workers.alive.values()
            for worker, page in answers.items():
                worker.seen = aggregate.parse(page.decode())
            # One that has ended since it answered is among the departed already.
            merged = aggregate.merge(
                [worker.seen for worker in alive if worker in answers],
                [self._workers.departed, *(w.seen for w in alive if w not in answers)],
            )
            serving = sum(worker.ready for worker in alive)
            own = own_metrics(serving, len(silent), self._workers.restarts)
            families = [*aggregate.metrics(merged), *own]
        return await metrics_page(families)

    async def _ask(self, path: str) -> tuple[dict[Worker, bytes], list[Worker]]:
        """A page of each worker, and those that do not answer."""
        workers = [worker for worker in self._workers.alive.values() if worker.ready]
        pages = await asyncio.gather(*(_page(worker, path) for worker in workers))
        answers = dict(zip(workers, pages, strict=True))
        return (
            {worker: page for worker, page in answers.items() if page is not None},
            [worker for worker, page in answers.items() if page is None],
        )


def _who(answers: Iterable[Worker], silent: Iterable[Worker]) -> dict[str, list[int]]:
    return {
        "workers": sorted(worker.number for worker in answers),
        "workers_silent": sorted(worker.number for worker in silent),
    }


async def _page(worker: Worker, path: str) -> bytes | None:
    """None: no answer."""
    connector = aiohttp.UnixConnector(str(worker.admin))
    timeout = aiohttp.ClientTimeout(total=_WAIT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.get(f"http://worker{path}") as answer,
        ):
            return await answer.read() if answer.status in (200, 503) else None
    except (aiohttp.ClientError, OSError, TimeoutError):
        return None


async def _explained(worker: Worker, request: web.Request, body: bytes) -> web.Response | None:
    """None: no answer."""
    headers = [(k, v) for k, v in request.headers.items() if k.lower() not in _FRAMING]
    url = URL(f"http://worker{request.rel_url.raw_path}", encoded=True)
    connector = aiohttp.UnixConnector(str(worker.admin))
    timeout = aiohttp.ClientTimeout(total=_WAIT_S)
    try:
        async with (
            aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
            session.post(url, data=body, headers=headers) as answer,
        ):
            content = orjson.loads(await answer.read())
            return json_page(content | {"worker": worker.number}, answer.status)
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError):
        return None


def own_metrics(serving: int, silent: int, restarts: int) -> Iterator[Metric]:
    """What only the supervisor knows. With one worker there is no supervisor, and none of these."""
    for name, meaning, value in (
        ("workers", "Workers that serve, where there are several.", serving),
        (
            "workers_silent",
            "Workers that did not answer within 1 s: their gauges are missing here, and their "
            "counts are as last seen.",
            silent,
        ),
    ):
        gauge = GaugeMetricFamily(f"ullage_router_{name}", meaning)
        gauge.add_metric([], value)
        yield gauge
    restarted = CounterMetricFamily(
        "ullage_router_worker_restarts", "Workers started in the place of one that had ended."
    )
    restarted.add_metric([], restarts)
    yield restarted
