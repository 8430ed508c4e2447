"""Prometheus metrics, read from the node's state when somebody scrapes.

What is told of each engine is in `engine_metrics`; here is what is told of servers (label `server`:
their names in the configuration) and of the sidecar itself.
"""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ullage_sidecar.dummy_client import Result
from ullage_sidecar.endpoints import Served
from ullage_sidecar.engine_metrics import PREFIX, families
from ullage_sidecar.node import Node


def registry(
    node: Node, served: Served, version: str, clock: Callable[[], float]
) -> CollectorRegistry:
    """Everything `/metrics` shows, the process's own CPU and memory included."""
    everything = CollectorRegistry()
    everything.register(NodeCollector(node, served, version, clock))
    ProcessCollector(registry=everything)
    PlatformCollector(registry=everything)
    return everything


class NodeCollector(Collector):
    """Renders the node's state on demand: nothing is counted twice, nothing goes stale."""

    def __init__(
        self, node: Node, served: Served, version: str, clock: Callable[[], float]
    ) -> None:
        self._node = node
        self._served = served
        self._version = version
        self._clock = clock

    def describe(self) -> Iterable[Metric]:
        """Nothing in advance: registration must not judge engines."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Judge every engine now, and tell."""
        now_s = self._clock()
        config = self._node.config
        yield from families(list(self._node.assessed(now_s)), now_s, config.node, config.score)
        yield from self._own()

    def _own(self) -> Iterator[Metric]:
        strays = self._node.strays
        refused = CounterMetricFamily(
            f"{PREFIX}datagrams_ignored",
            "Datagrams that reached no engine, by why.",
            labels=("why",),
        )
        refused.add_metric(("malformed",), strays.malformed)
        refused.add_metric(("unmatched",), strays.unmatched)
        refused.add_metric(("rival",), strays.rival)
        refused.add_metric(("before_hello",), strays.early)
        yield refused
        checks = CounterMetricFamily(
            f"{PREFIX}health_checks", "Questions to /health of a server.", labels=("server",)
        )
        failures = CounterMetricFamily(
            f"{PREFIX}health_check_failures", "Those without a 200.", labels=("server",)
        )
        for name, probes in self._node.probes.items():
            checks.add_metric((name,), probes.asked)
            failures.add_metric((name,), probes.failed)
        yield checks
        yield failures
        dummies = CounterMetricFamily(
            f"{PREFIX}warm_up_requests",
            "Dummy requests, by how they ended: answered, refused, failed.",
            labels=("server", "result"),
        )
        for name, results in self._node.dummies.items():
            for result in Result:
                dummies.add_metric((name, result.value), results[result])
        yield dummies
        yield from self._scrapes()
        asked = CounterMetricFamily(
            f"{PREFIX}snapshot_requests", "Answers to /v1/snapshots.", labels=("status",)
        )
        asked.add_metric(("200",), self._served.full)
        asked.add_metric(("304",), self._served.not_modified)
        yield asked
        agent = CounterMetricFamily(
            f"{PREFIX}agent_checks",
            "HAProxy's agent-checks answered, by whether they named an engine of this node.",
            labels=("named",),
        )
        agent.add_metric(("yes",), self._served.agent_checks)
        agent.add_metric(("no",), self._served.agent_checks_misnamed)
        yield agent
        yield from self._watched()
        yield from self._recorded()
        yield CounterMetricFamily(
            f"{PREFIX}snapshot_renders", "Documents rendered.", self._node.publisher.renders
        )
        build = GaugeMetricFamily(
            f"{PREFIX}build_info", "Always 1; what runs.", labels=("version",)
        )
        build.add_metric((self._version,), 1)
        yield build

    def _scrapes(self) -> Iterator[Metric]:
        made = CounterMetricFamily(
            f"{PREFIX}scrapes", "Questions to /metrics of a server.", labels=("server",)
        )
        failed = CounterMetricFamily(
            f"{PREFIX}scrape_failures", "Those without a usable page.", labels=("server",)
        )
        took = GaugeMetricFamily(
            f"{PREFIX}scrape_duration_seconds", "What the last one took.", labels=("server",)
        )
        for name, scrapes in self._node.scrapes.items():
            made.add_metric((name,), scrapes.made)
            failed.add_metric((name,), scrapes.failed)
            if scrapes.last_s is not None:
                took.add_metric((name,), scrapes.last_s)
        yield from (made, failed, took)

    def _watched(self) -> Iterator[Metric]:
        watched = self._served.watched
        yield GaugeMetricFamily(
            f"{PREFIX}snapshot_watchers", "Who watches the document now.", watched.now
        )
        lines = CounterMetricFamily(
            f"{PREFIX}snapshot_lines",
            "Lines sent to those who watch: a document, or that it is unchanged.",
            labels=("kind",),
        )
        lines.add_metric(("document",), watched.documents)
        lines.add_metric(("unchanged",), watched.unchanged)
        yield lines
        dropped = CounterMetricFamily(
            f"{PREFIX}snapshot_watchers_dropped",
            "Those cut off because they took nothing, and those that were too many.",
            labels=("why",),
        )
        dropped.add_metric(("stalled",), watched.stalled)
        dropped.add_metric(("refused",), watched.refused)
        yield dropped

    def _recorded(self) -> Iterator[Metric]:
        recorded = self._served.recorded
        yield GaugeMetricFamily(
            f"{PREFIX}recordings", "Who records the engines' steps now.", recorded.now
        )
        yield CounterMetricFamily(
            f"{PREFIX}recordings_refused", "Those that were too many.", recorded.refused
        )
        yield CounterMetricFamily(
            f"{PREFIX}recording_lost_bytes",
            "Steps not handed on to recorders that were too slow.",
            recorded.lost_bytes,
        )
