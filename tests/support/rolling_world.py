"""A cluster on paper for `rolling.upgrade`: three hosts, two routers, a clock that is told to move.

What a host was told shows in the routers' pages as time goes by: a server that starts is `starting`
for 20 s, `warming` and `ramping` for 10 s each, and then serves, as another incarnation.
"""

from dataclasses import dataclass, field, replace

from rolling.seen import Page, Seen
from rolling.upgrade import Upgrade, What

HOSTS = ("gpu-01", "gpu-02", "gpu-03")
ROUTERS = {"r-1": "http://r-1:9401", "r-2": "http://r-2:9401"}
STOP, START, RESTART = "stop", "start", "restart"
_LIFE = (("starting", 20.0), ("warming", 30.0), ("ramping", 40.0))


def seen(host: str, **changes: object) -> Seen:
    """A replica that serves."""
    well = Seen(
        f"{host}/a", f"http://{host}:8000", "serving", "", "serving", 0.1, "boot-1", frozenset("m")
    )
    return replace(well, **changes)


@dataclass
class World:
    """The parts that a test breaks are its fields."""

    replicas: dict[str, Seen] = field(default_factory=lambda: {host: seen(host) for host in HOSTS})
    routers: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ROUTERS, -3600.0))
    """Since when each runs."""
    fails: dict[tuple[str, str], str] = field(default_factory=dict)
    """What goes wrong, by host and command."""
    silent: set[str] = field(default_factory=set)
    """Routers that do not answer."""
    never_ready: set[str] = field(default_factory=set)
    ignores: set[str] = field(default_factory=set)
    """Hosts on which commands succeed and change nothing."""
    clock_s: float = 1000.0
    told: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    began_s: dict[str, float] = field(default_factory=dict)

    def look(self, url: str) -> Page:
        name = url.removeprefix("http://").removesuffix(":9401")
        if name in self.silent:
            raise ConnectionRefusedError("refused")
        rows = tuple(self._now(host, row) for host, row in self.replicas.items())
        return Page("0.1.0", self.clock_s - self.routers[name], False, rows)

    def _now(self, host: str, row: Seen) -> Seen:
        if host not in self.began_s:
            return row
        for state, until_s in _LIFE:
            if self.clock_s < self.began_s[host] + until_s or host in self.never_ready:
                return replace(row, now=state, state=state, say="")
        return replace(row, now="serving", state="serving", boot_id="boot-2")

    def run(self, host: str, command: str, within_s: float) -> str:
        self.told.append(f"{host} {command}")
        if problem := self.fails.get((host, command)):
            return problem
        if host in self.ignores:
            return ""
        if command == STOP:
            self.replicas[host] = replace(self.replicas[host], now="down", state="down")
        elif command == START:
            self.began_s[host] = self.clock_s
        elif host in self.routers:
            self.routers[host] = self.clock_s
        self.clock_s += 2.0
        return ""

    def now_s(self) -> float:
        return self.clock_s

    def sleep(self, seconds: float) -> None:
        self.clock_s += seconds

    def say(self, text: str) -> None:
        self.said.append(text)

    def upgrade(self, what: What = What.REPLICAS, *hosts: str) -> Upgrade:
        """Of all hosts, or those."""
        commands = (STOP, START) if what is What.REPLICAS else (RESTART,)
        usual = tuple(self.routers) if what is What.ROUTERS else HOSTS
        return Upgrade(what, hosts or usual, commands, ROUTERS, 100.0, self)
