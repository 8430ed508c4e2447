"""What a replay gave, as a table: one row for each server or router that was asked.

Lateness is the client's own: when it is not small beside the times to first token, the machine
that sends is what was measured.
"""

from collections.abc import Sequence
from typing import Final

from ullage_tune.measure import Slo, Summary, quantile, summarise
from ullage_tune.replay.player import Played
from ullage_tune.sheets import Field, Sheet, shown

COLUMNS: Final = (
    "asked",
    "TTFT p50, s",
    "TTFT p90, s",
    "TTFT p99, s",
    "TPOT p99, ms",
    "E2E p99, s",
    "goodput",
    "prefix hits",
    "refused",
    "failed",
    "late p99, ms",
)


def row(name: str, played: Played, slo: Slo) -> Sequence[Field]:
    """The fields of `COLUMNS`."""
    of = summarise(played.run, slo)
    return [
        Field(name),
        *(Field(shown(value, "s")) for value in (of.ttft_p50_s, of.ttft_p90_s, of.ttft_p99_s)),
        Field(shown(of.tpot_p99_s, "ms")),
        Field(shown(of.e2e_p99_s, "s")),
        Field(shown(of.goodput, "%")),
        Field(hits(played, of)),
        Field(str(of.refused)),
        Field(str(of.failed)),
        Field(shown(late_s(played), "ms")),
    ]


def sheet(title: str, rows: Sequence[Sequence[Field]], note: str) -> Sheet:
    """All of them."""
    return Sheet(title=title, note=note, columns=COLUMNS, rows=rows)


def hits(played: Played, of: Summary) -> str:
    """The share of prompt tokens that were cached, if the server tells it at all."""
    return shown(of.hit_rate if played.tells_hits else None, "%")


def late_s(played: Played) -> float | None:
    """How late the client was, at the 99th percentile."""
    return quantile(sorted(fate.late_s for fate in played.fates), 990)


def lines(played: Played) -> list[str]:
    """What the table has no room for, a line each."""
    said = [f"{count} × {failure}" for failure, count in played.failures.most_common()]
    if played.left:
        said.append(f"{played.left} had not ended, or not begun, and are not counted")
    named = {name: 0 for name in played.replicas if name}
    for outcome in played.run.outcomes:
        if outcome.replica is not None and played.replicas[outcome.replica] in named:
            named[played.replicas[outcome.replica]] += 1
    if named:
        said.append("by replica: " + ", ".join(f"{name} {n}" for name, n in sorted(named.items())))
    return said
