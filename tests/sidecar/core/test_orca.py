"""A load report says what is known, under ORCA's names, and leaves out the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapshots import snapshot
from ullage_shared.snapshot import State
from ullage_sidecar.core.orca import report

FIELDS = {"application_utilization", "named_metrics"}
"""Of `xds.data.orca.v3.OrcaLoadReport`; a proto's JSON reader refuses others."""


def engine(capacity=0.25, **changes):
    known = {"free_blocks": 25, "total_blocks": 101, "running": 6, "waiting": 2}
    return snapshot("http://x:1", capacity, **(known | changes))


def test_what_is_used_up_is_what_the_score_leaves():
    assert report([engine()]) == {
        "application_utilization": 0.75,
        "named_metrics": {
            "kv_cache_usage_perc": 0.75,
            "num_requests_running": 6,
            "num_requests_waiting": 2,
        },
    }


def test_an_idle_engine_is_used_by_0_and_one_that_is_down_by_1():
    idle = report([engine(1.0, free_blocks=100, running=0, waiting=0)])
    assert idle["application_utilization"] == 0.0
    assert set(idle["named_metrics"].values()) == {0.0}
    assert report([engine(0.0, state=State.DOWN)])["application_utilization"] == 1.0


def test_what_is_unknown_is_absent():
    mute = engine(None, free_blocks=None, running=None, waiting=None)
    assert report([mute]) == {}
    assert report([engine(None, waiting=None)]) == {
        "named_metrics": {"kv_cache_usage_perc": 0.75, "num_requests_running": 6}
    }


@pytest.mark.parametrize("total", [None, 0, 1])
def test_without_usable_blocks_their_use_is_unknown(total):
    named = report([engine(total_blocks=total, free_blocks=0)])["named_metrics"]
    assert "kv_cache_usage_perc" not in named


def test_ranks_are_one_server():
    both = report([engine(0.25), engine(0.75, free_blocks=75, running=1, waiting=0)])
    assert both == {
        "application_utilization": 0.5,
        "named_metrics": {
            "kv_cache_usage_perc": 0.5,
            "num_requests_running": 7,
            "num_requests_waiting": 2,
        },
    }


def test_one_unknown_rank_makes_the_server_unknown():
    assert report([engine(), engine(None)])["named_metrics"]["num_requests_running"] == 12
    assert "application_utilization" not in report([engine(), engine(None)])


@given(st.lists(st.none() | st.floats(0.0, 1.0), min_size=1, max_size=4))
def test_every_field_is_one_of_the_proto_and_in_its_range(capacities):
    told = report([engine(capacity) for capacity in capacities])
    assert told.keys() <= FIELDS
    assert 0.0 <= told.get("application_utilization", 0.0) <= 1.0
    assert 0.0 <= told["named_metrics"]["kv_cache_usage_perc"] <= 1.0
