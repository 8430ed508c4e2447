"""From samples to figures: medians over rounds, ratios, the tables, the JSON.

A ratio is the median of the rounds' own ratios: the two sides of a round ran within a minute or two
of each other, and what the machine's neighbours did hit them alike. `spread` is (highest − lowest)
÷ median of the first column over the rounds: a difference smaller than that is noise.
"""

import os
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, Final

from sample import Column, Load, Sample
from testbed import REPLICAS, TICK_MS, TOKENS

YARDSTICKS: Final = ("nginx", "vllm-router", "before")
"""Those that are in the run are compared with."""
Rounds = Mapping[str, Sequence[Sample]]
"""Proxy → its samples of one load, one per round."""


def figures(load: Load, rounds: Rounds) -> dict[str, Any]:
    """Everything known about one load, as JSON."""
    return {
        "load": load.name,
        "title": load.title,
        "proxies": {
            name: _proxy(load.columns, samples, rounds) for name, samples in rounds.items()
        },
    }


def _proxy(columns: Sequence[Column], samples: Sequence[Sample], all_: Rounds) -> dict[str, Any]:
    keys = [c.key for c in columns if all(c.key in s.figures for s in samples)]
    values = {key: [s.figures[key] for s in samples] for key in keys}
    return {
        "rounds": {key: [round(v, 3) for v in of_key] for key, of_key in values.items()},
        "medians": {key: round(median(of_key), 3) for key, of_key in values.items()},
        "spread": {key: _spread(of_key) for key, of_key in values.items()},
        "ratios": {
            column.key: {
                other: ratio
                for other in YARDSTICKS
                if (ratio := _ratio(column.key, samples, all_.get(other, ()))) is not None
            }
            for column in columns
            if column.compared and column.key in values
        },
        "counts": dict(_sum(s.counts for s in samples)),
        "errors": dict(_sum(s.errors for s in samples)),
    }


def _spread(values: Sequence[float]) -> float:
    middle = median(values)
    return round((max(values) - min(values)) / abs(middle), 3) if middle else 0.0


def _ratio(key: str, samples: Sequence[Sample], others: Sequence[Sample]) -> float | None:
    """None where there is nothing to compare with, or nothing above the noise."""
    pairs = zip(samples, others, strict=False)
    each = [a.figures[key] / b.figures[key] for a, b in pairs if b.figures.get(key, 0.0) > 0.0]
    return round(median(each), 3) if each else None


def _sum(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return total


def machine() -> str:
    """Where, and how busy it was before: others' work on it shows as spread."""
    load, *_ = os.getloadavg()
    return (
        f"{os.cpu_count()} cores, Linux {platform.release()}, load average {load:.1f}; "
        f"{REPLICAS} replicas"
    )


def document(
    where: str, loads: Sequence[Mapping[str, Any]], seconds: int, failed: Mapping[str, str]
) -> dict[str, Any]:
    """The whole run, as JSON."""
    return {
        "machine": where,
        "seconds": seconds,
        "replicas": REPLICAS,
        "chunks_per_stream": TOKENS,
        "tick_ms": TICK_MS,
        "loads": loads,
        "failed": dict(failed),
    }


def table(columns: Sequence[Column], load: Mapping[str, Any]) -> str:
    """One load's figures for people; below it, every error by name."""
    proxies = load["proxies"]
    shown = [c for c in columns if any(c.key in p["medians"] for p in proxies.values())]
    rounds = max(len(of_key) for p in proxies.values() for of_key in p["rounds"].values())
    yardsticks = [y for y in YARDSTICKS if y in proxies]
    head = [""]
    for column in shown:
        head += [column.title, "spread"] if column is columns[0] else [column.title]
        head += [f"÷ {y}" for y in yardsticks if column.compared]
    rows = [[*head, "errors"]] + [_row(name, p, shown, yardsticks) for name, p in proxies.items()]
    lines = [load["title"] + (f"; medians of {rounds}" if rounds > 1 else ""), *aligned(rows)]
    for name, proxy in proxies.items():
        if proxy["errors"]:
            kinds = ", ".join(f"{n} × {kind}" for kind, n in proxy["errors"].items())
            lines.append(f"{name}: {kinds}; answers {proxy['counts'].get('answers', 0):,}")
    return "\n".join(lines)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _row(
    name: str, proxy: Mapping[str, Any], columns: Sequence[Column], yardsticks: Sequence[str]
) -> list[str]:
    cells = [name]
    for number, column in enumerate(columns):
        value = proxy["medians"].get(column.key)
        cells.append("–" if value is None else f"{value:,.{column.digits}f}")
        if number == 0:
            spread = proxy["spread"].get(column.key)
            cells.append("–" if spread is None else f"{spread:.0%}")
        ratios = proxy["ratios"].get(column.key, {})
        if column.compared:
            cells += [f"{ratios[y]:.2f}" if y in ratios else "–" for y in yardsticks]
    return [*cells, str(sum(proxy["errors"].values()))]
