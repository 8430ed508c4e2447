"""What the demo prints when the load is done."""

from collections.abc import Sequence
from datetime import UTC, datetime
from statistics import quantiles
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from demo.load import Answer
from demo.watch import Counts, Extremes

_COLUMNS: Final = (
    "requests",
    "share",
    "mean score when chosen",
    "lowest score",
    "most running",
    "most waiting",
    "TTFT p50",
    "TTFT p99",
)


def phase_table(
    title: str,
    replicas: Sequence[str],
    answers: Sequence[Answer],
    counted: Counts,
    extremes: Extremes,
) -> Table:
    """A row for each replica: what it got, at what score, how full it was, how fast it began."""
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("replica")
    for column in _COLUMNS:
        table.add_column(column, justify="right")
    total = sum(counted.dispatched.values())
    for name in replicas:
        sent, scored = counted.dispatched[name], counted.scored[name]
        ttft_s = [a.ttft_s for a in answers if a.replica == name and not a.problem]
        table.add_row(
            name,
            f"{sent:.0f}",
            f"{sent / total:.0%}" if total else "–",
            f"{counted.score_sum[name] / scored:.2f}" if scored else "–",
            f"{extremes.score[name]:.2f}",
            str(extremes.running[name]),
            str(extremes.waiting[name]),
            *(f"{1000 * value:.0f} ms" if ttft_s else "–" for value in _p50_p99(ttft_s)),
        )
    return table


def _p50_p99(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return (values[0], values[0]) if values else (0.0, 0.0)
    cuts = quantiles(values, n=100, method="inclusive")
    return cuts[49], cuts[98]


def decision_lines(decisions: Sequence[dict[str, Any]]) -> list[str]:
    """The latest decisions, one line each."""
    lines = []
    for row in decisions:
        at = datetime.fromtimestamp(row["at"], UTC).strftime("%H:%M:%S.%f")[:-3]
        score = "unknown" if row["score"] is None else f"{row['score']:.2f}"
        lines.append(
            f"{at}  {row['replica'] or 'refused':<18} why={row['why']:<10} score={score:<8} "
            f"in flight before={row['in_flight']:<3} {_waits(row)}"
        )
    return lines


def _waits(decision: dict[str, Any]) -> str:
    """What was expected of each candidate: its wait, and the tokens that it does not know."""
    told = [
        f"{row['replica']} {1000 * row['wait_s']:.0f} ms, {row['uncached_tokens']} new"
        for row in sorted(decision["candidates"], key=lambda row: row["replica"])
        if row["wait_s"] is not None
    ]
    return f"waits of {decision['prompt_tokens']} tokens: {'; '.join(told)}" if told else ""


def print_failures(console: Console, answers: Sequence[Answer]) -> int:
    """Name what went wrong, a few at most; return how many requests failed."""
    failed = [answer for answer in answers if answer.problem]
    for answer in failed[:5]:
        console.print(f"[red]{answer.ask.path} on {answer.replica or '?'}: {answer.problem}[/red]")
    return len(failed)
