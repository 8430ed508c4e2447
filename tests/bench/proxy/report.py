"""From samples to figures: medians over rounds, ratios, the table, the JSON.

A ratio is the median of the rounds' own ratios: the two sides of a round ran within a minute of
each other, and what the machine's neighbours did hit them alike. `spread` is (highest − lowest) ÷
median of the CPU figure over the rounds: a difference smaller than that is noise.
"""

import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, Final

from loads import CHUNKS, TICK_MS, Load, Sample

YARDSTICKS: Final = ("nginx", "vllm-router")
Rounds = Mapping[str, Sequence[Sample]]
"""Proxy → its samples of one load, one per round."""


def figures(load: Load, rounds: Rounds) -> dict[str, Any]:
    """Everything known about one load, as JSON."""
    return {
        "load": load.name,
        "unit": load.unit,
        "connections": load.connections,
        "proxies": {name: _proxy(name, rounds) for name in rounds},
    }


def _proxy(name: str, rounds: Rounds) -> dict[str, Any]:
    samples = rounds[name]
    cpu_us = [s.cpu_us for s in samples]
    errors: Counter[str] = Counter()
    for sample in samples:
        errors.update(sample.errors)
    return {
        "cpu_us": round(median(cpu_us), 2),
        "cpu_us_rounds": [round(value, 2) for value in cpu_us],
        "spread": round((max(cpu_us) - min(cpu_us)) / median(cpu_us), 3),
        "ratios": {
            other: round(median(a.cpu_us / b.cpu_us for a, b in zip(samples, to, strict=False)), 3)
            for other in YARDSTICKS
            if (to := rounds.get(other))
        },
        "per_s": round(median(s.per_s for s in samples)),
        "p50_ms": round(median(s.p50_ms for s in samples), 3),
        "p99_ms": round(median(s.p99_ms for s in samples), 3),
        "counted": sum(s.counted for s in samples),
        "answers": sum(s.answers for s in samples),
        "streams": sum(s.streams for s in samples),
        "events": sum(s.events for s in samples),
        "errors": dict(errors),
    }


def machine() -> str:
    """Where, and how busy it was before: others' work on it shows as spread."""
    load, *_ = os.getloadavg()
    return f"{os.cpu_count()} cores, Linux {platform.release()}, load average {load:.1f}"


def document(
    where: str, loads: Sequence[dict[str, Any]], seconds: int, failed: Mapping[str, str]
) -> dict[str, Any]:
    """The whole run, as JSON."""
    return {
        "machine": where,
        "seconds": seconds,
        "chunks_per_stream": CHUNKS,
        "tick_ms": TICK_MS,
        "loads": loads,
        "failed": dict(failed),
    }


def table(load: Mapping[str, Any]) -> str:
    """One load's figures for people; below it, every error by name."""
    unit, proxies = load["unit"], load["proxies"]
    rounds = max(len(p["cpu_us_rounds"]) for p in proxies.values())
    stream = f" of {CHUNKS} chunks, one per {TICK_MS} ms tick" if unit == "chunk" else ""
    head = ["", f"CPU µs/{unit}", "spread", *(f"÷ {y}" for y in YARDSTICKS)]
    head += [f"{unit}s/s", "p50 ms", "p99 ms", "errors"]
    rows = [head] + [_row(name, p) for name, p in proxies.items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = [f"{load['load']}, {load['connections']} connections{stream}; medians of {rounds}"]
    for name, *cells in rows:
        padded = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        lines.append("  ".join((name.ljust(widths[0]), *padded)))
    for name, proxy in proxies.items():
        if proxy["errors"]:
            kinds = ", ".join(f"{n} × {kind}" for kind, n in proxy["errors"].items())
            lines.append(f"{name}: {kinds} in {proxy['answers']} answers")
    return "\n".join(lines)


def _row(name: str, proxy: Mapping[str, Any]) -> list[str]:
    ratios = (proxy["ratios"].get(y) for y in YARDSTICKS)
    return [
        name,
        f"{proxy['cpu_us']:.1f}",
        f"{proxy['spread']:.0%}",
        *("–" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
        f"{proxy['per_s']:,}",
        f"{proxy['p50_ms']:.1f}",
        f"{proxy['p99_ms']:.1f}",
        str(sum(proxy["errors"].values())),
    ]
