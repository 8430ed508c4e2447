"""Pages become the events that a plugin would send: what is new, what is repeated, what began."""

from dataclasses import replace

import pytest

from ullage_sidecar.core.reading import SCRAPE, Hello, Reading
from ullage_sidecar.sources.exposition import Figures, Page
from ullage_sidecar.sources.scraped import Seen, Server, absent, look, rested

SERVER = Server("vllm", sender=0xABC0, machine="m")
T, WALL_S = 10_000.0, 1.8e9
BUSY = Figures(3, 1, 0.25, 100, 50, 0, 100, 0, total_blocks=256, block_size=32, models=("tiny",))
STARTED = Page({0: BUSY}, process_start_s=WALL_S - 600.0)
UNDATED = Page({0: BUSY})


def of(page, **changes):
    return replace(page, engines={rank: replace(f, **changes) for rank, f in page.engines.items()})


def told(*pages, seen=Seen(), server=SERVER, wall_s=WALL_S):  # noqa: B008 (a frozen value)
    """Look at pages a second apart, the first at T; what the last one said, and what was seen."""
    events = []
    for second, page in enumerate(pages):
        seen, events = look(server, seen, page, T + second, wall_s + second)
    return events, seen


def reading(*pages, **how):
    return told(*pages, **how)[0][1]


def hello(*pages, **how):
    return told(*pages, **how)[0][0]


def test_a_page_says_hello_and_how_it_stands():
    assert told(STARTED)[0] == [
        Hello(
            0xABC0, "vllm", "m-scrape-1799999400.000", 0, started_s=T - 600.0, ranks_here=1,
            models=("tiny",), total_blocks=256, block_size=32, source=SCRAPE,
        ),
        Reading(0xABC0, 1, T, 3, 1, 0.25, 100, 50, 0, 100, 0),
    ]  # fmt: skip


def test_each_rank_speaks_for_itself():
    events, _ = told(Page({0: BUSY, 1: replace(BUSY, running=0)}))
    assert [event.sender for event in events] == [0xABC0, 0xABC0, 0xABC1, 0xABC1]
    assert [(h.engine_index, h.data_parallel_size) for h in events[::2]] == [(0, 2), (1, 2)]
    assert [r.running for r in events[1::2]] == [3, 0]


def test_a_rank_that_is_alone_keeps_its_number():
    first = hello(Page({3: BUSY}))
    assert (first.engine_index, first.data_parallel_size) == (3, 4)


@pytest.mark.parametrize("ranks", [(0,), (3,), (0, 1), (4, 5, 6)])
def test_the_ranks_of_a_page_are_those_that_the_server_has_itself(ranks):
    events, _ = told(Page(dict.fromkeys(ranks, BUSY)))
    heard = [(h.engine_index, h.first_rank, h.ranks_here) for h in events[::2]]
    assert heard == [(rank, ranks[0], len(ranks)) for rank in ranks]


def test_what_has_not_changed_is_a_heartbeat_its_instant_included():
    """So an engine with work whose figures stand still is found to hang."""
    assert reading(UNDATED, UNDATED, UNDATED) == reading(UNDATED)


@pytest.mark.parametrize(
    "change",
    [{"running": 2}, {"waiting": 0}, {"kv_usage": 0.26}, {"generated_tokens": 51},
     {"prefix_hits": 1}, {"pulse": (2.0,)}, {"running": None}],
)  # fmt: skip
def test_any_figure_that_has_changed_makes_a_step(change):
    step = reading(UNDATED, UNDATED, of(UNDATED, **change))
    assert (step.seq, step.at_s) == (2, T + 2.0)
    assert step.running == change.get("running", 3)


def test_one_engines_step_is_none_of_another():
    two = Page({0: BUSY, 1: BUSY})
    events, _ = told(two, replace(two, engines={0: replace(BUSY, running=4), 1: BUSY}))
    assert [event.seq for event in events[1::2]] == [2, 1]


