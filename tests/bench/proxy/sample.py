"""What one measurement is, and what every load must offer. See loads.py for the loads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from testbed import Bed, Proxy


@dataclass(frozen=True, slots=True)
class Column:
    """A figure of a load, as the table shows it."""

    key: str
    title: str
    """With its unit."""
    digits: int = 1
    compared: bool = False
    """Is the ratio to other proxies shown, too?"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement of one proxy under one load."""

    figures: Mapping[str, float]
    """By the key of the column. One that is missing was not measured."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What was sent and read, to be summed over rounds."""
    errors: Mapping[str, int] = field(default_factory=dict)
    """By kind, those that were."""


class Load(Protocol):
    """One load, and what is measured under it."""

    @property
    def name(self) -> str:
        """As in `--loads`."""
        ...

    @property
    def title(self) -> str:
        """Above the table."""
        ...

    @property
    def columns(self) -> Sequence[Column]:
        """Of the table, and the figures of each sample."""
        ...

    @property
    def once(self) -> bool:
        """Is it measured in the first round only?"""
        ...

    def prepare(self, bed: Bed, seconds: int) -> Mapping[str, Sample]:
        """Before the proxies' turns in a round; returns samples of what is no proxy, by name."""
        ...

    def measure(self, bed: Bed, proxy: Proxy, seconds: int) -> Sample:
        """Put the load on one proxy; raises `NotStartedError` if it does not answer any more."""
        ...
