"""What ships, as a policy of the lab: our plugin's, sidecar's and router's own code, in the loop.

    engine step ► StepEncoder ► Node (one for each replica) ► document ► Router, one for each policy

Only the shell around them is played: sockets by a delay, the watch by its rules (`watch.py`), the
clock by the lab's. Dummy requests are not played: a replica that joins is held back by its uptime.
A router's requests are known to it by bytes and cache keys, as those of a body
are: a key behind each segment, and so many bytes per token, give or take.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

from xxhash import xxh3_64_intdigest

from ullage_router.core.ask import Ask
from ullage_router.core.fleet import fleet_of, hear, vouch
from ullage_router.core.inflight import Hold
from ullage_router.core.keys import FIRST_KEYS, LAST_KEYS
from ullage_router.core.rules import Rules
from ullage_router.router import Router
from ullage_shared.snapshot import SCHEMA, Document
from ullage_shared.watch import LOOK_EVERY_S, RENDER_EVERY_S
from ullage_sidecar.channel import encode_hello
from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.reading import Hello
from ullage_sidecar.core.warmup import WarmUpSettings
from ullage_sidecar.node import Node
from ullage_sidecar.publisher import Published
from ullage_sidecar.stats import StepEncoder
from ullage_tune.policy import Cluster, Gauges
from ullage_tune.workload import Request

_T = TypeVar("_T")
HEARTBEAT_S: Final = 1.0
BYTES_PER_TOKEN: Final = 4.0
_SERVER: Final = "http://server-"
_PORT: Final = ":8000"
_COMMON: Final = "sidecars"
MACHINE_UP_S: Final = 1e6
"""Added to the lab's clock: monotonic clocks do not begin with the workload."""


@dataclass(frozen=True, slots=True)
class Feed:
    """How what a sidecar knows comes to routers."""

    interval_s: float = 0.5
    """At least so often (pushed), or exactly so often (polled)."""
    pushed: bool = True
    delay_s: float = 0.002
    """What the network and both loops take."""


@dataclass(frozen=True, slots=True)
class Ours:
    """A setting of what ships; makes its policies."""

    rules: Rules = field(default_factory=Rules)
    sidecar: Mapping[str, Any] = field(default_factory=dict)
    """Tables of the sidecar's configuration, as values."""
    feed: Feed = Feed()
    patience_s: float = 2.0
    streamed: bool = True
    """Do answers come as they are made? In one piece, they do not tell when prompts are done."""
    spread: float = 0.1
    """Of a prompt's bytes per token: the standard deviation of its logarithm."""

    def __call__(self, cluster: Cluster, rng: Random) -> "OurRouter":
        """Make one router's policy. All that are made for one cluster share its sidecars."""
        return OurRouter(cluster, rng, self, Sidecars.of(cluster, self))


class Sidecar:
    """One replica's plugin and sidecar."""

    def __init__(
        self, cluster: Cluster, replica: int, settings: Ours, listeners: Sequence["OurRouter"]
    ) -> None:
        self.url = f"http://sidecar-{replica}:9400"
        self.told: Published | None = None
        self._listeners = listeners
        self._cluster = cluster
        self._replica = replica
        self._feed = settings.feed
        entry = EngineEntry(url=server_of(replica))
        tables = {"warm_up": WarmUpSettings(rounds=0), **settings.sidecar}
        config = Config(node=f"node-{replica}", engine=(entry,), **tables)
        self._node = Node(config, self._now_s() - 60.0)
        self._encoder = StepEncoder(replica + 1)
        self._last = b""
        self._due = False
        cluster.hear(replica, self._step)
        self._beat()
        self._interval()

    def _now_s(self) -> float:
        return MACHINE_UP_S + self._cluster.now_s()

    def _beat(self) -> None:
        alive, now_s = self._cluster.answers(self._replica), self._now_s()
        if alive:
            hardware = self._cluster.hardware(self._replica)
            hello = Hello(
                sender=self._replica + 1,
                name="vllm",
                boot_id=f"boot-{self._replica}",
                pid=1,
                started_s=MACHINE_UP_S + self._cluster.began_s(self._replica),
                models=("model",),
                total_blocks=hardware.blocks,
                block_size=hardware.block_size,
                max_num_seqs=hardware.max_num_seqs,
                said_s=now_s,
            )
            self._node.hear(encode_hello(hello) + self._last, now_s)
        fault = None if alive else "Connection refused"
        self._node.probed("vllm", Probe(fault, gone=not alive), now_s)
        self._look()
        self._cluster.later(HEARTBEAT_S, self._beat)

    def _step(self, stats: Any, iteration: Any) -> None:
        now_s = self._now_s()
        self._last = self._encoder.step(stats, iteration, now_s)
        self._node.hear(self._last, now_s)
        self._look()

    def _look(self) -> None:
        if self._due or not self._feed.pushed:
            return
        if self.told is None or self._node.moved(self.told):
            self._due = True
            since_s = 0.0 if self.told is None else self._now_s() - self.told.at_s
            self._cluster.later(max(LOOK_EVERY_S, RENDER_EVERY_S - since_s), self._push)

    def _push(self) -> None:
        self._due = False
        self._tell()

    def _interval(self) -> None:
        self._tell()
        self._cluster.later(self._feed.interval_s, self._interval)

    def _tell(self) -> None:
        before, now_s = self.told, self._now_s()
        self.told = self._node.published(now_s, now_s)
        if before is not None and before.seq == self.told.seq:
            self._cluster.later(self._feed.delay_s, self._vouch)
            return
        said = Document(schema=SCHEMA, node=f"node-{self._replica}", replicas=self.told.replicas)
        self._cluster.later(self._feed.delay_s, lambda: self._say(said))

    def _say(self, said: Document) -> None:
        for listener in self._listeners:
            listener.take_in(self.url, said)

    def _vouch(self) -> None:
        for listener in self._listeners:
            listener.unchanged(self.url)


