"""A router's metrics, as Prometheus would read them."""

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from ullage_router.feed import SidecarFeed
from ullage_router.http.proxy import Proxy
from ullage_router.metrics import RouterCollector
from ullage_router.router import Router


def scrape(
    router: Router, proxy: Proxy, feeds: dict[str, SidecarFeed] | None = None
) -> dict[str, Metric]:
    """What Prometheus would read, by name behind the prefix."""
    registry = CollectorRegistry()
    registry.register(RouterCollector(router, proxy, feeds or {}))
    text = generate_latest(registry).decode()
    families = list(text_string_to_metric_families(text))
    assert all(family.name.startswith("ullage_router_") for family in families)
    series = [(s.name, tuple(s.labels.items())) for f in families for s in f.samples]
    assert len(series) == len(set(series)), "a series appears twice"
    return {family.name.removeprefix("ullage_router_"): family for family in families}


def value(metrics: dict[str, Metric], name: str, **labels: str) -> float | None:
    """One sample; None: there is none."""
    for family in metrics.values():
        for sample in family.samples:
            if sample.name == f"ullage_router_{name}" and sample.labels == labels:
                return sample.value
    return None
