"""One search from its first run to the last word."""

from collections.abc import Iterator, Sequence
from concurrent.futures import as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from ullage_router.core.policy import Way
from ullage_shared.snapshot import RequestClass
from ullage_tune.flags import failed
from ullage_tune.grid import Cell, Grid, Measured
from ullage_tune.plan import Lab, Plan, Task
from ullage_tune.progress import Progress
from ullage_tune.search.objective import AIMS
from ullage_tune.search.race import Trial
from ullage_tune.search.record import Found, write_search
from ullage_tune.search.setting import Setting
from ullage_tune.search.space import Space, classes_in
from ullage_tune.search.study import DEFAULT, Draws, Search
from ullage_tune.search.told import advice, mattered, trials_sheet, verdict_sheet
from ullage_tune.search.verdict import Verdict, judge
from ullage_tune.table import print_sheet

_ENDED: Final = (KeyboardInterrupt, BrokenProcessPool)
"""What ends a search, or a check, before its time."""


class Asked(NamedTuple):
    """What is asked for, beside what a plan holds."""

    way: Way
    aim: str
    """A name of `AIMS`."""
    trials: int
    """Beside the default."""
    dice: int


class Session:
    """Carries it out."""

    def __init__(
        self, asked: Asked, twins: Lab, plan: Plan, cells: tuple[Cell, ...], tried: range
    ) -> None:
        """`tried`: the first of the plan's seeds, for the search; the others are for the check."""
        self._asked = asked
        self._aim = AIMS[asked.aim]
        self._twins = twins
        self._plan = plan
        self._cells = cells
        self._tried = tried
        self._status = 0
        self._space = Space(asked.way, self._classes())
        self._search = Search(self._space, Draws(cells, tried), self._aim, asked.dice)

    def go(self, json: Path | None) -> int:
        """Search, check, tell, write; the exit status."""
        self._find()
        trials = self._search.trials
        if not trials:
            return failed(f"ended before the {DEFAULT} had run", self._status)
        best, shares = self._search.best(), self._search.what_mattered()
        print_sheet(Console(), trials_sheet(trials, self._space, self._cells, self._aim))
        print(mattered(shares), end="\n\n")
        checks, verdict = self._check(best)
        if json is not None:
            asked = self._asked._asdict()
            found = Found(asked, trials, shares, best, checks, verdict)
            write_search(json, self._plan, found)
        return self._status

    def _classes(self) -> Sequence[RequestClass]:
        """Those that have a part in one of the workloads at least."""
        cells = {cell.workload: cell for cell in self._cells}.values()
        seen = set[RequestClass]()
        for cell in cells:
            drawn = [self._twins.drawn(self._plan, cell, seed) for seed in self._tried]
            seen.update(classes_in(r.prompt_tokens for work in drawn for r in work.requests))
        return [each for each in RequestClass if each in seen]

    def _find(self) -> None:
        runs = (1 + self._asked.trials) * len(self._cells) * len(self._tried)
        try:
            with (
                self._twins.workers(self._plan.jobs) as pool,
                Progress(Console(stderr=True), runs) as progress,
            ):
                self._search.run(
                    self._asked.trials,
                    lambda task, setting: pool.submit(
                        self._twins.measure, self._plan, task, setting.policy()
                    ),
                    progress,
                )
        except _ENDED as ended:
            tried = max(0, len(self._search.trials) - 1)
            self._end(ended, f"{tried} settings were tried beside the {DEFAULT}")

    def _check(self, best: Trial) -> tuple[tuple[Measured, ...], Verdict | None]:
        """Run it and the default on the other seeds, and tell what came of it."""
        if not best.number:
            default = self._space.default_name
            print(f"No better than {default}: no setting was, on the draws of the search.")
            return (), None
        name, rows = f"setting {best.number}", []
        try:
            rows = list(self._runs({DEFAULT: self._search.trials[0].setting, name: best.setting}))
        except _ENDED as ended:
            self._end(ended, f"{name} is not checked")
            return (), None
        grid = Grid(rows)
        verdict = judge(grid, self._cells, self._aim, name, DEFAULT)
        print_sheet(Console(), verdict_sheet(verdict, grid, name))
        print("\n".join(advice(verdict, best.setting, self._space.default_name)))
        return tuple(rows), verdict

    def _runs(self, settings: dict[str, Setting]) -> Iterator[Measured]:
        unseen = range(self._tried.stop, self._plan.seeds)
        tasks = [
            Task(cell, name, seed) for seed in unseen for cell in self._cells for name in settings
        ]
        with (
            self._twins.workers(self._plan.jobs) as pool,
            Progress(Console(stderr=True), len(tasks)) as progress,
        ):
            waiting = [
                pool.submit(self._twins.measure, self._plan, task, settings[task.policy].policy())
                for task in tasks
            ]
            for done in as_completed(waiting):
                progress.done(done.result())
                yield done.result()

    def _end(self, ended: BaseException, what: str) -> None:
        if isinstance(ended, KeyboardInterrupt):
            self._status = failed(f"interrupted: {what}", 130)
        else:
            self._status = failed(f"a process died: {what}; fewer --jobs take less memory", 1)
