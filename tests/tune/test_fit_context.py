"""Context, where sequences share the beginning of their prompts."""

from itertools import pairwise

import pytest

from ullage_tune.fit.context import with_context
from ullage_tune.fit.steps import Step

PREFIX, PROMPT = 4800, 5120


class Sharing:
    """Sequences with one prefix: told, and what their context truly is. No block is half empty."""

    def __init__(self) -> None:
        self.steps = [Step(0, 0.0, 0, 0, 0.0, 0, 0, 0, 0, 0)]
        self.true = [0]
        self._own: list[int] = []

    def step(self, begun: int = 0, ended: int = 0) -> "Sharing":
        """All get a token; some begin, and the oldest end."""
        last = self.steps[-1]
        found = PREFIX * begun if self._own else PREFIX * (begun - 1) * (begun > 0)
        self._own = [tokens + 1 for tokens in self._own] + [PROMPT - PREFIX] * begun
        made = len(self._own)
        del self._own[:ended]
        self.true.append(sum(self._own) + PREFIX * len(self._own))
        self.steps.append(
            Step(
                last.number + 1,
                last.at_s + 1.0,
                len(self._own),
                0,
                float(sum(self._own) + PREFIX * bool(self._own)),
                last.prompts + PROMPT * begun,
                last.generated + made,
                0,
                last.looked_up + PROMPT * begun,
                last.found + found,
            )
        )
        return self

    def counted(self) -> list[float]:
        return [step.held for step in with_context(self.steps, lead=0, half_block=0.0)]


def test_one_prefix_that_all_share_is_counted_for_each_of_them():
    told = Sharing().step(begun=1)
    for _ in range(10):
        told.step(begun=1).step().step()
    assert max(told.true) > 10 * PREFIX > 5 * max(step.held for step in told.steps)
    assert told.counted() == pytest.approx(told.true, rel=0.01)


def test_those_who_end_take_their_share_with_them():
    told = Sharing().step(begun=1)
    for _ in range(6):
        told.step(begun=1)
    for _ in range(5):
        told.step(ended=1).step()
    told.step(ended=2).step(begun=1).step(begun=2).step(ended=1)
    assert told.counted() == pytest.approx(told.true, rel=0.02)


def test_what_was_only_kept_in_the_cache_is_not_counted_twice():
    steps = [Step(0, 0.0, 0, 0, 0.0, 0, 0, 0, 0, 0)]
    for n in range(1, 6):  # Each finds its own last turn: it was not in use until then.
        held, total = float(n * PROMPT), n * PROMPT
        steps.append(Step(n, float(n), n, 0, held, total, n * (n + 1) // 2, 0, total, n * PREFIX))
    counted = with_context(steps, lead=0, half_block=0.0)
    for told, bare in zip(counted, steps, strict=True):
        assert told.held == pytest.approx(bare.held, abs=bare.running * 10)


def test_without_anything_found_it_is_what_the_blocks_hold():
    steps = [Step(n, float(n), 4, 0, 1000.0 + n, 0, 4 * n, 0, 0, 0) for n in range(5)]
    counted = with_context(steps, lead=0, half_block=7.5)
    assert [step.held for step in counted] == [970.0 + n for n in range(5)]
    assert all(before.held < after.held for before, after in pairwise(counted))
    assert with_context([], lead=0, half_block=7.5) == ()
