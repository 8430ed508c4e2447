"""What both commands show to Prometheus, made in this process: every family, with every series that
is there from the start."""

import asyncio
import random
import time
from collections.abc import Iterable, Iterator

import aiohttp
from prometheus_client import Metric, ProcessCollector

from ullage_router.config import Limits
from ullage_router.core.fleet import fleet_of
from ullage_router.core.rules import Rules
from ullage_router.feed import SidecarFeed
from ullage_router.http.proxy import Proxy
from ullage_router.metrics import RouterCollector
from ullage_router.overview import own_metrics
from ullage_router.pace import Pace
from ullage_router.router import Router
from ullage_shared.aggregator import config as aggregator
from ullage_shared.aggregator import files
from ullage_shared.aggregator.metrics import AggregatorCollector
from ullage_shared.aggregator.serve import Aggregator
from ullage_shared.discovery.listing import Listing, Seeker
from ullage_shared.discovery.source import parse_source
from ullage_shared.tls import peers
from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.endpoints import Served
from ullage_sidecar.metrics import NodeCollector
from ullage_sidecar.node import Node

SIDECAR, REPLICA = "http://gpu-01:9400", "http://gpu-01:8000"


def router_families() -> list[Metric]:
    """Those of a router with a sidecar, a replica and workers."""

    async def made() -> list[Metric]:
        router = Router(fleet_of([REPLICA]), Rules(), random.Random(0))
        proxy = Proxy(router, Limits(), asyncio.get_running_loop(), random.Random(0), lambda: None)
        try:
            async with aiohttp.ClientSession() as session:
                feeds = {SIDECAR: SidecarFeed(router, session, SIDECAR, Pace())}
                listing = Listing("sidecars", lambda: None)
                source = parse_source("file:/etc/ullage/sidecars.yml")
                listing.seekers[source.text] = Seeker(source, listing.name, lambda: None)
                collector = RouterCollector(router, proxy, feeds, [listing])
                return [*collector.collect(), *own_metrics(0, 0, 0)]
        finally:
            proxy.close()

    return asyncio.run(made())


def aggregator_families() -> list[Metric]:
    """Those of an aggregator with a sidecar."""

    async def made() -> list[Metric]:
        config = aggregator.Config(node="agg", sidecars=(SIDECAR,))
        async with aiohttp.ClientSession() as session:
            held = files.read(config)
            it = Aggregator(config, held, peers(held.peers), session)
            source = parse_source("file:/etc/ullage/sidecars.yml")
            it.listing.seekers[source.text] = Seeker(source, it.listing.name, lambda: None)
            collector = AggregatorCollector(
                it.table, it.feeds, it.listing, it.served, "0", time.monotonic
            )
            families = list(collector.collect())
            await it.feeds.stop()
            return families

    return asyncio.run(made())


def sidecar_families() -> list[Metric]:
    """Those of a sidecar with one engine, never heard of."""
    node = Node(Config(node="gpu-01", engine=(EngineEntry(url=REPLICA),)), 0.0)
    return list(NodeCollector(node, Served(), "0", time.monotonic).collect())


def process_families() -> list[Metric]:
    """What both show of their processes."""
    return list(ProcessCollector(registry=None).collect())


_SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}


def labels_by_name(families: Iterable[Metric]) -> dict[str, set[str]]:
    """The labels of every sample that there may be, by its name."""
    found: dict[str, set[str]] = {}
    for family in families:
        for suffix in _SUFFIXES.get(family.type, ("",)):
            labels = set(getattr(family, "_labelnames", ()))
            found[family.name + suffix] = labels | ({"le"} if suffix == "_bucket" else set())
    return found


def values_by_label(families: Iterable[Metric]) -> Iterator[tuple[str, str, str]]:
    """Name, label and value of all that is there from the start."""
    for family in families:
        for sample in family.samples:
            for label, value in sample.labels.items():
                yield sample.name, label, value
