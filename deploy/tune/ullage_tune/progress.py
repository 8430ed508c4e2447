"""How far a long run has come: a bar on a terminal, a line for each tenth elsewhere."""

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from ullage_tune.grid import Measured


class Progress:
    """Counts what is measured, out of `total` runs.

    `with Progress(console, total) as progress: progress.done(row)`
    """

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._done = 0
        self._bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left:"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def spared(self, runs: int) -> None:
        """So many need not be made after all."""
        self._total -= runs
        self._bar.update(self._task, total=self._total)

    def done(self, row: Measured) -> None:
        """One more is measured; its name stays until the next one's."""
        name = f"{row.cell}: {row.policy}, seed {row.seed}"
        tenth = 10 * self._done // self._total
        self._done += 1
        self._bar.update(self._task, description=name, advance=1)
        if not self._console.is_terminal and 10 * self._done // self._total > tenth:
            self._console.print(f"{self._done} of {self._total}: {name}", markup=False)
