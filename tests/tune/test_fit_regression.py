"""Least squares that outliers cannot bend, and that makes nothing up."""

from dataclasses import dataclass
from random import Random

import pytest

from ullage_tune.fit.regression import solve
from ullage_tune.fit.rows import Row
from ullage_tune.gpu import StepModel

TRUTH = StepModel(0.018, 1.1e-4, 5e-5, 5e-8)


@dataclass
class Rows:
    seed: int
    model: StepModel = TRUTH
    noise: float = 0.0

    def some(self, count: int = 200, prompts: float = 0.3) -> list[Row]:
        rng, rows = Random(self.seed), []
        for _ in range(count):
            steps, sequences = rng.randint(1, 6), rng.randint(1, 60)
            tokens = steps * sequences + (rng.random() < prompts) * rng.randint(100, 8000)
            context = steps * sequences * rng.uniform(200.0, 4000.0)
            base = self.model._replace(base_s=self.model.base_s * steps)
            seconds = base.step_s(tokens, steps * sequences, 0) + context * base.per_context_token_s
            off = 1.0 + rng.gauss(0.0, self.noise)
            rows.append(Row(seconds * off, steps, tokens, steps * sequences, context))
        return rows


def test_what_is_exact_comes_back_exactly():
    found = solve(Rows(1).some(), {})
    assert found.model == pytest.approx(TRUTH, rel=1e-6)
    assert (found.untold, found.p90_error) == ((), pytest.approx(0.0, abs=1e-6))
    assert all(found.kept)


def test_what_takes_no_time_is_told_to_take_none():
    free = TRUTH._replace(per_context_token_s=0.0)
    found = solve(Rows(2, free, noise=0.01).some(), {})
    assert found.untold == ()
    assert found.model.per_context_token_s < 2e-9
    assert found.model[:2] == pytest.approx(free[:2], rel=0.02)


def test_nothing_is_ever_negative():
    slow = [row._replace(seconds=row.seconds - 1e-6 * row.context) for row in Rows(3).some()]
    positive = [row for row in slow if row.seconds > 0.0]
    assert min(solve(positive, {}).model) >= 0.0


def test_a_tenth_of_stalls_moves_nothing_and_is_left_out():
    rng, rows = Random(4), Rows(4, noise=0.01).some(400)
    stalled = {place: rng.uniform(0.5, 20.0) for place in range(0, 400, 10)}
    bent = [
        row._replace(seconds=row.seconds * (1.0 + stalled.get(place, 0.0)))
        for place, row in enumerate(rows)
    ]
    found = solve(bent, {})
    assert found.model == pytest.approx(TRUTH, rel=0.05)
    assert {place for place, kept in enumerate(found.kept) if not kept} == set(stalled)


def test_few_long_prompts_count_beside_many_decode_steps():
    decodes, prompts = Rows(5, noise=0.01).some(2000, prompts=0.0), Rows(6).some(20, prompts=1.0)
    slow = [row._replace(seconds=row.seconds * 1.1) for row in prompts]  # No sum is all true.
    found = solve(decodes + slow, {})
    assert all(found.kept[2000:])
    assert found.model.per_token_s == pytest.approx(1.15 * TRUTH.per_token_s, rel=0.1)


def test_what_is_always_the_same_is_told_by_nothing():
    same = [Row(row.seconds, row.steps, row.tokens, 7 * row.steps) for row in Rows(7).some()]
    found = solve(same, {})
    assert {"base_s", "per_sequence_s", "per_context_token_s"} == set(found.untold)
    assert found.error.per_context_token_s == float("inf")


def test_what_is_fixed_is_kept_and_the_rest_fitted_around_it():
    found = solve(Rows(8).some(), {"per_sequence_s": 1e-4})
    assert found.model.per_sequence_s == 1e-4
    assert found.error.per_sequence_s == 0.0
    assert found.model.base_s < TRUTH.base_s
