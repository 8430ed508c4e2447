"""Trials, and which of them need not be run to the end.

All settings are tried on the same draws, seed by seed. One is cut when it is hopeless:

    mean(its log ratios so far, and the record of each draw that is still to come)  ≥  the best loss

where a draw's record is the least log ratio that any trial had there: even if it were the best of
all wherever it has not been yet, it would not be the best. That needs no guess at the noise, which
two or three seeds could not tell. Before `IN_FULL` trials have run on all draws nothing is cut:
records are worth something only once several could make them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ullage_tune.grid import Measured
from ullage_tune.search.objective import loss
from ullage_tune.search.setting import Setting
from ullage_tune.search.space import Point

IN_FULL: Final = 8


@dataclass(frozen=True, slots=True)
class Trial:
    """A setting, and how it did."""

    number: int
    """0: the default."""
    point: Point
    setting: Setting
    rows: tuple[Measured, ...]
    """In the order of the draws; fewer than there are: it was cut."""
    log_ratios: tuple[float, ...]
    """Against the default, of each row."""
    cut: bool = False

    @property
    def loss(self) -> float:
        """As far as it was run."""
        return loss(self.log_ratios)


@dataclass(frozen=True, slots=True)
class Mark:
    """What there is to beat."""

    best: float
    records: tuple[float, ...]
    """The least log ratio of each draw."""

    def out_of_reach(self, so_far: Sequence[float]) -> bool:
        """Is a trial that did so on the first draws hopeless? Of all draws: is it no better?"""
        return loss((*so_far, *self.records[len(so_far) :])) >= self.best


def mark_of(trials: Sequence[Trial]) -> Mark | None:
    """What is to be beaten after these; `None`: nothing is cut yet."""
    full = [trial for trial in trials if not trial.cut]
    if len(full) < IN_FULL:
        return None
    draws = range(len(full[0].log_ratios))
    each = [[t.log_ratios[k] for t in trials if k < len(t.log_ratios)] for k in draws]
    return Mark(min(trial.loss for trial in full), tuple(map(min, each)))
