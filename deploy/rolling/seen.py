"""What a router says of itself and its replicas (`GET /status`), and what is amiss. Pure.

Rules
* Every complaint names who is not well, and why, as the router has it.
* A replica that is full serves: how much load the others bear is for whoever chose the hour.
* No clocks of two hosts are compared, only durations.

Edges: no replica at all; a host that no router knows; one whose only replicas serve a model that
nobody else serves; a snapshot from before the restart, that still looks well; a page of something
that is no router.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

_SERVES: Final = ("serving", "slow", "full")
_SERVING: Final = "serving"


class PageError(Exception):
    """This is no router's page; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One replica, as one router sees it."""

    id: str
    url: str
    now: str
    """In a word: `serving`, `ramping`, `down`, …"""
    say: str
    """More of it; empty: nothing."""
    state: str | None
    """Its sidecar's word; None: no sidecar speaks for it."""
    age_s: float | None
    """How old that is."""
    boot_id: str | None
    """The server's incarnation; None: unknown."""
    models: frozenset[str]

    def is_at(self, host: str) -> bool:
        """Is this the host? It goes by its node's name, or as routers reach it."""
        node, slash, _ = self.id.partition("/")
        return host == urlsplit(self.url).hostname or bool(slash and host == node)

    @property
    def trouble(self) -> str:
        """Why it does not serve in full; empty: it does."""
        if self.now in _SERVES and self.state == _SERVING:
            return ""
        return f"{self.id} is {self.now}" + (f": {self.say}" if self.say else "")


@dataclass(frozen=True, slots=True)
class Page:
    """What one router says."""

    version: str
    uptime_s: float
    stopping: bool
    replicas: tuple[Seen, ...]

    def at(self, host: str) -> tuple[Seen, ...]:
        """The replicas of this host."""
        return tuple(each for each in self.replicas if each.is_at(host))

    def elsewhere(self, host: str) -> tuple[Seen, ...]:
        """All others."""
        return tuple(each for each in self.replicas if not each.is_at(host))


def page_of(document: Any) -> Page:
    """Read `/status`. Raises `PageError`."""
    try:
        rows = tuple(_seen(row) for row in document["replicas"])
        version, uptime_s = str(document["version"]), float(document["uptime_s"])
        return Page(version, uptime_s, bool(document["stopping"]), rows)
    except KeyError as error:
        raise PageError(f"this is no page of a router of this version: no {error}") from None
    except (TypeError, ValueError) as error:
        raise PageError(f"this is no page of a router: {error}") from None


def _seen(row: Mapping[str, Any]) -> Seen:
    id_, url, now, say = (str(row[name]) for name in ("id", "url", "now", "say"))
    state, boot_id = (
        None if row[name] is None else str(row[name]) for name in ("state", "boot_id")
    )
    age_s = None if row["age_s"] is None else float(row["age_s"])
    return Seen(id_, url, now, say, state, age_s, boot_id, frozenset(map(str, row["models"])))


def troubles(replicas: Iterable[Seen]) -> list[str]:
    """Of all that do not serve in full."""
    return [each.trouble for each in replicas if each.trouble]


def others_unwell(page: Page, host: str) -> list[str]:
    """Of the replicas that other hosts have; and if this host is not known at all."""
    if page.at(host):
        return troubles(page.elsewhere(host))
    return [f"no replica of {host} is known: hosts go by the name of their node, or as in URLs"]


def not_spared(page: Page, host: str) -> list[str]:
    """Why this host's replicas cannot be taken out of service now; empty: they can.

    Every other replica must serve, and every model of theirs must be served elsewhere.
    """
    here, others, found = page.at(host), page.elsewhere(host), others_unwell(page, host)
    if here and not others:
        return [f"no other host serves what {host} serves"]
    if all(each.models for each in others):
        served = {model for each in others for model in each.models}
        only = {model for each in here for model in each.models} - served
        found += [f"no other host serves {model}" for model in sorted(only)]
    return found


def not_back(page: Page, host: str, since_s: float, boots: frozenset[str]) -> list[str]:
    """Why this host is not yet back in service; empty: it is, in full.

    `since_s`: how long ago its commands ended; what is older than that is not believed. `boots`:
    servers of before, which must all have been replaced.
    """
    here = page.at(host)
    if not here:
        return [f"no replica of {host} is known"]
    found = troubles(here)
    for each in here:
        if each.trouble:
            continue
        if each.age_s is None or each.age_s > since_s:
            found.append(f"{each.id} has not been heard of since")
        elif each.boot_id in boots:
            found.append(f"{each.id} has not started anew")
    return found


def not_taken_over(page: Page, elapsed_s: float, urls: frozenset[str]) -> list[str]:
    """Why a router is not yet the new one, with all that the old one had; empty: it is.

    `elapsed_s`: since before its commands; `urls`: of the replicas that it must know.
    """
    if page.uptime_s > elapsed_s:
        return [f"it has run for {page.uptime_s:.0f} s, and was not started anew"]
    missing = urls - {each.url for each in page.replicas}
    found = [f"it does not know {url}" for url in sorted(missing)]
    return found + troubles(page.replicas)
