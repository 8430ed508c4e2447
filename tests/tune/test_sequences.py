"""What a live twin's requests sample, step by step; as vLLM's scheduler would tell it."""

from types import SimpleNamespace
from typing import Any

from ullage_tune.live.sequences import Sequences


def scheduled(
    tokens: dict[str, int],
    new: dict[str, tuple[int, int]] | None = None,
    cached: dict[str, int] | None = None,
    finished: tuple[str, ...] = (),
) -> Any:
    """A step: tokens by request; new ones with prompt and cached tokens; others' computed."""
    return SimpleNamespace(
        finished_req_ids=set(finished),
        scheduled_new_reqs=[
            SimpleNamespace(req_id=name, prompt_token_ids=[0] * prompt, num_computed_tokens=hit)
            for name, (prompt, hit) in (new or {}).items()
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=list(cached or {}), num_computed_tokens=list((cached or {}).values())
        ),
        num_scheduled_tokens=tokens,
    )


def counts(sampled: dict[str, list[int]]) -> dict[str, int]:
    return {request: len(tokens) for request, tokens in sampled.items()}


def test_a_token_is_sampled_once_the_whole_prompt_is_computed() -> None:
    sequences = Sequences()
    sampled, context = sequences.step(scheduled({"a": 60}, new={"a": (100, 0)}))
    assert (counts(sampled), context) == ({"a": 0}, 60)
    sampled, context = sequences.step(scheduled({"a": 40}, cached={"a": 60}))
    assert (counts(sampled), context) == ({"a": 1}, 100)
    sampled, context = sequences.step(scheduled({"a": 1}, cached={"a": 100}))
    assert (counts(sampled), context) == ({"a": 1}, 101)


def test_what_the_cache_holds_need_not_be_computed() -> None:
    sampled, context = Sequences().step(scheduled({"a": 4}, new={"a": (100, 96)}))
    assert (counts(sampled), context) == ({"a": 1}, 100)


def test_a_preempted_request_samples_nothing_until_its_answer_too_is_computed_again() -> None:
    sequences = Sequences()
    sequences.step(scheduled({"a": 100}, new={"a": (100, 0)}))
    sequences.step(scheduled({"a": 1}, cached={"a": 100}))  # It has 102 tokens now.
    sampled, _ = sequences.step(scheduled({"a": 100}, cached={"a": 0}))
    assert counts(sampled) == {"a": 0}
    sampled, context = sequences.step(scheduled({"a": 2}, cached={"a": 100}))
    assert (counts(sampled), context) == ({"a": 1}, 102)


def test_the_same_request_has_the_same_answer_everywhere() -> None:
    whole, _ = Sequences().step(scheduled({"a": 100}, new={"a": (100, 0)}))
    part, _ = Sequences().step(scheduled({"b": 4}, new={"b": (100, 96)}))
    assert whole["a"] == part["b"]


def test_the_finished_are_forgotten_and_nothing_is_left_of_none() -> None:
    sequences = Sequences()
    assert not sequences
    sequences.step(scheduled({"a": 10}, new={"a": (10, 0)}))
    assert sequences
    assert sequences.step(scheduled({}, finished=("a", "never seen"))) == ({}, 0)
    assert not sequences
