"""The queue: its order, its bounds, who gives way, and who has waited long enough."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_router.core.queue import Outcome, QueuePolicy, Ticket, WaitingLine


def line(
    max_requests: int = 256, max_bytes: int = 1_000, max_wait_s: float = 2.0
) -> WaitingLine[str]:
    return WaitingLine(QueuePolicy(max_requests, max_bytes, max_wait_s))


def put(
    to: WaitingLine[str], item: str, priority: int = 0, size_bytes: int = 0, now_s: float = 0.0
) -> Outcome[str]:
    return to.put(item, now_s, priority=priority, size_bytes=size_bytes)


def items(tickets: "WaitingLine[str] | tuple[Ticket[str], ...] | list[Ticket[str]]") -> str:
    return "".join(ticket.item for ticket in tickets)


def test_the_lower_number_is_served_first_and_equals_as_they_came() -> None:
    waiting = line()
    for item, priority in (("a", 0), ("b", 5), ("c", -1), ("d", 0), ("e", -1), ("f", 5)):
        put(waiting, item, priority)
    assert items(waiting) == "ceadbf"


def test_when_full_the_latest_of_the_worst_gives_way_to_a_better_one() -> None:
    waiting = line(max_requests=3)
    for item, priority in (("a", 5), ("b", 5), ("c", 0)):
        put(waiting, item, priority)
    assert items(put(waiting, "d", 4).displaced) == "b"
    assert items(waiting) == "cda"


@pytest.mark.parametrize("priority", [5, 6])
def test_nobody_gives_way_to_one_that_is_no_better(priority: int) -> None:
    waiting = line(max_requests=2)
    put(waiting, "a", 5)
    put(waiting, "b", 5)
    assert put(waiting, "c", priority) == (None, ())
    assert items(waiting) == "ab"


def test_as_many_give_way_as_its_bytes_need_the_worst_first() -> None:
    waiting = line(max_bytes=100)
    for item, priority in (("a", 1), ("b", 2), ("c", 3)):
        put(waiting, item, priority, size_bytes=30)
    placed = put(waiting, "d", 0, size_bytes=70)
    assert items(placed.displaced) == "cb"
    assert (items(waiting), waiting.size_bytes) == ("da", 100)


def test_nobody_gives_way_in_vain() -> None:
    waiting = line(max_bytes=100)
    put(waiting, "a", 0, size_bytes=60)
    put(waiting, "b", 9, size_bytes=40)
    assert put(waiting, "c", 5, size_bytes=41) == (None, ())
    assert (items(waiting), waiting.size_bytes) == ("ab", 100)


@pytest.mark.parametrize(("size_bytes", "waits"), [(1_000, True), (1_001, False)])
def test_a_body_larger_than_all_the_bytes_never_waits(size_bytes: int, waits: bool) -> None:
    waiting = line(max_bytes=1_000)
    assert (put(waiting, "a", -5, size_bytes).ticket is not None) is waits


def test_the_last_byte_may_be_taken_and_none_beyond() -> None:
    waiting = line(max_bytes=100)
    assert put(waiting, "a", size_bytes=60).ticket
    assert put(waiting, "b", size_bytes=40).ticket
    assert not put(waiting, "c", size_bytes=1).ticket
    assert put(waiting, "d", size_bytes=0).ticket


def test_a_queue_of_none_is_no_queue() -> None:
    assert put(line(max_requests=0), "a", -5) == (None, ())


def test_narrower_bounds_send_nobody_away_and_let_nobody_in() -> None:
    waiting = line()
    for item in "abc":
        put(waiting, item, 1)
    waiting.policy = QueuePolicy(max_requests=2)
    assert items(waiting) == "abc"
    assert not put(waiting, "d", 1).ticket
    assert items(put(waiting, "e", 0).displaced) == "cb"


def test_any_may_be_taken_out_and_only_once() -> None:
    waiting = line()
    tickets = [put(waiting, item, size_bytes=10).ticket for item in "abc"]
    assert tickets[1] is not None
    assert waiting.remove(tickets[1])
    assert not waiting.remove(tickets[1])
    assert (items(waiting), waiting.size_bytes, len(waiting)) == ("ac", 20, 2)


def test_a_displaced_one_is_out_already() -> None:
    waiting = line(max_requests=1)
    put(waiting, "a", 1)
    (displaced,) = put(waiting, "b", 0).displaced
    assert not waiting.remove(displaced)


@pytest.mark.parametrize(("now_s", "out"), [(11.999, ""), (12.0, "a"), (12.5, "ab")])
def test_who_has_waited_long_enough_is_told_exactly(now_s: float, out: str) -> None:
    waiting = line(max_wait_s=2.0)
    put(waiting, "a", now_s=10.0)
    put(waiting, "b", now_s=10.5)
    put(waiting, "c", now_s=11.0)
    assert items(waiting.expired(now_s)) == out
    assert items(waiting) == "abc"


def test_a_low_priority_does_not_hide_how_long_one_has_waited() -> None:
    waiting = line(max_wait_s=2.0)
    put(waiting, "a", 9, now_s=0.0)
    put(waiting, "b", 0, now_s=1.0)
    assert items(waiting.expired(2.5)) == "a"


def test_a_clock_set_back_keeps_nobody_waiting() -> None:
    waiting = line(max_wait_s=2.0)
    put(waiting, "a", now_s=100.0)
    put(waiting, "b", now_s=50.0)
    assert items(waiting.expired(50.1)) == "a"


def test_a_lane_is_waited_in_until_its_last_one_has_left() -> None:
    waiting = line()
    one = waiting.put("a", 0.0, priority=0, size_bytes=0, lane="m").ticket
    two = waiting.put("b", 0.0, priority=0, size_bytes=0, lane="m").ticket
    assert one is not None
    assert two is not None
    assert (waiting.waits("m"), waiting.waits("other"), waiting.waits(None)) == (True, False, False)
    waiting.remove(one)
    assert waiting.waits("m")
    waiting.remove(two)
    assert not waiting.waits("m")


def test_made_up_lanes_leave_nothing_behind() -> None:
    waiting = line(max_requests=4)
    for n in range(1_000):
        waiting.put(str(n), 0.0, priority=-n, size_bytes=1, lane=f"made up {n}")
        assert len(waiting._lanes) <= 4
    for ticket in list(waiting):
        waiting.remove(ticket)
    assert (len(waiting._line), len(waiting._lanes), waiting.size_bytes) == (0, 0, 0)
    assert repr(waiting) == "WaitingLine(0: 0 bytes)"


WISH = st.tuples(st.integers(-3, 3), st.integers(0, 40), st.sampled_from("ab"), st.booleans())


@given(st.lists(WISH, max_size=60), st.integers(0, 6), st.integers(0, 100))
def test_whatever_comes_and_goes_order_and_bounds_hold_and_nobody_is_lost(
    wishes: list[tuple[int, int, str, bool]], max_requests: int, max_bytes: int
) -> None:
    waiting: WaitingLine[int] = WaitingLine(QueuePolicy(max_requests, max_bytes))
    there: dict[int, Ticket[int]] = {}
    for n, (priority, size_bytes, lane, leaves) in enumerate(wishes):
        worst = max(there.values(), default=None)
        placed = waiting.put(n, float(n), priority=priority, size_bytes=size_bytes, lane=lane)
        for ticket in placed.displaced:
            assert ticket.priority > priority
            del there[ticket.item]
        assert placed.displaced[:1] in ((), (worst,))
        if placed.ticket is not None:
            there[n] = placed.ticket
        elif size_bytes <= max_bytes and max_requests and worst is not None:
            better = [t for t in there.values() if t.priority <= priority]
            fits = sum(t.size_bytes for t in better) + size_bytes <= max_bytes
            assert len(better) >= max_requests or not fits
        if leaves and there:
            assert waiting.remove(there.pop(min(there)))
        assert list(waiting) == sorted(there.values())
        assert len(waiting) <= max_requests
        assert waiting.size_bytes == sum(t.size_bytes for t in there.values()) <= max_bytes
        assert {lane for lane in "ab" if waiting.waits(lane)} == {t.lane for t in there.values()}
