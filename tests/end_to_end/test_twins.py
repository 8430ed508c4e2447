"""A live twin: vLLM's own server, at the pace of a modelled GPU."""

import asyncio
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from twins.fleet import Fleet, Twin
from ullage_tune.gpu import Engine, StepModel
from ullage_tune.outcome import Outcome
from ullage_tune.replay.player import Target, play
from ullage_tune.replay.prompts import Form
from ullage_tune.workload import Request, Segment, Workload

pytestmark = [pytest.mark.vllm, pytest.mark.long, pytest.mark.timeout(300)]

STEP = StepModel(base_s=0.1, per_token_s=1e-3, per_sequence_s=5e-3, per_context_token_s=2e-5)
"""Slow, so that a busy machine is small beside it."""
BLOCKS = 200
BLOCK_TOKENS = 16
PREEMPTIONS = "vllm:num_preemptions_total"


@pytest.fixture(scope="module")
def twin(
    vllm_venv: Path,
    tiny_model: Path,
    free_port: Callable[[], int],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Twin]:
    engine = Engine(STEP, BLOCKS, BLOCK_TOKENS, max_model_len=3000)
    folder = tmp_path_factory.mktemp("twin")
    with Fleet(
        1, engine, venv=vllm_venv, model=tiny_model, port_base=free_port(), folder=folder
    ) as fleet:
        ask(fleet.twins[0], Request(0.0, (Segment(0, 8),), 2))  # Imports, first connections, …
        yield fleet.twins[0]


def ask(twin: Twin, *requests: Request) -> tuple[Outcome, ...]:
    """Play them; all must be answered in full."""
    target = Target(twin.url, "tiny", Form.TOKENS)
    played = asyncio.run(play(Workload("test", requests), target))
    assert not played.failures
    assert [o.output_tokens for o in played.run.outcomes] == [r.output_tokens for r in requests]
    return played.run.outcomes


def preemptions(twin: Twin) -> float:
    """As vLLM counts them."""
    with urllib.request.urlopen(f"{twin.url}/metrics") as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(PREEMPTIONS))


def test_an_answer_takes_what_the_model_says(twin: Twin) -> None:
    prompt, answer = 1000, 16
    (alone,) = ask(twin, Request(0.0, (Segment(1, prompt),), answer))
    first_s = STEP.step_s(prompt, 1, prompt)
    rest_s = sum(STEP.step_s(1, 1, prompt + made) for made in range(1, answer))
    print(f"first {alone.ttft_s:.3f} s, model {first_s:.3f}; all {alone.e2e_s:.3f}, {rest_s:.3f}")
    assert alone.ttft_s == pytest.approx(first_s, rel=0.1)
    assert alone.e2e_s == pytest.approx(first_s + rest_s, rel=0.1)


def test_several_sequences_share_each_step(twin: Twin) -> None:
    count, prompt, answer = 4, 64, 17
    requests = [Request(0.0, (Segment(100 + n, prompt),), answer) for n in range(count)]
    together = ask(twin, *requests)
    step_s = STEP.step_s(count, count, count * (prompt + answer // 2))
    for one in together:
        assert one.tpot_s == pytest.approx(step_s, rel=0.1)


def test_a_prompt_that_the_cache_holds_is_not_computed_again(twin: Twin) -> None:
    prompt = (Segment(2, 960), Segment(3, 40))
    (first,) = ask(twin, Request(0.0, prompt, 2))
    (again,) = ask(twin, Request(0.0, (*prompt[:1], Segment(4, 40)), 2))
    assert (first.cached_tokens, again.cached_tokens) == (0, 960)
    assert again.ttft_s == pytest.approx(STEP.step_s(40, 1, 1000), abs=0.1)
    twin.forget()
    (anew,) = ask(twin, Request(0.0, prompt, 2))
    assert anew.cached_tokens == 0


def test_more_than_the_cache_holds_is_preempted_and_answered_in_full(twin: Twin) -> None:
    count, prompt, answer = 3, 66 * BLOCK_TOKENS, 6
    assert count * prompt < BLOCKS * BLOCK_TOKENS < count * (prompt + BLOCK_TOKENS)
    before = preemptions(twin)
    ask(twin, *(Request(0.0, (Segment(200 + n, prompt),), answer) for n in range(count)))
    assert preemptions(twin) > before


def test_it_says_how_it_keeps_up(twin: Twin) -> None:
    before = twin.pace()
    ask(twin, Request(0.0, (Segment(5, 100),), 10))
    time.sleep(0.1)
    added = twin.pace().since(before)
    assert added.steps == 10
    assert added.busy_s == pytest.approx(
        STEP.step_s(100, 1, 100) + sum(STEP.step_s(1, 1, 100 + made) for made in range(1, 10))
    )
    assert added.lost_s <= 0.1 * added.busy_s, "this machine is too busy for a twin"