class Sidecars:
    """Those of all replicas, of each that joins too; all routers listen to all of them."""

    def __init__(self, cluster: Cluster, settings: Ours) -> None:
        self._cluster = cluster
        self._settings = settings
        self.routers: list[OurRouter] = []
        for replica in cluster.present():
            self._join(replica)
        cluster.on_join(self._join)

    @staticmethod
    def of(cluster: Cluster, settings: Ours) -> "Sidecars":
        """The same for all routers of a run."""
        if _COMMON not in cluster.common:
            cluster.common[_COMMON] = Sidecars(cluster, settings)
        there: Sidecars = cluster.common[_COMMON]
        return there

    def _join(self, replica: int) -> None:
        Sidecar(self._cluster, replica, self._settings, self.routers)


def server_of(replica: int) -> str:
    """Its URL."""
    return f"{_SERVER}{replica}{_PORT}"


def number_of(url: str) -> int:
    """The replica that has this URL."""
    return int(url.removeprefix(_SERVER).removesuffix(_PORT))


class OurRouter:
    """One router."""

    def __init__(self, cluster: Cluster, rng: Random, settings: Ours, sidecars: Sidecars) -> None:
        self.patience_s = settings.patience_s
        self._cluster = cluster
        self._settings = settings
        servers = [server_of(number) for number in cluster.present()]
        self.router = Router(fleet_of(servers), settings.rules, rng, self._now_s)
        self._asks: dict[int, Ask] = {}
        self._holds: dict[int, Hold] = {}
        sidecars.routers.append(self)

    def _now_s(self) -> float:
        return MACHINE_UP_S + self._cluster.now_s()

    def take_in(self, sidecar: str, said: Document) -> None:
        """A sidecar's document has come."""
        router, now_s = self.router, self.router.noted_s()
        router.fleet, _ = hear(router.fleet, sidecar, said, now_s, router.in_flight.taken_at)

    def unchanged(self, sidecar: str) -> None:
        """A sidecar says that nothing has changed."""
        router, now_s = self.router, self.router.noted_s()
        router.fleet = vouch(router.fleet, sidecar, now_s, router.in_flight.taken_at)

    def choose(self, request: Request, now_s: float, without: int | None = None) -> int | None:
        """As the router would."""
        ask = self._asks.get(id(request))
        if ask is None:
            ask = self._asks[id(request)] = asked(request, self._settings.spread)
        tried = () if without is None else (server_of(without),)
        decision = self.router.choose(ask, tried, may_wait=True)
        replica = decision.replica
        if replica is None:
            return None
        tokens = self.router.prompt_tokens(ask)
        unseen_ttft_s = None if self._settings.streamed else decision.ttft_s
        hold, _ = self.router.dispatch(replica, tokens, decision.uncached, unseen_ttft_s)
        self._holds[id(request)] = hold
        return number_of(replica.url)

    def sent(self, request: Request, replica: int, now_s: float) -> None:
        """Told of by `choose`."""

    def first_token(self, request: Request, replica: int, now_s: float) -> None:
        """Its prompt is computed."""
        if self._settings.streamed:
            self._holds[id(request)].begun()

    def finished(self, request: Request, replica: int, now_s: float) -> None:
        """It gives back what it took."""
        ask = self._end(request)
        self.router.tokens.learn(ask.model, ask.prompt_bytes, request.prompt_tokens)
        fleet = self.router.fleet.replicas
        if (known := fleet.get(server_of(replica))) is not None:
            self.router.answered(known, 200)

    def failed(self, request: Request, replica: int, now_s: float) -> None:
        """It is held against the replica."""
        self._end(request)
        if (known := self.router.fleet.replicas.get(server_of(replica))) is not None:
            self.router.failed(known, "reset", "lost")

    def scraped(self, replica: int, gauges: Gauges, now_s: float) -> None:
        """Nobody here goes by that."""

    def _end(self, request: Request) -> Ask:
        self._holds.pop(id(request)).release()
        return self._asks.pop(id(request))


def asked(request: Request, spread: float) -> Ask:
    """What the router would read in its body."""
    dice = Random(request.prompt[-1].text)
    tokens = request.prompt_tokens
    return Ask(
        model="model",
        stream=True,
        prompt_bytes=round(tokens * BYTES_PER_TOKEN * dice.lognormvariate(0.0, spread)),
        keys=kept(chain(segment.text for segment in request.prompt)),
        shares=kept([end / tokens for end in request.ends]),
    )


def chain(texts: Iterable[int]) -> list[int]:
    """A key behind each text."""
    key, keys = 0, []
    for text in texts:
        key = xxh3_64_intdigest(text.to_bytes(8, "little"), key)
        keys.append(key)
    return keys


def kept(each: list[_T]) -> tuple[_T, ...]:
    """Of a long chain the first and the last, as of a talk's."""
    if len(each) > FIRST_KEYS + LAST_KEYS:
        del each[FIRST_KEYS:-LAST_KEYS]
    return tuple(each)
