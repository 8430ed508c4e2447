"""`/status`: all that people look at again and again, in one document, for the page and `top`.

Rules
* Counts only grow while a process lives: whoever looks twice has the rates by difference.
* Nothing of a request is in it but numbers, its replica and the rule: no key, no name, no text.
* It is asked for every second: whatever it says costs no more than a look at each replica, and
  after every `_PIECE` of them the requests that the same event loop serves have their turn.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from statistics import median_high
from typing import Any, Final

from ullage_router.core.affinity import homes_for
from ullage_router.core.decision import Why
from ullage_router.core.fleet import Replica
from ullage_router.core.lineup import Standing
from ullage_router.explain import Reasons
from ullage_router.http.errors import NoRoom
from ullage_router.http.proxy import Proxy
from ullage_router.replicas import known, replica_row, sidecars, sources
from ullage_router.router import Decided, Router
from ullage_router.tally import SECONDS_BOUNDS, Tally
from ullage_shared.discovery.listing import Listing
from ullage_shared.feed import Feed
from ullage_shared.snapshot import State
from ullage_shared.version import VERSION

MOST_RECENT: Final = 50
MOST_HOT: Final = 20
_PIECE: Final = 32
_NOTHING: Final = Tally()
"""Of a replica that was sent nothing. Not to be changed."""
_CHOSEN: Final = (Standing.ELIGIBLE, Standing.SILENT)
_PASSING: Final = ("ramping", "slow", "stalled", "silent", "starting", "warming", "draining")
_KEY_DIGITS: Final = 8
"""Of a cache key, in hex: enough to tell two apart."""


async def status_page(
    proxy: Proxy,
    feeds: Mapping[str, Feed],
    uptime_s: float,
    listings: Sequence[Listing] = (),
    *,
    stopping: bool = False,
) -> dict[str, Any]:
    """The document of one process."""
    router, room = proxy.router, proxy.waiting
    rows = await _rows(router)
    return {
        "version": VERSION,
        "at": time.time(),
        "uptime_s": round(uptime_s, 1),
        "stopping": stopping,
        "way": router.rules.choose.way,
        "floor": router.rules.choose.floor,
        "clients": len(proxy.clients),
        "overload": {"state": room.state.value, "episodes": room.episodes},
        "queue": {
            "length": room.waiting,
            "bytes": room.waiting_bytes,
            "oldest_s": None if room.oldest_s is None else round(room.oldest_s, 3),
            "max_requests": room.policy.max_requests,
            "max_wait_s": room.policy.max_wait_s,
            "queued": room.queued,
            "refused": {how.value: room.refused[how] for how in NoRoom},
        },
        "decisions": {why.value: router.decisions[why] for why in Why},
        "refusals": dict(sorted(router.refusals.items())),
        "second_tries": router.second_tries,
        "second_tries_denied": router.tries_denied,
        "cache_keys": router.keys_remembered,
        "hot_keys": hot_keys(router),
        "first_byte_bounds_s": SECONDS_BOUNDS,
        "routing_by": router.odds().line_up.basis,
        "replicas": rows,
        "sidecars": sidecars(feeds),
        "sources": sources(listings),
        "recent": [_brief(decided) for decided in islice(reversed(router.recent), MOST_RECENT)],
    }


async def _rows(router: Router) -> list[dict[str, Any]]:
    """Those of `/replicas`, with what is counted beside."""
    reasons, now_s = Reasons(router), router.now_s()
    usual_per_s = usual_speeds(router.fleet.replicas.values())
    rows = []
    for number, replica in enumerate(known(router), 1):
        tally = router.tallies.get(replica.key, _NOTHING)
        row = replica_row(router, replica, reasons, now_s)
        rows.append(row | told(row, usual_per_s.get(replica.models)) | _counted(tally))
        if number % _PIECE == 0:
            await asyncio.sleep(0.0)
    return rows


def usual_speeds(replicas: Iterable[Replica]) -> Mapping[frozenset[str], float]:
    """The prompt tokens a second of a usual replica of the same models: the median, of two the
    faster one. Models of which no speed is known are missing."""
    speeds: dict[frozenset[str], list[float]] = {}
    for replica in replicas:
        speed = replica.snapshot.prefill_tokens_per_s if replica.snapshot else None
        if speed is not None:
            speeds.setdefault(replica.models, []).append(speed)
    return {models: median_high(each) for models, each in speeds.items()}


def told(row: Mapping[str, Any], usual_per_s: float | None = None) -> dict[str, str]:
    """A row of `/replicas` in words for people: what the replica is `now`, its `mood` (`good`;
    `mild`: it passes, or was wished for; `bad`: it gets nothing and should), and what there is to
    `say` of it. Nothing but its silence is expected of one that no sidecar speaks for. One that
    serves is slow if it computes prompts less than half as fast as is usual for its models."""
    now, alone = str(row["standing"]), row["sidecar"] is None
    if now in _CHOSEN and not row["eligible"]:
        now = "left out"
    elif now == Standing.ELIGIBLE:
        now = "ramping" if row["state"] == State.RAMPING else "serving"
    if now == "serving" and row["stalled"]:
        now = "stalled"
    speed_per_s, slow = row["prefill_tokens_per_s"], ""
    if now == "serving" and speed_per_s and usual_per_s and 2.0 * speed_per_s < usual_per_s:
        now = "slow"
        slow = f"computes {speed_per_s:,.0f} prompt tokens/s, where {usual_per_s:,.0f} are usual"
    well = now == "serving" or (now == Standing.SILENT and alone)
    mood = "good" if well else "mild" if now in _PASSING else "bad"
    says = [row["why_not"], slow, "" if alone else row["reason"]]
    return {"now": now, "mood": mood, "say": "; ".join(filter(None, says))}


def _counted(tally: Tally) -> dict[str, Any]:
    failures = {str(kind): count for kind, count in tally.failures.items()}
    return {
        "first_byte_counts": tally.first_byte_s.counts,
        "failures": failures | ({"cut": tally.cut} if tally.cut else {}),
        "ejections": tally.ejections,
    }


def hot_keys(router: Router) -> list[dict[str, Any]]:
    """As `Router.hot_keys`, each with where it is at home."""
    now_s, rules, there = router.now_s(), router.rules, len(router.fleet.replicas)
    rows = []
    for key, placed in router.hot_keys()[:MOST_HOT]:
        home = router.fleet.replicas.get(placed.home)
        rows.append(
            {
                "key": f"{key:016x}"[:_KEY_DIGITS],
                "per_s": round(placed.rate_per_s(now_s), 1),
                "homes": min(homes_for(placed, rules.hot_per_s, now_s), there),
                "home": home.id if home else None,
            }
        )
    return rows


def _brief(decided: Decided) -> dict[str, Any]:
    """The whole numbers are in `/decisions`."""
    decision = decided.decision
    return {
        "at": round(decided.at, 3),
        "replica": decision.replica.id if decision.replica else None,
        "why": decision.why,
        "score": decision.score,
        "prompt_tokens": decided.prompt_tokens,
        "waited_s": round(decided.waited_s, 3),
        "second_try": decided.second_try,
    }
