"""What users of such routers report (design/peers.md, by its numbers), and what keeps it from ours.

Each is covered by tests, `FILE::FUNCTION`, or by promises of the table, by the beginning of their
names. Those that need a part which we do not have yet say so.
"""

from typing import Final

HTTP: Final = "tests/router/http/"
CORE: Final = "tests/router/core/"

COVERED: Final[dict[int, tuple[str, ...]]] = {
    1: (
        "A client leaves before an answer that is no stream",
        "A client that leaves with requests in line",
    ),
    2: ("A client leaves before a stream's first event", "A client leaves mid-stream"),
    3: (
        HTTP + "test_leaks.py::test_after_ten_thousand_outcomes_everything_is_back_where_it_began",
        CORE + "test_inflight.py::test_replicas_that_have_left_leave_nothing_behind",
    ),
    5: (
        CORE + "test_inflight.py::test_releasing_twice_releases_once",
        CORE + "test_inflight.py::test_an_error_releases_too",
    ),
    6: (
        "tests/router/test_metrics.py"
        "::test_a_request_that_outlives_its_replica_leaves_nothing_behind",
    ),
    7: (
        CORE + "test_decide.py::test_a_burst_of_64_over_8_equal_replicas_floods_none",
        CORE + "test_decide.py::test_equal_replicas_share_equally",
    ),
    8: (CORE + "test_fleet.py::test_an_older_snapshot_never_beats_a_newer_one",),
    9: (CORE + "test_decide.py::test_a_stale_refusal_clears_by_itself",),
    10: (CORE + "test_fleet.py::test_a_sidecar_does_not_touch_the_replicas_of_another",),
    14: (
        "A connection that the replica closed while idle costs no request",
        "A reused connection that closes at the request",
    ),
    15: (
        "A request is never sent a third time",
        "A replica that closes before its answer",
        "A replica's 429 is passed on as it is",
    ),
    16: ("A 4xx does not close the way to its replica", "A replica's 404 is passed on as it is"),
    17: ("A 4xx to a request that wants a stream is that 4xx",),
    18: ("A 1.5 MB event comes back byte for byte",),
    19: (
        "Twenty requests that a replica never answers stall nobody else",
        "A replica that does not begin its answer in time",
    ),
    20: (
        "tests/router/test_metrics.py"
        "::test_the_series_of_a_replica_that_leaves_vanish_and_made_up_models_add_none",
    ),
    21: (
        "tests/router/test_feed.py::test_a_missing_signal_is_an_error_that_names_it_not_a_zero",
        CORE + "test_decide.py::test_an_unknown_score_is_neither_idle_nor_full",
    ),
    22: (
        "A JSON body reaches the replica byte for byte",
        "A `seed` beyond int64",
        "`x-custom` reaches the replica",
        "An IPv6 replica is reached",
    ),
    23: (
        CORE + "test_fleet.py::test_a_new_list_adds_and_removes_and_leaves_the_rest_as_it_is",
        CORE + "test_fleet.py::test_a_new_list_with_a_bad_url_is_the_operators_error",
    ),
    24: ("Each event arrives before the next one is sent",),
    25: (
        "Eight prompts of 1 MB stall nobody else",
        CORE + "test_ask.py::test_a_huge_prompt_hides_no_model",
    ),
}

NOT_YET: Final = {
    4: "no prefix table",
    11: "no affinity",
    12: "no affinity",
    13: "no affinity",
}
