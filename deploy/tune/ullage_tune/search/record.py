"""A search as a file: settings in words, every trial, every run, and the verdict.

    {"schema": 1, "search": {"trials": [{"number": 0, "sidecar": {…}, "router": {…}, "loss": 0.0,
     "cut": false}, …], "mattered": {…}, "best": 7, "gain": {…} or null,
     "better": true, false or null}, "slo": {…}, "settings": {…}, "versions": {…}, "rows": […]}

The rows are as those of `run --json` (see `results`): `ullage-tune show FILE` shows them, settings
as policies. `null`: it was not checked.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from ullage_tune.grid import Measured
from ullage_tune.plan import Plan
from ullage_tune.results import Experiment, versions, write_rows
from ullage_tune.search.race import Trial
from ullage_tune.search.verdict import Verdict


@dataclass(frozen=True, slots=True)
class Found:
    """All that there is to say of a search."""

    asked: Mapping[str, object]
    """In words: what it was to look for, and how."""
    trials: Sequence[Trial]
    mattered: Mapping[str, float]
    best: Trial
    checks: tuple[Measured, ...]
    """Runs on unseen seeds."""
    verdict: Verdict | None


def write_search(path: Path, plan: Plan, found: Found) -> None:
    """Write it, whole or not at all."""
    rows = [row for trial in found.trials for row in trial.rows]
    settings = {**plan.settings(), **{name: str(value) for name, value in found.asked.items()}}
    experiment = Experiment(plan.slo, settings, versions(), (*rows, *found.checks))
    write_rows(path, {"schema": 1, "search": _summary(found), **msgspec.to_builtins(experiment)})


def _summary(found: Found) -> Mapping[str, Any]:
    verdict = found.verdict
    return {
        "trials": [
            {
                "number": trial.number,
                "sidecar": trial.setting.sidecar,
                "router": trial.setting.router,
                "loss": trial.loss,
                "cut": trial.cut,
            }
            for trial in found.trials
        ],
        "mattered": found.mattered,
        "best": found.best.number,
        "gain": verdict and verdict.overall._asdict(),
        "better": verdict and verdict.better,
    }