def test_after_a_rest_the_first_page_is_a_step():
    """The plugin spoke meanwhile, and its last word was another."""
    _, seen = told(UNDATED)
    step = reading(UNDATED, UNDATED, seen=rested(seen))
    assert (step.seq, step.at_s) == (2, T)


def test_what_the_operator_told_is_said():
    assert hello(UNDATED, server=SERVER._replace(max_num_seqs=8)).max_num_seqs == 8


# Incarnations


def test_a_process_that_began_at_another_instant_is_a_new_incarnation():
    again = replace(of(STARTED, generated_tokens=500), process_start_s=WALL_S + 0.5)
    events, _ = told(STARTED, again)
    assert events[0].boot_id != hello(STARTED).boot_id
    assert events[0].started_s == T + 0.5
    assert (events[1].seq, events[1].at_s) == (1, T + 1.0)


@pytest.mark.parametrize("days", [-400, 400])
def test_a_clock_that_is_set_begins_nothing(days):
    first, seen = told(STARTED)
    after = hello(STARTED, seen=seen, wall_s=WALL_S + days * 86_400.0)
    assert (after.boot_id, after.started_s) == (first[0].boot_id, first[0].started_s)


@pytest.mark.parametrize(("ago_s", "started_s"), [(-86_400.0, T), (0.0, T), (1e9, 0.0)])
def test_no_start_is_in_the_future_nor_before_the_machines(ago_s, started_s):
    assert hello(replace(STARTED, process_start_s=WALL_S - ago_s)).started_s == started_s


def test_what_counts_is_when_the_engines_were_ready_not_when_the_process_began():
    """To load a large model takes minutes, and warms nothing up."""
    ready = replace(STARTED, serves_since_s=WALL_S - 2.0)
    assert hello(ready).started_s == T - 2.0
    assert hello(ready).boot_id == hello(STARTED).boot_id


def test_where_nothing_is_known_of_its_start_it_began_long_ago():
    assert hello(UNDATED).started_s == 0.0


def test_it_did_not_serve_while_it_was_known_to_be_absent():
    seen = absent(Seen(), T - 3.0)
    assert hello(UNDATED, seen=seen).started_s == T - 3.0
    assert hello(STARTED, seen=seen).started_s == T - 3.0


def test_one_that_was_absent_and_tells_no_start_is_a_new_incarnation():
    first, seen = told(UNDATED)
    events, _ = told(UNDATED, seen=absent(seen, T + 5.0))
    assert events[0].boot_id != first[0].boot_id
    assert events[0].started_s == T + 5.0


def test_one_that_was_absent_for_a_moment_and_is_the_same_process_has_not_begun_anew():
    first, seen = told(STARTED)
    after = hello(STARTED, seen=absent(seen, T + 5.0))
    assert (after.boot_id, after.started_s) == (first[0].boot_id, first[0].started_s)


@pytest.mark.parametrize(
    "total", ["prompt_tokens", "generated_tokens", "prefix_queries", "prefix_hits", "preemptions"]
)
def test_a_total_that_went_down_where_no_start_is_told_is_a_new_incarnation(total):
    full = of(UNDATED, **{total: 7})
    events, _ = told(full, of(full, **{total: 6}))
    assert events[0].boot_id != hello(full).boot_id
    assert events[0].started_s == T
    assert told(full, of(full, **{total: 8}))[0][0].boot_id == hello(full).boot_id
    assert told(full, of(full, **{total: None}))[0][0].boot_id == hello(full).boot_id


def test_a_start_that_is_told_only_now_begins_nothing():
    assert hello(UNDATED, STARTED).boot_id == hello(UNDATED).boot_id


def test_a_restarted_sidecar_calls_a_server_by_the_same_name():
    other = SERVER._replace(sender=5)
    for page in (STARTED, UNDATED):
        assert hello(page, server=other).boot_id == hello(page).boot_id
    rebooted = SERVER._replace(machine="n")
    assert hello(UNDATED, server=rebooted).boot_id != hello(UNDATED).boot_id
