"""Decisions, told to people: those of the past, and what would be decided now."""

from typing import Any, Final

from aiohttp import web

from ullage_router.core.ask import Ask
from ullage_router.core.decision import Decision, Need
from ullage_router.core.detail import candidates
from ullage_router.core.fleet import Replica
from ullage_router.core.lineup import Standing, left_out
from ullage_router.core.waits import LEAST_UNCACHED
from ullage_router.http.asked import asked
from ullage_router.http.errors import Refusal
from ullage_router.http.message import Fields
from ullage_router.router import Decided, Router

MOST_BYTES: Final = 8 * 1024 * 1024
"""Largest body that can be explained."""


def decisions_page(router: Router) -> list[dict[str, Any]]:
    """`/decisions`: the latest, newest first, with the numbers of all that were looked at."""
    return [_past(decided) for decided in reversed(router.recent)]


def _past(decided: Decided) -> dict[str, Any]:
    return {
        "at": decided.at,
        "request_id": decided.request_id.decode("latin-1"),
        "prompt_tokens": decided.prompt_tokens,
        "second_try": decided.second_try,
        "waited_s": round(decided.waited_s, 3),
        "in_flight": decided.in_flight,
        **_told(decided.decision),
    }


def _told(decision: Decision) -> dict[str, Any]:
    return {
        "replica": decision.replica.id if decision.replica else None,
        "why": decision.why,
        "score": decision.score,
        "candidates": [row._asdict() for row in candidates(decision)],
    }


async def explanation(router: Router, request: web.Request) -> tuple[dict[str, Any], int]:
    """`POST /explain…`: what would be chosen for this request now, and why; the status with it.

    What stands behind `/explain` is the path that the request would be sent to; nothing: the one
    that its body is for.
    """
    body = await request.read()
    target = request.match_info["path"] or _path_for(body)
    values: dict[bytes, list[bytes]] = {}
    for name, value in request.raw_headers:
        values.setdefault(name.lower(), []).append(value)
    session = router.rules.affinity.session_header.lower().encode()
    ask = asked(target.encode(), Fields([], values), body, session)
    if isinstance(ask, Refusal):
        return ask.content, ask.status
    return explained(router, ask), 200


def _path_for(body: bytes) -> str:
    return "/v1/completions" if b'"prompt"' in body else "/v1/chat/completions"


def explained(router: Router, ask: Ask) -> dict[str, Any]:
    """What would be chosen for this request now."""
    need = router.need(ask)
    decision = router.explain(ask)
    known = decision.known
    reasons = Reasons(router, need)
    out = {r.id: _in_full(reasons.why_not(r), r) for r in router.fleet.replicas.values()}
    return {
        **_told(decision),
        "left_out": {name: reason for name, reason in out.items() if reason},
        "request": {
            "model": ask.model,
            "prompt_tokens": router.prompt_tokens(ask),
            "size": need.size,
            "max_tokens": ask.max_tokens,
            "priority": ask.priority,
            "cache_keys": len(ask.keys),
            "cache_keys_known": router.keys_known(need),
            "cache_key_per_s": (
                round(known.placed.rate_per_s(router.now_s()), 3) if known else None
            ),
        },
    }


def _in_full(why_not: str, replica: Replica) -> str:
    """With what its sidecar says of the state that is the reason."""
    seen = replica.snapshot
    if seen is None or not seen.reason or why_not != f"it is {seen.state}":
        return why_not
    return f"{why_not}: {seen.reason}"


ANY: Final = Need()
"""Whatever a replica that has room would be given."""


class Reasons:
    """Why replicas are left out now, for requests of one kind."""

    def __init__(self, router: Router, need: Need = ANY) -> None:
        self._router = router
        self._model = need.model
        self._tokens = max(need.prompt_tokens, LEAST_UNCACHED)
        self._odds = router.odds(need.model, need.size)
        self._aside, self._thrown = left_out(router.fleet, router.now_s(), router.rules)

    def why_not(self, replica: Replica) -> str:
        """Why it gets no request; empty: it may get one."""
        key, policy, lined_up = replica.key, self._router.rules.choose, self._odds.line_up
        judged = lined_up.judged.get(key)
        if judged is None:
            return "is no longer in the fleet: it finishes what it has"
        if (place := self._odds.place(key)) is not None:
            if not self._odds.late([place], [self._tokens], policy.full_beyond_s):
                return ""
            return f"it has a queue, and no room for this within {policy.full_beyond_s:g} s"
        if key in lined_up.at:
            return "this router has filled it since its last snapshot"
        if key in self._thrown:
            return "failed again and again: out until it has answered a probe"
        if key in self._aside:
            return "gave no answer, or had no room, a moment ago"
        if self._model is not None and replica.models and self._model not in replica.models:
            return "it serves other models"
        if judged.standing is Standing.FULL:
            return f"score is not above the floor of {policy.floor}"
        if judged.standing is Standing.LOST:
            return f"its sidecar has been silent for more than {policy.forget_after_s} s"
        return f"it is {judged.standing}"
