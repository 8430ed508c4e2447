"""Stand-ins: like the trace that they were fitted to, and like themselves when fitted again."""

import os
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from ullage_tune import standins
from ullage_tune.draws import LEVELS, Quantiles
from ullage_tune.fit_traces import fit_azure, fit_mooncake, written
from ullage_tune.likeness import compare
from ullage_tune.shape import Shape, links, shape
from ullage_tune.standins import Answers, azure, independent, mooncake, stand_in
from ullage_tune.traces import BLOCK, MOST_TOKENS, read_trace
from ullage_tune.workload import Request, Workload

pytestmark = pytest.mark.slow

FITTED = {"mooncake_conversation.jsonl": "mooncake.json", "azure2023_conv.csv": "azure.json"}
"""Traces, and the parameters that were fitted to them."""


@pytest.fixture(scope="module")
def talk() -> Workload:
    return Workload("stand-in", stand_in(mooncake(), 5_000, Random(1)))


def turns(made: Workload) -> list[tuple[Request, Request]]:
    by_session: dict[int, list[Request]] = {}
    for request in made.requests:
        by_session.setdefault(request.session, []).append(request)
    return [pair for session in by_session.values() for pair in pairwise(session)]


def test_the_parameters_are_what_the_fit_writes_of_the_traces_that_are_there() -> None:
    folder = Path(standins.__file__).parent
    assert written(mooncake()) == (folder / "mooncake.json").read_text()
    assert written(azure()) == (folder / "azure.json").read_text()
    for name, parameters in FITTED.items():
        path = Path(os.environ.get("TRACES", "no folder"), name)
        if path.exists():
            fit = fit_mooncake if path.suffix == ".jsonl" else fit_azure
            assert written(fit(read_trace(path))) == (folder / parameters).read_text()


def test_prompts_are_in_whole_blocks_behind_one_that_all_share(talk: Workload) -> None:
    first = talk.requests[0].prompt[0]
    for request in talk.requests:
        assert request.prompt[0] == first
        assert all(segment.tokens == BLOCK for segment in request.prompt[:-1])
        assert 1 <= request.prompt[-1].tokens <= BLOCK
        assert request.prompt_tokens + request.output_tokens <= MOST_TOKENS


def test_a_partial_block_is_never_shared(talk: Workload) -> None:
    partial = [r.prompt[-1] for r in talk.requests if r.prompt[-1].tokens < BLOCK]
    assert len(set(partial)) == len(partial)


def test_a_later_turn_continues_all_whole_blocks_or_branches_off_earlier(talk: Workload) -> None:
    branched = 0
    for last, now in turns(talk):
        whole = last.prompt_tokens // BLOCK
        shared = sum(1 for a, b in zip(last.prompt, now.prompt, strict=False) if a == b)
        assert now.prompt[:shared] == last.prompt[:shared]
        assert 1 <= shared <= whole
        branched += shared < whole
    assert 0.05 < branched / len(turns(talk)) < 0.25


def test_the_stand_in_has_the_shape_that_the_trace_had(talk: Workload) -> None:
    # The trace's figures: `python -m ullage_tune.fit_traces` prints them.
    like = shape(talk)
    assert like.per_s == pytest.approx(3.399, rel=0.1)
    assert like.prompt_tokens[1] == pytest.approx(6_909, rel=0.1)
    assert like.prompt_tokens[4] == pytest.approx(12_035, rel=0.1)
    assert like.output_tokens[4] == pytest.approx(342.6, rel=0.05)
    assert like.found == pytest.approx(0.33, abs=0.05)
    assert like.turns[0] == pytest.approx(1.6, rel=0.1)


def test_a_fit_to_a_stand_in_gives_its_parameters_back(talk: Workload) -> None:
    wanted, again = mooncake(), fit_mooncake(talk)
    assert again.per_s == pytest.approx(wanted.per_s, rel=0.1)
    assert again.goes_on[:3] == pytest.approx(wanted.goes_on[:3], abs=0.07)
    assert again.single.at(0.5) == pytest.approx(wanted.single.at(0.5), rel=0.2)
    assert again.gap_s.at(0.5) == pytest.approx(wanted.gap_s.at(0.5), rel=0.15)
    assert again.answers.tokens[3].at(0.5) == pytest.approx(
        wanted.answers.tokens[3].at(0.5), rel=0.1
    )


def test_independent_requests_share_nothing_and_keep_lengths_and_their_correlation() -> None:
    made = Workload("stand-in", stand_in(azure(), 10_000, Random(1)))
    like = shape(made)
    assert all(link.shared == 0 for link in links(made.requests))
    assert like.prompt_tokens[1] == pytest.approx(1_020, rel=0.03)
    assert like.output_tokens[4] == pytest.approx(211.1, rel=0.05)
    assert like.correlation == pytest.approx(0.087, abs=0.04)
    # Answers are long to prompts of middling length: no correlation coefficient would say so.
    middling = [r.output_tokens for r in made.requests if 1_020 < r.prompt_tokens <= 1_189]
    assert sorted(middling)[len(middling) // 2] > 350


def test_a_stand_in_is_compared_row_by_row_also_over_slices() -> None:
    fit = azure()
    trace = Workload("trace", independent(fit, 1_300, Random(5)))
    rows = compare(trace, fit, seeds=1)
    names = [name for name, *_ in rows]
    assert names == [*Shape._fields, "found in 1200 requests"]
    assert {name: real for name, real, _ in rows}["requests"] == "1300"


@pytest.mark.parametrize(("prompt", "place"), [(1, 0), (10, 0), (11, 1), (20, 1), (21, 2)])
def test_a_class_holds_its_bound(prompt: int, place: int) -> None:
    sample = Quantiles((1.0,) * len(LEVELS))
    assert Answers((10.0, 20.0), (sample,) * 3).place(prompt) == place


@pytest.mark.parametrize("fit", [fit_azure, fit_mooncake])
@pytest.mark.parametrize("n", [0, 1, 900])
def test_too_short_a_trace_is_not_fitted_to(fit: object, n: int) -> None:
    assert callable(fit)
    trace = Workload("short one", independent(azure(), n, Random(1)))
    with pytest.raises(ValueError, match=f"short one: {n} requests in .* wanted at least 1000"):
        fit(trace)


def test_requests_without_conversations_are_not_fitted_as_such() -> None:
    trace = Workload("alone", independent(azure(), 2_000, Random(1)))
    with pytest.raises(ValueError, match="too few conversations"):
        fit_mooncake(trace)
