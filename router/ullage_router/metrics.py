"""The router's metrics in Prometheus' form, made from its plain numbers when asked.

Labels are bounded: `replica` by the fleet, `sidecar` by the configuration and its sources, `source`
by the configuration, `code` of responses by what replicas answer, the others by enums. A counter's
series are there from the start, at 0: what appears at 1 has no rate.

A replica that leaves takes its series along: what it is now at once, its counts when it has
finished what it has, or when another has its name.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, Metric, ProcessCollector
from prometheus_client.registry import Collector

from ullage_router.core.decision import Why
from ullage_router.core.fleet import Replica
from ullage_router.core.gate import State
from ullage_router.core.lineup import Basis, Standing, left_out, stand
from ullage_router.families import counter, gauge, histogram, one
from ullage_router.http.errors import CODES, NoRoom
from ullage_router.http.proxy import Proxy
from ullage_router.http.upstream import Failure
from ullage_router.router import Router
from ullage_router.tally import Tally
from ullage_shared.discovery.listing import Listing, Look
from ullage_shared.feed import Feed, Poll
from ullage_shared.version import VERSION

Tallies = list[tuple[str, Tally]]
"""By replica's name."""


def registry(
    router: Router, proxy: Proxy, feeds: Mapping[str, Feed], listings: Sequence[Listing]
) -> CollectorRegistry:
    """All that `/metrics` shows, the process's own CPU, memory and descriptors included."""
    everything = CollectorRegistry()
    everything.register(RouterCollector(router, proxy, feeds, listings))
    ProcessCollector(registry=everything)
    return everything


