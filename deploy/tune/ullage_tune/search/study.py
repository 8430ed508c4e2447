"""The search: a tree-structured Parzen estimator proposes, the lab tries.

    for each `TOGETHER` settings:  ask  ►  run, seed by seed, cutting the hopeless  ►  tell

The estimator (Bergstra et al., NIPS 2011; Optuna's, over all coordinates at once) fits the density
of good settings and of the others, and proposes where their quotient is high. It takes few trials,
counts that were cut as bad, and does not mind noise or coordinates that do not matter.

Rule: how many processes there are, and who of them is done first, changes nothing. What a trial is
compared with is what was known before its group began, and a group is as large whatever there is to
run it on. So the same seed and the same runs give the same trials, with any `--jobs`.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import optuna
from optuna.distributions import BaseDistribution, IntDistribution
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import TrialState, create_trial

from ullage_tune.grid import Cell, Measured
from ullage_tune.plan import Task
from ullage_tune.search.objective import Aim, log_ratio
from ullage_tune.search.race import Mark, Trial, mark_of
from ullage_tune.search.setting import Setting
from ullage_tune.search.space import Space

TOGETHER: Final = 4
LEAST_TO_TELL: Final = 20
"""Trials, before it is said what mattered."""
DEFAULT: Final = "default"
"""What the default setting is called among the policies."""

Start = Callable[[Task, Setting], "Future[Measured]"]
"""Begin a run."""


class Draws(NamedTuple):
    """What every setting is tried on: each cell at each of the seeds."""

    cells: tuple[Cell, ...]
    seeds: range


class Watcher(Protocol):
    """Is told how far it is."""

    def done(self, row: Measured) -> None:
        """One run more is made."""

    def spared(self, runs: int) -> None:
        """So many will not be made."""


@dataclass(slots=True)
class _Entrant:
    """A trial under way."""

    asked: optuna.Trial
    setting: Setting
    rows: list[Measured] = field(default_factory=list)
    """Of the seeds that it has been through."""
    runs: Sequence[Future[Measured]] = ()
    """Of its present seed, one in each cell."""
    coming: int = 0
    """Of these, how many are not done yet."""


class Search:
    """What has been tried, and what to try next."""

    def __init__(self, space: Space, draws: Draws, aim: Aim, seed: int) -> None:
        self.trials: list[Trial] = []
        """Those that have ended; the default is the first."""
        self._space = space
        self._draws = draws
        self._aim = aim
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True, constant_liar=True)
        self._study = optuna.create_study(sampler=sampler)
        self._study.enqueue_trial(dict(space.default))
        self._axes: dict[str, BaseDistribution] = {
            name: IntDistribution(0, size - 1) for name, size in space.sizes.items()
        }

    def run(self, settings: int, start: Start, watcher: Watcher) -> None:
        """Try the default, and so many others. Whatever ends it, `trials` is as it should be."""
        self._race([self._ask()], start, watcher)
        while (left := settings + 1 - len(self.trials)) > 0:
            self._race([self._ask() for _ in range(min(TOGETHER, left))], start, watcher)

    def best(self) -> Trial:
        """The first of those with the least loss. The default must have ended."""
        return min((trial for trial in self.trials if not trial.cut), key=lambda trial: trial.loss)

    def what_mattered(self) -> Mapping[str, float]:
        """Share of each coordinate in what tells the better trials from the others, most first.

        By PED-ANOVA (Watanabe et al., IJCAI 2023), of all trials: those that were cut, by what they
        had run, tell most of what is bad. Of weights, the second coordinate is a share of the rest.
        Empty where too few trials ran to tell, or all were alike.
        """
        if len(self.trials) < LEAST_TO_TELL or len({trial.loss for trial in self.trials}) == 1:
            return {}
        all_alike = optuna.create_study()
        for trial in self.trials:
            all_alike.add_trial(
                create_trial(value=trial.loss, params=dict(trial.point), distributions=self._axes)
            )
        return get_param_importances(all_alike, evaluator=PedAnovaImportanceEvaluator())

    def _ask(self) -> optuna.Trial:
        return self._study.ask(self._axes)

    def _race(self, asked: Sequence[optuna.Trial], start: Start, watcher: Watcher) -> None:
        mark = mark_of(self.trials)
        entrants = [_Entrant(a, self._space.setting(a.params)) for a in asked]
        ended: dict[int, Trial] = {}
        running: dict[Future[Measured], _Entrant] = {}
        for entrant in entrants:
            running.update(self._next_seed(entrant, start))
        try:
            self._run_out(running, mark, ended, start, watcher)
        finally:  # Those that have ended count, though others were interrupted.
            for entrant in entrants:
                if entrant.asked.number in ended:
                    self._tell(entrant.asked, ended[entrant.asked.number])

    def _run_out(
        self,
        running: dict[Future[Measured], _Entrant],
        mark: Mark | None,
        ended: dict[int, Trial],
        start: Start,
        watcher: Watcher,
    ) -> None:
        """Until all have ended."""
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                entrant = running.pop(future)
                watcher.done(future.result())
                entrant.coming -= 1
                if entrant.coming:
                    continue
                entrant.rows += [run.result() for run in entrant.runs]
                trial = self._judged(entrant, mark)
                if trial is None:
                    running.update(self._next_seed(entrant, start))
                else:
                    ended[trial.number] = trial
                    watcher.spared(self._runs - len(trial.rows))

    @property
    def _runs(self) -> int:
        return len(self._draws.cells) * len(self._draws.seeds)

    def _next_seed(self, entrant: _Entrant, start: Start) -> Mapping[Future[Measured], _Entrant]:
        cells, seeds = self._draws
        number = entrant.asked.number
        name = f"setting {number}" if number else DEFAULT
        seed = seeds[len(entrant.rows) // len(cells)]
        entrant.runs = [start(Task(cell, name, seed), entrant.setting) for cell in cells]
        entrant.coming = len(cells)
        return dict.fromkeys(entrant.runs, entrant)

    def _judged(self, entrant: _Entrant, mark: Mark | None) -> Trial | None:
        """The trial, if it is over."""
        default = self.trials[0].rows if self.trials else entrant.rows
        ratios = tuple(
            log_ratio(self._aim, ours.summary, theirs.summary)
            for ours, theirs in zip(entrant.rows, default, strict=False)
        )
        full = len(ratios) == self._runs
        if not full and (mark is None or not mark.out_of_reach(ratios)):
            return None
        asked = entrant.asked
        rows = tuple(entrant.rows)
        return Trial(asked.number, asked.params, entrant.setting, rows, ratios, cut=not full)

    def _tell(self, asked: optuna.Trial, trial: Trial) -> None:
        self.trials.append(trial)
        if trial.cut:
            asked.report(trial.loss, len(trial.rows))
            self._study.tell(asked, state=TrialState.PRUNED)
        else:
            self._study.tell(asked, trial.loss)
