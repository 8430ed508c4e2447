"""Dummy requests: their lengths are exact, and they are known by their mark."""

from random import Random

import pytest

from ullage_sidecar.core.dummies import (
    MARK,
    USUAL_BATCH,
    USUAL_MODEL_LEN,
    Api,
    Dummy,
    body,
    round_of,
)
from ullage_sidecar.core.warmup import WarmUpSettings

DEFAULT = WarmUpSettings()


def lengths(max_model_len, most_at_once, **settings):
    dummies = round_of("m", max_model_len, most_at_once, WarmUpSettings(**settings))
    return [dummy.prompt_tokens for dummy in dummies]


def test_prompts_are_a_sixteenth_a_quarter_and_all_of_the_longest_in_turn():
    assert lengths(16_384, None) == [256, 1024, 4096, 256]
    assert lengths(16_384, None, concurrency=1) == [256]
    assert lengths(16_384, None, longest_prompt=0.5, concurrency=3) == [512, 2048, 8192]


def test_none_is_longer_than_what_the_server_computes_in_one_step():
    assert lengths(131_072, 8192) == [512, 2048, 8192, 512]


@pytest.mark.parametrize("absurd", [0, -(2**63), 2**31, 10**400])
def test_a_context_that_cannot_be_is_an_unknown_one(absurd):
    assert lengths(absurd, None) == lengths(None, None)


def test_where_nobody_tells_what_a_step_computes_a_usual_step_is_the_most():
    """The /metrics of a server does not tell, and its context may be of ten million tokens."""
    assert max(lengths(10_485_760, None)) == USUAL_BATCH


def test_an_unknown_context_is_taken_for_a_small_one():
    assert max(lengths(None, None)) == USUAL_MODEL_LEN // 4


@pytest.mark.parametrize("max_model_len", [1, 2, 3, 16, 40])
@pytest.mark.parametrize("share", [0.01, 0.9])
def test_however_short_the_context_something_is_asked_and_it_fits(max_model_len, share):
    settings = WarmUpSettings(longest_prompt=share, generated_tokens=1024)
    for dummy in round_of("m", max_model_len, None, settings):
        assert dummy.prompt_tokens >= 1
        assert dummy.generated_tokens >= 1
        if max_model_len >= 3:
            assert dummy.prompt_tokens + dummy.generated_tokens <= max_model_len


def test_lengths_are_exact_and_no_two_prompts_are_the_same():
    dummy, rng = Dummy("m", 500, 16), Random(1)
    first, second = body(dummy, Api.COMPLETIONS, rng), body(dummy, Api.COMPLETIONS, rng)
    assert len(first["prompt"]) == len(second["prompt"]) == 500
    assert first["prompt"] != second["prompt"]
    assert len(body(dummy, Api.EMBEDDINGS, rng)["input"]) == 500
    chat = body(dummy, Api.CHAT, rng)["messages"]
    assert len(chat[0]["content"].split()) == 500


def test_each_names_its_model_and_whose_it_is_and_none_is_seeded():
    """vLLM 0.32 on the CPU dies of a seed in a request whose prefill is chunked."""
    for api in Api:
        found = body(Dummy("m", 5, 3), api, Random(1))
        assert (found["model"], found["user"]) == ("m", MARK)
        assert "seed" not in found
        assert found.get("max_tokens", 3) == 3
