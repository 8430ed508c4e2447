"""The aggregator's metrics, made from its plain numbers when somebody scrapes."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from ullage_shared.aggregator.table import Table
from ullage_shared.discovery.listing import Listing, Look
from ullage_shared.feed import Feed, Poll
from ullage_shared.watch import Watched

PREFIX: Final = "ullage_aggregator_"


@dataclass(slots=True)
class Served:
    """How often the document was asked for."""

    full: int = 0
    not_modified: int = 0
    watched: Watched = field(default_factory=Watched)


class AggregatorCollector(Collector):
    """Everything that it counts. Labels are bounded by the configuration and its sources."""

    def __init__(
        self,
        table: Table,
        feeds: Mapping[str, Feed],
        listing: Listing,
        served: Served,
        version: str,
        clock: Callable[[], float],
    ) -> None:
        self._table = table
        self._feeds = feeds
        self._listing = listing
        self._served = served
        self._version = version
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: registration must not render."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metric families, as they stand now."""
        yield from self._sidecars()
        yield from self._sources()
        yield from self._document()
        yield from self._watched()
        build = _gauge("build_info", "Always 1; what runs.", "version")
        build.add_metric((self._version,), 1.0)
        yield build

    def _sidecars(self) -> Iterator[Metric]:
        now_s = self._clock()
        polls = _counter("sidecar_polls", "Looks at the sidecar, by result.", "sidecar", "result")
        failing = _gauge("sidecar_failing", "1 while the latest look has failed.", "sidecar")
        age = _gauge(
            "sidecar_heard_age_seconds",
            "Since the sidecar last spoke; absent until it has.",
            "sidecar",
        )
        for sidecar, feed in self._feeds.items():
            for result in Poll:
                polls.add_metric((sidecar, result), feed.polls[result])
            failing.add_metric((sidecar,), float(feed.failing))
            if feed.heard_s is not None:
                age.add_metric((sidecar,), max(0.0, now_s - feed.heard_s))
        yield from (polls, failing, age)

    def _sources(self) -> Iterator[Metric]:
        looks = _counter(
            "discovery_looks",
            "Looks at a source that lists sidecars (a file, a name), by how they ended.",
            "source",
            "result",
        )
        failing = _gauge(
            "discovery_failing",
            "1 while some of what the source says, or all, is not taken: what it said before "
            "holds.",
            "source",
        )
        servers = _gauge("discovery_servers", "Sidecars that are known of the source.", "source")
        for source, seeker in self._listing.seekers.items():
            for result in Look:
                looks.add_metric((source, result), seeker.looks[result])
            failing.add_metric((source,), float(bool(seeker.known.problem)))
            servers.add_metric((source,), len(seeker.known.urls))
        yield from (looks, failing, servers)

    def _document(self) -> Iterator[Metric]:
        published = self._table.published(self._clock(), 0.0)
        ages = [replica.age_s for replica in published.replicas]
        yield _one(_gauge("replicas", "Replicas in the document."), len(ages))
        oldest = _gauge("oldest_snapshot_age_seconds", "Age of the oldest snapshot in it; 0: none.")
        yield _one(oldest, max(ages, default=0.0))
        disputed = _gauge(
            "replicas_disputed",
            "Replicas that another sidecar claims under another name; `/healthz` tells which.",
        )
        yield _one(disputed, len(self._table.disputed))
        yield _one(_gauge("document_bytes", "Size of the document."), len(published.body))
        yield _one(_counter("renders", "Times the document was rendered."), self._table.renders)
        requests = _counter("snapshot_requests", "Answers with the document, or 304.", "kind")
        requests.add_metric(("full",), self._served.full)
        requests.add_metric(("not_modified",), self._served.not_modified)
        yield requests

    def _watched(self) -> Iterator[Metric]:
        watched = self._served.watched
        yield _one(_gauge("snapshot_watchers", "Who watches the document now."), watched.now)
        lines = _counter(
            "snapshot_lines",
            "Lines sent to those who watch: a document, or that it is unchanged.",
            "kind",
        )
        lines.add_metric(("document",), watched.documents)
        lines.add_metric(("unchanged",), watched.unchanged)
        dropped = _counter(
            "snapshot_watchers_dropped",
            "Those cut off because they took nothing, and those that were too many.",
            "why",
        )
        dropped.add_metric(("stalled",), watched.stalled)
        dropped.add_metric(("refused",), watched.refused)
        yield from (lines, dropped)


def registry(collector: AggregatorCollector) -> CollectorRegistry:
    """All that `/metrics` shows, the process's own CPU and memory included."""
    everything = CollectorRegistry()
    everything.register(collector)
    ProcessCollector(registry=everything)
    return everything


def _counter(name: str, meaning: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"{PREFIX}{name}", meaning, labels=labels)


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{PREFIX}{name}", meaning, labels=labels)


def _one(family: CounterMetricFamily | GaugeMetricFamily, value: float) -> Metric:
    family.add_metric((), value)
    return family
