"""What operators see on the admin port. Each page is a pure function of the router's state."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from ullage_router.core.fleet import Replica
from ullage_router.core.lineup import Standing, stand
from ullage_router.explain import MOST_BYTES, Reasons, decisions_page, explanation
from ullage_router.exposition import exposition
from ullage_router.feed import SidecarFeed
from ullage_router.router import Router
from ullage_router.tally import Tally


def replica_row(router: Router, replica: Replica, reasons: Reasons, now_s: float) -> dict[str, Any]:
    """One replica as the router sees it now, and why it would or would not be chosen."""
    policy = router.rules.choose
    seen = replica.snapshot
    tally = router.tallies.get(replica.key) or Tally()
    age_s = replica.age_s(now_s)
    if seen is None:
        reason = "no sidecar speaks for it"
    elif age_s is not None and age_s > policy.stale_after_s:
        reason = "its sidecar is silent"
    else:
        reason = seen.reason
    why_not = reasons.why_not(replica)
    return {
        "id": replica.id,
        "url": replica.url,
        "dp_rank": replica.dp_rank,
        "eligible": not why_not,
        "standing": stand(replica, now_s, policy),
        "why_not": why_not,
        "capacity_score": seen.capacity_score if seen else None,
        "state": seen.state if seen else None,
        "reason": reason,
        "age_s": None if age_s is None else round(age_s, 3),
        "in_flight": router.in_flight.by_replica[replica.key],
        "dispatched": tally.dispatched,
        "free_block_ratio": seen.free_block_ratio if seen else None,
        "running": seen.running if seen else None,
        "waiting": seen.waiting if seen else None,
        "step_s": seen.step_s if seen else None,
        "decode_tokens_per_s": seen.decode_tokens_per_s if seen else None,
        "prefill_tokens_per_s": seen.prefill_tokens_per_s if seen else None,
        "models": sorted(replica.models),
        "sidecar": replica.source,
    }


def replicas_page(router: Router, feeds: Mapping[str, SidecarFeed], now_s: float) -> dict[str, Any]:
    """`/replicas`: the table, and what is wrong with the sidecars."""
    replicas = [*router.fleet.replicas.values(), *router.leaving.values()]
    reasons = Reasons(router)
    rows = [replica_row(router, replica, reasons, now_s) for replica in replicas]
    return {
        "routing_by": router.odds().line_up.basis,
        "replicas": rows,
        "sidecars": [
            {"url": url, "problem": feed.problem, "faults": feed.faults}
            for url, feed in feeds.items()
        ],
    }


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
    router: Router,
    feeds: Mapping[str, SidecarFeed],
    collector: Collector,
    stopping: Callable[[], bool] = lambda: False,
) -> web.Application:
    """The admin port of one process."""

    async def replicas(_: web.Request) -> web.Response:
        return json_page(replicas_page(router, feeds, router.now_s()))

    async def decisions(_: web.Request) -> web.Response:
        return json_page(decisions_page(router))

    async def explain(request: web.Request) -> web.Response:
        return json_page(*await explanation(router, request))

    async def healthz(_: web.Request) -> web.Response:
        status, content = health_page(router, stopping=stopping())
        return json_page(content, status)

    async def metrics(_: web.Request) -> web.Response:
        return await metrics_page(collector.collect())

    return pages(replicas, decisions, explain, healthz, metrics)


Page = Callable[[web.Request], Awaitable[web.Response]]


def pages(
    replicas: Page, decisions: Page, explain: Page, healthz: Page, metrics: Page
) -> web.Application:
    """What operators find at an admin port, whoever answers there."""
    app = web.Application(client_max_size=MOST_BYTES)
    app.router.add_get("/replicas", replicas)
    app.router.add_get("/decisions", decisions)
    app.router.add_post("/explain{path:(/.*)?}", explain)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", metrics)
    return app


def json_page(content: Any, status: int = 200) -> web.Response:
    """A page that people read too."""
    body = orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return web.Response(body=body, status=status, content_type="application/json")


async def metrics_page(families: Iterable[Metric]) -> web.Response:
    """`/metrics`, for Prometheus."""
    return web.Response(
        body=await exposition(families), headers={"Content-Type": CONTENT_TYPE_LATEST}
    )
