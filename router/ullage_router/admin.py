"""What operators see on the admin port. Each page is a pure function of the router's state."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

import orjson
from aiohttp import web
from prometheus_client import Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from ullage_router.core.decide import Standing, line_up, stand
from ullage_router.core.fleet import Replica
from ullage_router.exposition import exposition
from ullage_router.feed import SidecarFeed
from ullage_router.router import Decided, Router
from ullage_router.tally import Tally


def replica_row(router: Router, replica: Replica, now_s: float) -> dict[str, Any]:
    """One replica as the router sees it now, and why it would or would not be chosen."""
    standing = stand(replica, now_s, router.policy)
    aside = replica.aside_until_s > now_s
    seen = replica.snapshot
    tally = router.tallies.get(replica.key) or Tally()
    age_s = replica.age_s(now_s)
    if seen is None:
        reason = "no sidecar speaks for it"
    elif age_s is not None and age_s > router.policy.stale_after_s:
        reason = "its sidecar is silent"
    else:
        reason = seen.reason
    if replica.key in router.leaving:
        why_not = "is no longer in the fleet: it finishes what it has"
    elif aside:
        why_not = "gave no answer, or had no room, a moment ago"
    elif standing is Standing.FULL:
        why_not = f"score is not above the floor of {router.policy.floor}"
    else:
        able = standing in (Standing.ELIGIBLE, Standing.SILENT)
        why_not = "" if able else f"it is {standing}"
    return {
        "id": replica.id,
        "url": replica.url,
        "dp_rank": replica.dp_rank,
        "eligible": not why_not,
        "standing": standing,
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
        "models": sorted(replica.models),
        "sidecar": replica.source,
    }


def replicas_page(router: Router, feeds: Mapping[str, SidecarFeed], now_s: float) -> dict[str, Any]:
    """`/replicas`: the table, and what is wrong with the sidecars."""
    replicas = [*router.fleet.replicas.values(), *router.leaving.values()]
    rows = [replica_row(router, replica, now_s) for replica in replicas]
    return {
        "routing_by": line_up(router.fleet, None, now_s, router.policy).why,
        "replicas": rows,
        "sidecars": [
            {"url": url, "problem": feed.problem, "faults": feed.faults}
            for url, feed in feeds.items()
        ],
    }


def decision_row(decided: Decided) -> dict[str, Any]:
    """One line of `/decisions`."""
    decision = decided.decision
    return {
        "at": decided.at,
        "replica": decision.replica.id if decision.replica else None,
        "why": decision.why,
        "score": decision.score,
        "in_flight": decided.in_flight,
        "second_try": decided.second_try,
        "request_id": decided.request_id.decode("latin-1"),
    }


def health_page(
    router: Router, now_s: float, *, stopping: bool = False
) -> tuple[int, dict[str, Any]]:
    """`/healthz`: 200 while there is a replica that could be chosen, and the router goes on."""
    replicas = router.fleet.replicas.values()
    able = sum(replica_row(router, replica, now_s)["eligible"] for replica in replicas)
    content = {"eligible": able, "replicas": len(replicas), "stopping": stopping}
    return (200 if able and not stopping else 503), content


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
        return json_page([decision_row(decided) for decided in reversed(router.recent)])

    async def healthz(_: web.Request) -> web.Response:
        status, content = health_page(router, router.now_s(), stopping=stopping())
        return json_page(content, status)

    async def metrics(_: web.Request) -> web.Response:
        return await metrics_page(collector.collect())

    return pages(replicas, decisions, healthz, metrics)


Page = Callable[[web.Request], Awaitable[web.Response]]


def pages(replicas: Page, decisions: Page, healthz: Page, metrics: Page) -> web.Application:
    """What operators find at an admin port, whoever answers there."""
    app = web.Application()
    app.router.add_get("/replicas", replicas)
    app.router.add_get("/decisions", decisions)
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
