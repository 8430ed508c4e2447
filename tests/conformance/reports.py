"""What users of such routers report (design/peers.md, by its numbers), and what keeps it from ours.

Each is covered by tests, `FILE::FUNCTION`, or by promises of the table, by the beginning of their
names.
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
    4: (CORE + "test_hot_keys.py::test_a_million_distinct_keys_stay_under_the_cap",),
    5: (
        CORE + "test_inflight.py::test_releasing_twice_releases_once",
        CORE + "test_inflight.py::test_an_error_releases_too",
    ),
    6: (
        "tests/router/test_metrics.py"
        "::test_a_request_that_outlives_its_replica_leaves_nothing_behind",
    ),
    7: (
        CORE + "test_bursts.py::test_a_burst_over_equal_replicas_spreads_evenly",
        CORE + "test_bursts.py::test_a_burst_spreads_evenly_though_some_are_heard_amid_it",
        CORE + "test_lineup.py"
        "::test_what_a_snapshot_cannot_show_yet_is_taken_off_though_it_came_later",
        CORE + "test_decide.py::test_equal_replicas_share_equally",
    ),
    8: (
        CORE + "test_fleet.py::test_an_older_snapshot_never_beats_a_newer_one",
        CORE + "test_fleet.py::test_the_boot_before_never_beats_the_one_that_followed_it",
    ),
    9: (
        CORE + "test_decide.py::test_a_stale_refusal_clears_by_itself",
        CORE + "test_gate.py::test_one_calm_second_opens_it_from_anywhere",
        "tests/router/test_waiting.py::test_an_overload_clears_though_nobody_comes",
    ),
    10: (CORE + "test_fleet.py::test_a_sidecar_does_not_touch_the_replicas_of_another",),
    11: (
        CORE + "test_affinity.py::test_a_key_leaves_a_replica_that_does_not_serve_at_once",
        HTTP + "test_breaker_readmits.py::test_affinity_does_not_pin_a_dead_replica",
    ),
    12: (
        CORE + "test_hot_keys.py::test_a_hot_key_is_spread_over_as_many_as_its_rate_needs",
        HTTP
        + "test_asked.py"
        + "::test_a_hot_prefix_is_spread_over_as_many_replicas_as_its_rate_needs",
    ),
    13: (CORE + "test_chains.py::test_moderate_imbalance_leaves_nine_of_ten_turns_at_home",),
    14: (
        "A connection that the replica closed while idle costs no request",
        "A reused connection that closes at the request",
    ),
    15: (
        "A request is never sent a third time",
        "A replica that closes before its answer",
        "A replica's 429 is passed on as it is",
        CORE + "test_decide.py::test_a_replica_that_was_tried_is_not_chosen_again",
    ),
    16: (
        "A 4xx does not close the way to its replica",
        "A replica's 404 is passed on as it is",
        CORE + "test_breaker.py::test_no_room_is_no_failure",
    ),
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
        CORE + "test_ask.py::test_the_model_is_found_wherever_it_is",
    ),
}
