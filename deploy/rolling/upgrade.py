"""One host after the other: look that the others serve, do it, wait until it serves again.

Rules
* Nothing is done on a host before every router says that all other hosts serve. A glance may have
  caught a passing moment, so it is looked for `PATIENCE_S`.
* The next host's turn comes when every router says that this one serves again, in full.
* A router is restarted while all other routers serve, and all replicas.
* The first thing that goes wrong is the last thing that is done.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final, Protocol

from rolling.seen import (
    Page,
    PageError,
    not_back,
    not_spared,
    not_taken_over,
    others_unwell,
    troubles,
)

PATIENCE_S: Final = 5.0
"""For others to be well before a host is begun with."""
LOOK_EVERY_S: Final = 1.0


class What(StrEnum):
    """What is upgraded."""

    REPLICAS = "replicas"
    SIDECARS = "sidecars"
    ROUTERS = "routers"


class Stop(Exception):  # noqa: N818 -- it ends the upgrade, by whosever fault
    """It goes no further, and why."""


class Refused(Stop):
    """The next host was not begun with: others are not well."""


class World(Protocol):
    """All that is done and seen outside of this program."""

    def look(self, url: str) -> Page:
        """Ask a router. Raises `OSError`, `PageError`."""

    def run(self, host: str, command: str, within_s: float) -> str:
        """Run a command on a host. Returns what went wrong; empty: nothing."""

    def now_s(self) -> float:
        """Monotonic."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def say(self, text: str) -> None:
        """Tell the operator."""


@dataclass
class Upgrade:
    """Of all hosts."""

    what: What
    hosts: Sequence[str]
    commands: Sequence[str]
    routers: Mapping[str, str]
    """Admin URLs by host."""
    within_s: float
    """For each command, and for each host to be back."""
    world: World
    done: list[str] = field(default_factory=list)
    at: str = ""
    """The host that has been begun with, and is not done."""

    def go(self) -> None:
        """Do it all. Raises `Stop`."""
        for host in self.hosts:
            self._wait(PATIENCE_S, partial(self._before, host), Refused, host)
            self._upgrade(host)

    @property
    def left(self) -> list[str]:
        """Hosts that are not done, in order: with them it can be begun again."""
        return [host for host in self.hosts if host not in self.done]

    def _upgrade(self, host: str) -> None:
        world, began_s = self.world, self.world.now_s()
        pages = [page for page in (self._look(name) for name in self.routers) if page]
        boots = frozenset(
            row.boot_id for page in pages for row in page.at(host) if row.boot_id is not None
        )
        urls = frozenset(row.url for page in pages for row in page.replicas)
        self.at = host
        for command in self.commands:
            world.say(f"{host}: {command}")
            if problem := world.run(host, command, self.within_s):
                raise Stop(f"{host}: {command}: {problem}")
        ended_s = world.now_s()

        def after() -> list[str]:
            now_s = world.now_s()  # Before the look, so that nothing seems newer than it is.
            if self.what is What.ROUTERS:
                return self._of(host, lambda page: not_taken_over(page, now_s - began_s, urls))
            gone = boots if self.what is What.REPLICAS else frozenset[str]()
            return self._all(lambda page: not_back(page, host, now_s - ended_s, gone))

        self._wait(self.within_s, after, Stop, host)
        world.say(f"{host}: serves again, after {world.now_s() - began_s:.0f} s")
        self.done.append(host)
        self.at = ""

    def _before(self, host: str) -> list[str]:
        if self.what is What.REPLICAS:
            return self._all(lambda page: not_spared(page, host))
        if self.what is What.SIDECARS:
            return self._all(lambda page: others_unwell(page, host))
        own = self._look(host)  # None, where it is to be put right.
        others = [name for name in self.routers if name != host]
        found = self._all(lambda page: troubles(page.replicas), others)
        return found or (troubles(own.replicas) if own else [])

    def _all(
        self, judge: Callable[[Page], list[str]], names: Iterable[str] | None = None
    ) -> list[str]:
        """What is amiss by any router's word, each once, and who says so."""
        said_by: dict[str, list[str]] = {}
        for name in self.routers if names is None else names:
            for trouble in self._of(name, judge):
                said_by.setdefault(trouble, []).append(name)
        return [f"{trouble} (says {', '.join(who)})" for trouble, who in said_by.items()]

    def _of(self, name: str, judge: Callable[[Page], list[str]]) -> list[str]:
        """What is amiss by this router's word, or with itself."""
        try:
            page = self.world.look(self.routers[name])
        except (OSError, PageError) as error:
            return [f"no word from the router: {error}"]
        return ["the router is stopping"] if page.stopping else judge(page)

    def _look(self, name: str) -> Page | None:
        """None: it does not answer."""
        try:
            return self.world.look(self.routers[name])
        except (OSError, PageError):
            return None

    def _wait(
        self, within_s: float, amiss: Callable[[], list[str]], end: type[Stop], host: str
    ) -> None:
        """Until nothing is. Raises `end`."""
        end_s, said = self.world.now_s() + within_s, ""
        while found := amiss():
            if (text := "; ".join(found)) != said and end is Stop:
                said = text
                self.world.say(f"{host}: waiting: {text}")
            if self.world.now_s() >= end_s:
                why = "is not begun with" if end is Refused else f"not back within {within_s:g} s"
                raise end(f"{host} {why}: {'; '.join(found)}")
            self.world.sleep(LOOK_EVERY_S)
