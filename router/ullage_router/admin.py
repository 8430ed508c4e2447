"""What operators see on the admin port. Each page is a pure function of the router's state."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from ullage_router.core.lineup import Standing
from ullage_router.explain import MOST_BYTES, decisions_page, explanation
from ullage_router.exposition import exposition
from ullage_router.http.proxy import Proxy
from ullage_router.page import html_page
from ullage_router.replicas import replicas_page
from ullage_router.router import Router
from ullage_router.status import status_page
from ullage_shared.discovery.listing import Listing
from ullage_shared.feed import Feed


def health_page(router: Router, *, stopping: bool = False) -> tuple[int, dict[str, Any]]:
    """`/healthz`: 200 while a replica serves, with headroom or without, and the router goes on.

    A fleet that is full is none of the router's illness: it has a queue, and a Retry-After.
    """
    lined_up = router.odds().line_up
    serving = sum(
        judged.standing in (Standing.ELIGIBLE, Standing.SILENT, Standing.FULL) or key in lined_up.at
        for key, judged in lined_up.judged.items()
    )
    content = {
        "eligible": router.breathing(None),
        "serving": serving,
        "replicas": len(router.fleet.replicas),
        "stopping": stopping,
    }
    return (200 if serving and not stopping else 503), content


def admin_app(
    proxy: Proxy,
    feeds: Mapping[str, Feed],
    collector: Collector,
    stopping: Callable[[], bool] = lambda: False,
    listings: Sequence[Listing] = (),
) -> web.Application:
    """The admin port of one process."""
    router = proxy.router
    began_s = router.now_s()

    async def status(_: web.Request) -> web.Response:
        uptime_s = router.now_s() - began_s
        page = await status_page(proxy, feeds, uptime_s, listings, stopping=stopping())
        return compact(page)

    async def replicas(_: web.Request) -> web.Response:
        return json_page(replicas_page(router, feeds, router.now_s(), listings))

    async def decisions(_: web.Request) -> web.Response:
        return json_page(decisions_page(router))

    async def explain(request: web.Request) -> web.Response:
        return json_page(*await explanation(router, request))

    async def healthz(_: web.Request) -> web.Response:
        status, content = health_page(router, stopping=stopping())
        return json_page(content, status)

    async def metrics(_: web.Request) -> web.Response:
        return await metrics_page(collector.collect())

    return pages(status, replicas, decisions, explain, healthz, metrics)


Page = Callable[[web.Request], Awaitable[web.Response]]


def pages(
    status: Page, replicas: Page, decisions: Page, explain: Page, healthz: Page, metrics: Page
) -> web.Application:
    """What operators find at an admin port, whoever answers there."""
    app = web.Application(client_max_size=MOST_BYTES)
    app.router.add_get("/", html_page)
    app.router.add_get("/status", status)
    app.router.add_get("/replicas", replicas)
    app.router.add_get("/decisions", decisions)
    app.router.add_post("/explain{path:(/.*)?}", explain)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    return app


def compact(content: Any, status: int = 200) -> web.Response:
    """A page that programs read, again and again."""
    body = orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)
    return web.Response(body=body, status=status, content_type="application/json")


def json_page(content: Any, status: int = 200) -> web.Response:
    """A page that people read too."""
    body = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return web.Response(body=body, status=status, content_type="application/json")


async def metrics_page(families: Iterable[Metric]) -> web.Response:
    """`/metrics`, for Prometheus."""
    return web.Response(
        body=await exposition(families), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
