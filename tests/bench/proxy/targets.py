"""Our targets, and whether a run met them. They are those of the design's performance page.

Ratios are ours ÷ the other's. A target whose yardstick was not in the run is not judged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Target:
    """`must` and `aim` are the most that is allowed; with `at_least`, the least."""

    what: str
    load: str
    key: str
    must: float
    aim: float
    over: str | None = None
    """The proxy that ours is divided by; None: the figure itself."""
    at_least: bool = False

    def met(self, measured: float, limit: float) -> bool:
        return measured >= limit if self.at_least else measured <= limit


def _streams(load: str) -> tuple[Target, Target]:
    what = f"CPU per chunk, {load} ÷"
    return (
        Target(f"{what} vllm-router", load, "cpu_us", 0.9, 0.75, over="vllm-router"),
        Target(f"{what} nginx", load, "cpu_us", 1.25, 1.0, over="nginx"),
    )


TARGETS: Final = (
    Target("CPU per plain request ÷ vllm-router", "unary", "cpu_us", 0.85, 0.6, over="vllm-router"),
    Target("CPU per plain request ÷ nginx", "unary", "cpu_us", 2.2, 1.5, over="nginx"),
    *_streams("streams"),
    *_streams("streams-50ms"),
    *_streams("streams-1024"),
    Target(
        "p99 added at half load ÷ vllm-router",
        "half-load",
        "added_p99_ms",
        1.0,
        0.7,
        over="vllm-router",
    ),
    Target("220 KB prompts: /health p99, ms", "prompts", "health_p99_ms", 50.0, 10.0),
    Target("220 KB prompts: admin /healthz p99, ms", "prompts", "admin_p99_ms", 50.0, 10.0),
    Target(
        "220 KB prompts: requests/s ÷ vllm-router",
        "prompts",
        "per_s",
        1.0,
        1.5,
        over="vllm-router",
        at_least=True,
    ),
    Target("memory, idle RSS, MB", "memory", "idle_rss_mb", 60.0, 40.0),
    Target("memory per open stream, KB", "memory", "stream_kb", 24.0, 8.0),
)


def judge(loads: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Every target that the run can judge, with what was measured."""
    by_name = {load["load"]: load["proxies"] for load in loads}
    judged = []
    for target in TARGETS:
        measured = _measured(target, by_name.get(target.load, {}).get("ours"))
        if measured is not None:
            verdict = {
                "measured": measured,
                "must_met": target.met(measured, target.must),
                "aim_met": target.met(measured, target.aim),
            }
            judged.append({**asdict(target), **verdict})
    return judged


def _measured(target: Target, ours: Mapping[str, Any] | None) -> float | None:
    if ours is None:
        return None
    figures = ours["medians"] if target.over is None else ours["ratios"].get(target.key, {})
    value: float | None = figures.get(target.over or target.key)
    return None if value is None else round(value, 2)  # as it is shown


def rows(judged: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """For a table."""
    head = ["targets", "measured", "must", "", "aim", ""]
    return [head] + [
        [
            each["what"],
            f"{each['measured']:.2f}",
            f"{'≥' if each['at_least'] else '≤'} {each['must']:g}",
            "✓" if each["must_met"] else "✗",
            f"{'≥' if each['at_least'] else '≤'} {each['aim']:g}",
            "✓" if each["aim_met"] else "✗",
        ]
        for each in judged
    ]
