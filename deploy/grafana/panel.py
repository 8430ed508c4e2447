"""What a panel of the dashboard is, and short ways to say what it asks."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """Grafana's names for what is drawn."""

    LINES = "timeseries"
    NUMBER = "stat"
    STATES = "state-timeline"


Query = tuple[str, str]
"""An expression, and what its lines are called."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One of the dashboard."""

    title: str
    unit: str
    """As Grafana names it: `short`, `s`, `reqps`, `percentunit`, …"""
    description: str
    queries: tuple[Query, ...]
    kind: Kind = Kind.LINES
    width: int = 8
    """Of 24."""
    stacked: bool = False
    most: float | None = None
    """Where the axis ends; None: where the values do."""
    amber: float | None = None
    """Worth a look from here on."""
    red: float | None = None
    """Bad from here on; with less than `amber`, less is worse."""


@dataclass(frozen=True, slots=True)
class Row:
    """The panels that answer one question."""

    question: str
    panels: tuple[Panel, ...]


ROUTER: Final = 'instance=~"$router"'
REPLICA: Final = 'instance=~"$router", replica=~"$replica"'
NODE: Final = 'instance=~"$node"'
_NAMED: Final = (
    '* on (instance, engine) group_left (replica) ullage_sidecar_replica_info{replica=~"$replica"}'
)
"""Gives an engine of a sidecar the name that routers have for it."""


def rate(name: str, which: str = ROUTER) -> str:
    """Of a router's counter, per second."""
    return f"rate(ullage_router_{name}{{{which}}}[$__rate_interval])"


def total(name: str) -> str:
    """The same over all series."""
    return f"sum({rate(name)})"


def per_replica(name: str) -> str:
    """The same over all routers."""
    return f"sum by (replica) ({rate(name, REPLICA)})"


def seen(how: str, name: str) -> str:
    """A router's gauge of replicas: `how` the views of several routers are made one."""
    return f"{how} by (replica) (ullage_router_{name}{{{REPLICA}}})"


def of_engine(name: str) -> str:
    """A gauge of a sidecar, with the replica's name."""
    return f"ullage_sidecar_{name}{{{NODE}}} {_NAMED}"


def quantile(share: float, name: str, by: str = "", which: str = ROUTER) -> str:
    """Of a router's histogram."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) ({rate(f'{name}_bucket', which)}))"
