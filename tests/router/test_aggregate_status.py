"""Several workers' `/status` as one: what is added up, what is the worst, what is as the first."""

from typing import Any

import pytest

from ullage_router.aggregate_status import status
from ullage_router.status import MOST_HOT, MOST_RECENT


def row(url: str = "http://a:1", **changes: Any) -> dict[str, Any]:
    fresh = {
        "url": url,
        "dp_rank": None,
        "age_s": 0.5,
        "in_flight": 0,
        "dispatched": 0,
        "first_byte_counts": [0, 0],
        "failures": {},
        "ejections": 0,
    }
    return {**fresh, **changes}


def page(*rows: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """One worker's; `queue__length=3` is in its queue."""
    whole: dict[str, Any] = {
        "version": "1",
        "at": 100.0,
        "uptime_s": 10.0,
        "stopping": False,
        "way": "weighted",
        "floor": 0.15,
        "clients": 0,
        "overload": {"state": "open", "episodes": 0},
        "queue": {
            "length": 0,
            "bytes": 0,
            "oldest_s": None,
            "max_requests": 256,
            "max_wait_s": 2.0,
            "queued": 0,
            "refused": {"waited": 0},
        },
        "decisions": {"score": 0},
        "refusals": {},
        "second_tries": 0,
        "second_tries_denied": 0,
        "cache_keys": 0,
        "hot_keys": [],
        "first_byte_bounds_s": [1.0],
        "routing_by": "score",
        "replicas": list(rows),
        "sidecars": [],
        "sources": [],
        "recent": [],
    }
    for name, value in changes.items():
        at, _, inner = name.rpartition("__")
        (whole[at] if at else whole)[inner] = value
    return whole


def test_one_workers_status_is_the_whole_but_for_its_number_beside_decisions() -> None:
    alone = page(row(dispatched=3), recent=[{"at": 1.0}], refusals={"full": 1})
    assert status({4: alone}) == {**alone, "recent": [{"at": 1.0, "worker": 4}]}


def test_counts_and_what_is_there_now_are_added_up() -> None:
    merged = status(
        {
            1: page(
                row(in_flight=1, dispatched=10, first_byte_counts=[1, 2], failures={"cut": 1}),
                clients=3,
                decisions={"score": 5, "full": 1},
                refusals={"no_capacity": 1},
                queue__length=2,
                queue__refused={"waited": 1},
                second_tries=1,
            ),
            2: page(
                row(
                    in_flight=2,
                    dispatched=20,
                    first_byte_counts=[10, 20],
                    failures={"cut": 2, "connect": 4},
                    ejections=1,
                ),
                clients=4,
                decisions={"score": 6, "full": 0},
                refusals={"bad_request": 2},
                queue__length=1,
                queue__refused={"waited": 5},
                second_tries=2,
                overload__episodes=1,
            ),
        }
    )
    assert merged["replicas"] == [
        row(
            in_flight=3,
            dispatched=30,
            first_byte_counts=[11, 22],
            failures={"cut": 3, "connect": 4},
            ejections=1,
        )
    ]
    assert merged["clients"] == 7
    assert merged["decisions"] == {"score": 11, "full": 1}
    assert merged["refusals"] == {"no_capacity": 1, "bad_request": 2}
    assert merged["queue"]["refused"] == {"waited": 6}
    assert (merged["queue"]["length"], merged["queue"]["max_requests"]) == (3, 512)
    assert (merged["second_tries"], merged["overload"]["episodes"]) == (3, 1)


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        (("open", "open"), "open"),
        (("queueing", "open"), "queueing"),
        (("queueing", "refusing", "open"), "refusing"),
    ],
)
def test_the_worst_gate_shows(states: tuple[str, ...], shown: str) -> None:
    pages = {n: page(overload__state=state) for n, state in enumerate(states)}
    assert status(pages)["overload"]["state"] == shown


@pytest.mark.parametrize(
    ("waits_s", "shown"), [((None, None), None), ((0.5, None), 0.5), ((0.5, 1.5), 1.5)]
)
def test_the_longest_wait_shows(waits_s: tuple[float | None, ...], shown: float | None) -> None:
    pages = {n: page(queue__oldest_s=wait_s) for n, wait_s in enumerate(waits_s)}
    assert status(pages)["queue"]["oldest_s"] == shown


def test_a_key_that_is_hot_in_several_workers_is_one() -> None:
    def hot(key: str, per_s: float, homes: int) -> dict[str, Any]:
        return {"key": key, "per_s": per_s, "homes": homes, "home": "a"}

    one = page(hot_keys=[hot("aa", 30.0, 2), hot("bb", 26.1, 2)])
    other = page(hot_keys=[hot("bb", 50.2, 3)])
    assert status({1: one, 2: other})["hot_keys"] == [hot("bb", 76.3, 3), hot("aa", 30.0, 2)]
    many = [hot(f"{n:x}", 30.0, 2) for n in range(MOST_HOT)]
    assert len(status({1: page(hot_keys=[*many, hot("aa", 1.0, 2)])})["hot_keys"]) == MOST_HOT


def test_the_latest_decisions_of_all_are_told_newest_first() -> None:
    full = [{"at": float(at)} for at in range(MOST_RECENT, 0, -1)]
    recent = status({1: page(recent=full), 2: page(recent=[{"at": 30.5}])})["recent"]
    assert len(recent) == MOST_RECENT
    assert recent[19:22] == [
        {"at": 31.0, "worker": 1},
        {"at": 30.5, "worker": 2},
        {"at": 30.0, "worker": 1},
    ]
