"""A sidecar's node beside a server that fails in every way, in time that is only counted.

Each tenth of a second everybody does what is due: plugins step and beat, /health is asked, the node
has its pulse, and somebody looks at what is published; after an absence, datagram by datagram.
"""

from dataclasses import dataclass, field, replace
from itertools import groupby

from ullage_sidecar.channel import encode_hello, encode_step
from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.reading import Hello
from ullage_sidecar.node import Node

T = 10_000.0
TICK_S = 0.1
QUEUE = 300
GOOD = Probe(None)
REFUSED = Probe("Connection refused", gone=True)
ILL = Probe("status 503")
LATE = Probe("no answer in time", certain=False)


@dataclass
class Plugin:
    """One stat logger in a server's API process."""

    boot_id: str = "boot-1"
    pid: int = 11
    started_s: float = T - 5000.0
    sender: int = 1
    rank: int = 0
    ranks: int = 1
    running: int = 0
    steps: bool = True
    """Does its engine step, if it has work? An idle one never does."""
    beats: bool = True
    """Does its thread run?"""
    phase: int = 3
    seq: int = 1
    """Its steps so far. After none it repeats its hello alone."""
    at_s: float = T - 1.0

    def says(self, tick, now_s):
        """Its datagrams of this tenth of a second."""
        said = []
        if self.steps and self.running:
            said.append(self.step(now_s))
        if self.beats and tick % 10 == self.phase:
            hello = Hello(self.sender, "vllm", self.boot_id, self.pid, self.started_s, self.rank,
                          self.ranks, total_blocks=101, max_num_seqs=8, said_s=now_s)  # fmt: skip
            said.append(encode_hello(hello))
            if self.seq:
                said.append(self._last())
        return said

    def step(self, now_s):
        self.seq += 1
        self.at_s = now_s
        return self._last()

    def _last(self):
        kv_usage = 0.5 if self.running else 0.0
        values = (self.running, 0, kv_usage, 0, 0, 0, 0, 0)
        return encode_step(self.sender, self.seq, self.at_s, values)


HEALTH_S, LIFE_S, BEAT_S = 2.0, 3.0, 1.0
IDLE, BUSY = Plugin(), Plugin(running=4)
SILENT = "its plugin is silent"
HUNG = "has work, made no step for more than 30 s"


@dataclass
class World:
    """Who is there, how they are, and what was published: (seconds, state, reason, score)."""

    health: Probe = GOOD
    plugins: list[Plugin] = field(default_factory=lambda: [Plugin()])
    awake: bool = True
    """Does the sidecar run?"""
    now_s: float = T
    wall_s: float = 1.7e9

    def __post_init__(self):
        engine = EngineEntry(name="vllm", url="http://x:1")
        self.node = Node(Config(node="n", engine=(engine,)), self.now_s)
        self.tick = 0
        self.queue = []
        self.seen = []
        self.node.probed("vllm", self.health, self.now_s)

    def run(self, seconds):
        """Let it go on; returns what was seen, from now on counted, each change once."""
        begun_s, self.seen = self.now_s, []
        for _ in range(round(seconds / TICK_S)):
            self.now_s += TICK_S
            self.tick += 1
            waited = bool(self.queue)
            for plugin in self.plugins:
                self.queue = self.queue + plugin.says(self.tick, self.now_s)
                self.queue = self.queue if self.awake else self.queue[:QUEUE]
            if self.awake:
                self._sidecar(self.now_s - begun_s, waited)
        return self.seen

    def _sidecar(self, seconds, waited):
        self.look(seconds)
        if self.tick % 2 == 0:
            self.node.pulse(self.now_s)
        while self.queue:
            self.node.hear(self.queue.pop(0), self.now_s)
            if waited:
                self.look(seconds)
        if self.tick % 10 == 6:
            self.node.probed("vllm", self.health, self.now_s)
        self.look(seconds)

    def look(self, seconds):
        """See what is published this instant, however recently somebody looked."""
        self.node._published_is_old()
        for replica in self.node.published(self.now_s, self.wall_s).replicas:
            score = replica.capacity_score
            known = None if score is None else score > 0.0
            row = (replica.id, replica.state.value, replica.reason, known)
            last = [seen[1:] for seen in self.seen if seen[1] == replica.id]
            if not last or last[-1] != row:
                self.seen.append((round(seconds, 1), *row))

    def after(self, *, seconds, **changes):
        """Change something, then `run`."""
        for name, value in changes.items():
            setattr(self, name, value)
        return self.run(seconds)


def at_work():
    """An engine at work that has served for long, and all is well."""
    world = World(plugins=with_(BUSY))
    world.run(12.0)
    assert world.run(1.0) == [(0.1, "n/vllm", "serving", "", True)]
    return world


def with_(plugin, **changes):
    """The same plugin, changed: a list of it alone."""
    return [replace(plugin, **changes)]


def standings(world):
    return [(state, reason) for _, _, state, reason, _ in world.seen]


def states(world):
    return [state for state, _ in groupby(row[2] for row in world.seen)]


def when(world, state, reason):
    """Seconds until it was first seen so."""
    return next(row[0] for row in world.seen if row[2:4] == (state, reason))
