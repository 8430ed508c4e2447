"""A decision told in numbers: every candidate that was looked at, and what it was judged by."""

from typing import NamedTuple

from ullage_router.core.decision import Decision
from ullage_router.core.odds import weight_of


class Candidate(NamedTuple):
    """One that might have been chosen."""

    replica: str
    """Its id."""
    score: float | None
    """Capacity score of its snapshot, for this size of request; None: it was silent."""
    trend: float
    """What its weight counts of that, because it kept falling: 0.5..1."""
    effective: float
    """The score, less what this router had sent there since the snapshot."""
    weight: float
    """effective ^ exponent, less if it falls or returns from an ejection; 0: it has no room."""
    odds: float
    """Its part of all weights: its chance in a draw, where nothing else settled the matter."""
    home: bool
    """Was the request's key at home there?"""
    wait_s: float | None = None
    """By `least_wait`: the wait reckoned with (see `waits`); None: it was not looked at."""
    uncached_tokens: int | None = None
    """Likewise: of its prompt, to be computed there."""


def candidates(decision: Decision) -> list[Candidate]:
    """Those that were looked at, the likeliest first; empty where nobody could be chosen."""
    look = decision.look
    if look is None:
        return []
    home = decision.known.home if decision.known else None
    able = enumerate(look.scores)
    waits = look.waits
    expected = waits.by_place() if waits else {}
    rows = []
    for seat in look.seats:
        key, weight, wait_s, left = seat.replica.key, 0.0, None, None
        score = look.full.get(key)
        if score is None:
            place, score = next(able)
            if waits is None:
                weight = weight_of(seat, score, look.exponent)
            elif place in expected:
                wait_s, left, weight = expected[place]
        is_home = key == home if waits is None else left is not None and left < waits.tokens
        name = seat.replica.id
        rows.append(
            Candidate(
                name,
                seat.score,
                seat.trend,
                score,
                weight,
                0.0,
                is_home,
                None if wait_s is None else round(wait_s, 4),
                left,
            )
        )
    total = sum(row.weight for row in rows)
    told = [row._replace(odds=row.weight / total if total else 0.0) for row in rows]
    return sorted(told, key=lambda row: (-row.odds, row.replica))
