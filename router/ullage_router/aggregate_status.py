"""Several workers' `/status` as one: pure, no process and no socket.

Rules
* Counts, and what waits or is connected now, are added up; of the gate the worst state shows.
* Of a worker that has ended, or does not answer, nothing is in it: a count may fall then, and
  whoever takes differences begins anew.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ullage_router.aggregate import decisions, replicas
from ullage_router.core.gate import State
from ullage_router.status import MOST_HOT, MOST_RECENT

_BAD_LAST: Final = tuple(state.value for state in (State.OPEN, State.QUEUEING, State.REFUSING))


def status(pages: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """The document of all workers, at least one, by number. What was set is as the first has it."""
    parts = list(pages.values())
    first = parts[0]
    queues = [part["queue"] for part in parts]
    waits = [queue["oldest_s"] for queue in queues if queue["oldest_s"] is not None]
    states = [part["overload"]["state"] for part in parts]
    return {
        **first,
        "uptime_s": max(part["uptime_s"] for part in parts),
        "stopping": any(part["stopping"] for part in parts),
        "clients": sum(part["clients"] for part in parts),
        "overload": {
            "state": max(states, key=_BAD_LAST.index),
            "episodes": sum(part["overload"]["episodes"] for part in parts),
        },
        "queue": {
            **{
                name: sum(queue[name] for queue in queues)
                for name in ("length", "bytes", "max_requests", "queued")
            },
            "oldest_s": max(waits, default=None),
            "max_wait_s": first["queue"]["max_wait_s"],
            "refused": _added([queue["refused"] for queue in queues]),
        },
        **{name: _added([part[name] for part in parts]) for name in ("decisions", "refusals")},
        **{
            name: sum(part[name] for part in parts)
            for name in ("second_tries", "second_tries_denied", "cache_keys")
        },
        "hot_keys": _hot([row for part in parts for row in part["hot_keys"]]),
        **replicas(parts),
        "recent": decisions({number: part["recent"] for number, part in pages.items()})[
            :MOST_RECENT
        ],
    }


def _added(parts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for part in parts:
        sums.update(part)
    return dict(sums)


def _hot(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Each worker sees its part of a key's rate, and reckons with that."""
    keys: dict[str, dict[str, Any]] = {}
    for row in rows:
        known = keys.setdefault(row["key"], {**row, "per_s": 0.0})
        known["per_s"] = round(known["per_s"] + row["per_s"], 1)
        known["homes"] = max(known["homes"], row["homes"])
    return sorted(keys.values(), key=lambda row: -row["per_s"])[:MOST_HOT]