class RouterCollector(Collector):
    """Everything that the router counts."""

    def __init__(
        self,
        router: Router,
        proxy: Proxy,
        feeds: Mapping[str, Feed],
        listings: Sequence[Listing] = (),
    ) -> None:
        self._router = router
        self._proxy = proxy
        self._feeds = feeds
        self._listings = listings

    def collect(self) -> Iterator[Metric]:
        """All metric families, as they stand now."""
        router = self._router
        present = router.fleet.replicas.values()
        by_name = {r.id: r for r in (*router.leaving.values(), *present)}
        tallies = [(name, router.tallies.get(r.key) or Tally()) for name, r in by_name.items()]
        yield from self._sent(by_name.values(), tallies)
        yield from _answered(tallies)
        yield from self._fleet(present)
        yield from self._decided()
        yield from self._overload()
        yield from self._sidecars()
        yield from self._sources()
        yield from self._itself()

    def _sent(self, replicas: Iterable[Replica], tallies: Tallies) -> Iterator[Metric]:
        dispatched = counter("dispatched", "replica")
        tokens = counter("prompt_tokens", "replica")
        cached = counter("cached_prompt_tokens", "replica")
        for name, tally in tallies:
            dispatched.add_metric([name], tally.dispatched)
            tokens.add_metric([name], tally.prompt_tokens)
            cached.add_metric([name], tally.cached_tokens)
        in_flight = gauge("in_flight", "replica")
        for replica in replicas:
            in_flight.add_metric([replica.id], self._router.in_flight.by_replica[replica.key])
        yield from (dispatched, tokens, cached, in_flight)

    def _fleet(self, replicas: Iterable[Replica]) -> Iterator[Metric]:
        now_s = self._router.now_s()
        score = gauge("replica_score", "replica")
        age = gauge("replica_snapshot_age_seconds", "replica")
        aside = gauge("replica_set_aside", "replica")
        ejected = gauge("replica_ejected", "replica")
        struck, thrown = left_out(self._router.fleet, now_s, self._router.rules)
        standings = gauge("replica_standing", "replica", "standing")
        for replica in replicas:
            if replica.snapshot is not None and replica.snapshot.capacity_score is not None:
                score.add_metric([replica.id], replica.snapshot.capacity_score)
            age_s = replica.age_s(now_s)
            if age_s is not None:
                age.add_metric([replica.id], age_s)
            aside.add_metric([replica.id], float(replica.key in struck))
            ejected.add_metric([replica.id], float(replica.key in thrown))
            now = stand(replica, now_s, self._router.rules.choose)
            for standing in Standing:
                standings.add_metric([replica.id, standing], float(standing is now))
        yield from (score, age, aside, ejected, standings)

    def _decided(self) -> Iterator[Metric]:
        router = self._router
        decisions = counter("decisions", "why")
        for why in Why:
            decisions.add_metric([why], router.decisions[why])
        refusals = counter("refusals", "code")
        for code in CODES:
            refusals.add_metric([code], router.refusals[code])
        routing_by = gauge("routing_by", "by")
        now = router.odds().line_up.basis
        for basis in Basis:
            routing_by.add_metric([basis], float(basis is now))
        yield from (decisions, routing_by, refusals)
        yield one(counter("second_tries"), router.second_tries)
        yield one(counter("second_tries_denied"), router.tries_denied)
        may_try = self._proxy.budget.allows(router.now_s())
        yield one(gauge("second_tries_exhausted"), float(not may_try))
        yield one(gauge("cache_keys"), router.keys_remembered)
        yield one(gauge("hot_keys"), len(router.hot_keys()))

    def _overload(self) -> Iterator[Metric]:
        room = self._proxy.waiting
        state = gauge("overload", "state")
        for each in State:
            state.add_metric([each.value], float(each is room.state))
        refused = counter("no_capacity", "how")
        for how in NoRoom:
            refused.add_metric([how], room.refused[how])
        yield from (state, refused)
        yield one(counter("overloads"), room.episodes)
        yield one(counter("queued"), room.queued)
        yield one(gauge("queue_length"), room.waiting)
        yield one(gauge("queue_bytes"), room.waiting_bytes)
        yield histogram("queue_wait_seconds", [([], room.wait_s)])

    def _sidecars(self) -> Iterator[Metric]:
        now_s = self._router.now_s()
        polls = counter("sidecar_polls", "sidecar", "result")
        failing = gauge("sidecar_failing", "sidecar")
        age = gauge("sidecar_heard_age_seconds", "sidecar")
        for sidecar, feed in self._feeds.items():
            for result in Poll:
                polls.add_metric([sidecar, result], feed.polls[result])
            failing.add_metric([sidecar], float(feed.failing))
            if feed.heard_s is not None:
                age.add_metric([sidecar], max(0.0, now_s - feed.heard_s))
        yield from (polls, failing, age)

    def _sources(self) -> Iterator[Metric]:
        looks = counter("discovery_looks", "list", "source", "result")
        failing = gauge("discovery_failing", "list", "source")
        servers = gauge("discovery_servers", "list", "source")
        for listing in self._listings:
            for source, seeker in listing.seekers.items():
                for result in Look:
                    looks.add_metric([listing.name, source, result], seeker.looks[result])
                failing.add_metric([listing.name, source], float(bool(seeker.known.problem)))
                servers.add_metric([listing.name, source], len(seeker.known.urls))
        yield from (looks, failing, servers)

    def _itself(self) -> Iterator[Metric]:
        proxy = self._proxy
        yield one(gauge("client_connections"), len(proxy.clients))
        yield one(gauge("client_connections_limit"), proxy.max_connections)
        yield one(gauge("idle_upstream_connections"), proxy.pool.idle)
        yield one(counter("clients_stalled"), self._router.clients_stalled)
        yield one(counter("handshakes_failed"), proxy.handshakes_failed)
        yield histogram("event_loop_lateness_seconds", [([], proxy.late_s)])
        build = gauge("build_info", "version")
        build.add_metric([VERSION], 1.0)
        yield build


def _answered(tallies: Tallies) -> Iterator[Metric]:
    cut = counter("responses_cut", "replica")
    gone = counter("clients_gone", "replica")
    ejections = counter("ejections", "replica")
    size = counter("response_bytes", "replica")
    chunks = counter("response_chunks", "replica")
    responses = counter("responses", "replica", "code")
    failures = counter("failures", "replica", "kind")
    for name, tally in tallies:
        cut.add_metric([name], tally.cut)
        gone.add_metric([name], tally.client_gone)
        ejections.add_metric([name], tally.ejections)
        size.add_metric([name], tally.response_bytes)
        chunks.add_metric([name], tally.chunks)
        for code, count in sorted(tally.responses.items()):
            responses.add_metric([name, str(code)], count)
        for kind in Failure:
            failures.add_metric([name, kind], tally.failures[kind])
    yield from (responses, failures, ejections, cut, gone, size, chunks)
    for name, rows in (
        ("time_to_first_byte_seconds", [([i], t.first_byte_s) for i, t in tallies]),
        ("duration_seconds", [([i], t.duration_s) for i, t in tallies]),
        ("score_at_decision", [([i], t.score) for i, t in tallies]),
    ):
        yield histogram(name, rows, "replica")
