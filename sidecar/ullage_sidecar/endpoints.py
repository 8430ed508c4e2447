"""What the sidecar answers, as pure functions, and the thin handlers that ask them.

GET /v1/snapshots    the document; its ETag changes with its content, ages left out
    ?watch           the same as it changes, a line each time (see `watch`)
GET /v1/steps        what the plugins say, to record it (see `recorder`)
GET /v1/orca         the load of the node's only server, as an ORCA report; /v1/orca/NAME of one
GET /healthz         200 as long as this process runs, and how many engines it hears
GET /metrics         Prometheus
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client import CollectorRegistry

from ullage_shared import snapshot
from ullage_shared.answers import JSON, Answer, metrics, response, snapshots
from ullage_shared.watch import Watched, Watchers
from ullage_sidecar.core.assess import Assessment
from ullage_sidecar.core.engine import Engine
from ullage_sidecar.core.named import named, servers
from ullage_sidecar.core.orca import report
from ullage_sidecar.core.render import label
from ullage_sidecar.node import Node
from ullage_sidecar.publisher import Published
from ullage_sidecar.recorder import PATH as STEPS_PATH
from ullage_sidecar.recorder import Recorded, Recorder

ORCA_PATH: Final = "/v1/orca"


@dataclass(slots=True)
class Served:
    """How often the document was asked for, and by HAProxy one line of it."""

    full: int = 0
    not_modified: int = 0
    agent_checks: int = 0
    agent_checks_misnamed: int = 0
    watched: Watched = field(default_factory=Watched)
    recorded: Recorded = field(default_factory=Recorded)


def orca(published: Published, asked: str) -> Answer:
    """The load report of what `asked` means; see `core.named`. 404: nobody, and whom it may be."""
    meant = named(published.replicas, asked)
    if meant:
        return Answer(200, msgspec.json.encode(report(meant)), {"Content-Type": JSON})
    wanted = ", ".join(f"{ORCA_PATH}/{name}" for name in servers(published.replicas))
    missing = f"no engine {asked!r}" if asked else "this node has several"
    text = f"{missing}; wanted one of: {wanted}"
    return Answer(404, text.encode(), {"Content-Type": "text/plain; charset=utf-8"})


def healthz(engines: Iterable[tuple[Engine, Assessment]], version: str) -> Answer:
    """That this process runs, which engines it knows, and how many of them it hears."""
    judged = {label(engine): assessment for engine, assessment in engines}
    body = {
        "version": version,
        "heard": sum(not assessment.silent for assessment in judged.values()),
        "engines": {name: assessment.state for name, assessment in judged.items()},
    }
    return Answer(200, msgspec.json.encode(body), {"Content-Type": JSON})


def application(
    node: Node,
    registry: CollectorRegistry,
    served: Served,
    recorder: Recorder,
    version: str,
    clock: Callable[[], float],
    wall: Callable[[], float],
) -> web.Application:
    """The HTTP side of the process."""
    watchers = Watchers(node, served.watched, clock, wall)

    async def let_go(_: web.Application) -> None:
        watchers.close()
        recorder.close()

    async def get_snapshots(request: web.Request) -> web.StreamResponse:
        if snapshot.WATCH in request.query:
            return await watchers.answer(request)
        answer = snapshots(node.published(clock(), wall()), request.headers.get("If-None-Match"))
        if answer.status == 304:
            served.not_modified += 1
        else:
            served.full += 1
        return response(answer)

    async def get_orca(request: web.Request) -> web.Response:
        return response(orca(node.published(clock(), wall()), request.match_info.get("name", "")))

    async def get_healthz(_: web.Request) -> web.Response:
        return response(healthz(node.assessed(clock()), version))

    async def get_metrics(_: web.Request) -> web.Response:
        return response(metrics(registry))

    app = web.Application()
    app.on_shutdown.append(let_go)
    app.router.add_get(snapshot.PATH, get_snapshots)
    app.router.add_get(STEPS_PATH, recorder.answer)
    app.router.add_get(ORCA_PATH, get_orca)
    app.router.add_get(f"{ORCA_PATH}/{{name}}", get_orca)
    app.router.add_get("/healthz", get_healthz)
    app.router.add_get("/metrics", get_metrics)
    return app
