"""Looks at the router's admin port while the load runs, as an operator would."""

import asyncio
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

_EVERY_S: Final = 0.25


@dataclass(slots=True)
class Extremes:
    """The fullest that each replica was seen."""

    running: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    waiting: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    score: defaultdict[str, float] = field(default_factory=lambda: defaultdict(lambda: 1.0))
    why_not: dict[str, str] = field(default_factory=dict)
    """Why it would not have been chosen, the last time that it would not."""

    def see(self, rows: list[dict[str, Any]]) -> None:
        """Take in one look at `/replicas`."""
        for row in rows:
            name = row["id"]
            self.running[name] = max(self.running[name], row["running"] or 0)
            self.waiting[name] = max(self.waiting[name], row["waiting"] or 0)
            if row["capacity_score"] is not None:
                self.score[name] = min(self.score[name], row["capacity_score"])
            if not row["eligible"]:
                self.why_not[name] = row["why_not"]


@dataclass(frozen=True, slots=True)
class Counts:
    """What the router has counted up to a moment. Two of them make a phase."""

    dispatched: Counter[str]
    scored: Counter[str]
    """Decisions that knew a score."""
    score_sum: Counter[str]
    why: Counter[str]

    def since(self, before: "Counts") -> "Counts":
        """What was counted between the two."""
        return Counts(
            self.dispatched - before.dispatched,
            self.scored - before.scored,
            self.score_sum - before.score_sum,
            self.why - before.why,
        )


async def fetch(session: aiohttp.ClientSession, admin_url: str, page: str) -> Any:
    """One of the admin port's JSON pages."""
    async with session.get(admin_url + page) as answer:
        return await answer.json()


async def counts(session: aiohttp.ClientSession, admin_url: str) -> Counts:
    """The router's counters now, from `/metrics`."""
    async with session.get(f"{admin_url}/metrics") as answer:
        text = await answer.text()
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            label = sample.labels.get("replica") or sample.labels.get("why")
            if label and not sample.name.endswith("_bucket"):
                found[sample.name][label] += sample.value  # type: ignore[assignment]
    return Counts(
        found["ullage_router_dispatched_total"],
        found["ullage_router_score_at_decision_count"],
        found["ullage_router_score_at_decision_sum"],
        found["ullage_router_decisions_total"],
    )


async def watch(session: aiohttp.ClientSession, admin_url: str, extremes: Extremes) -> None:
    """Keep looking until cancelled."""
    while True:
        extremes.see((await fetch(session, admin_url, "/replicas"))["replicas"])
        await asyncio.sleep(_EVERY_S)
