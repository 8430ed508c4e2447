"""`/replicas`: the table of replicas as the router sees it, and why each would not be chosen."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import asdict

from ullage_router.core.fleet import Replica
from ullage_router.core.lineup import stand
from ullage_router.explain import Reasons
from ullage_router.router import Router
from ullage_shared.discovery.listing import Listing
from ullage_shared.feed import Feed


def known(router: Router) -> list[Replica]:
    """Those of the fleet, and those that have left it and have yet to finish what they have."""
    return [*router.fleet.replicas.values(), *router.leaving.values()]


def replica_row(router: Router, replica: Replica, reasons: Reasons, now_s: float) -> dict[str, Any]:
    """One replica as the router sees it now, and why it would or would not be chosen."""
    policy = router.rules.choose
    seen = replica.snapshot
    tally = router.tallies.get(replica.key)
    age_s = replica.age_s(now_s)
    if seen is None:
        reason = "no sidecar speaks for it"
    elif age_s is not None and age_s > policy.stale_after_s:
        reason = "its sidecar is silent"
    else:
        reason = seen.reason
    why_not = reasons.why_not(replica)
    return {
        "id": replica.id,
        "url": replica.url,
        "dp_rank": replica.dp_rank,
        "eligible": not why_not,
        "standing": stand(replica, now_s, policy),
        "why_not": why_not,
        "capacity_score": seen.capacity_score if seen else None,
        "state": seen.state if seen else None,
        "boot_id": replica.boot_id,
        "stalled": seen.stalled if seen else False,
        "reason": reason,
        "age_s": None if age_s is None else round(age_s, 3),
        "in_flight": router.in_flight.by_replica[replica.key],
        "dispatched": tally.dispatched if tally else 0,
        "free_block_ratio": seen.free_block_ratio if seen else None,
        "running": seen.running if seen else None,
        "waiting": seen.waiting if seen else None,
        "max_num_seqs": seen.max_num_seqs if seen else None,
        "exhaustion_s": seen.exhaustion_s if seen else None,
        "parts": asdict(seen.parts) if seen and seen.parts else None,
        "step_s": seen.step_s if seen else None,
        "decode_tokens_per_s": seen.decode_tokens_per_s if seen else None,
        "prefill_tokens_per_s": seen.prefill_tokens_per_s if seen else None,
        "models": sorted(replica.models),
        "sidecar": replica.source,
    }


def replicas_page(
    router: Router,
    feeds: Mapping[str, Feed],
    now_s: float,
    listings: Sequence[Listing] = (),
) -> dict[str, Any]:
    """`/replicas`: the table, and what is wrong with the sidecars, and with what lists them."""
    reasons = Reasons(router)
    rows = [replica_row(router, replica, reasons, now_s) for replica in known(router)]
    return {
        "routing_by": router.odds().line_up.basis,
        "replicas": rows,
        "sidecars": sidecars(feeds),
        "sources": sources(listings),
    }


def sidecars(feeds: Mapping[str, Feed]) -> list[dict[str, Any]]:
    """How the router fares with each of them."""
    return [
        {
            "url": url,
            "watched": feed.watching,
            "problem": feed.problem,
            "faults": feed.faults,
        }
        for url, feed in feeds.items()
    ]


def sources(listings: Sequence[Listing]) -> list[dict[str, Any]]:
    """What the lists that may change name now."""
    return [
        {
            "list": listing.name,
            "source": source,
            "servers": len(seeker.known.urls),
            "problem": seeker.known.problem,
        }
        for listing in listings
        for source, seeker in listing.seekers.items()
    ]
