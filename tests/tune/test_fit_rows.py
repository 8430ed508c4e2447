"""Rows: what was computed in them is known to the token."""

from random import Random

import pytest

from recorded_engine import BLOCK, Asked, RecordedEngine, traffic
from ullage_tune.fit.rows import ROW_S, rows
from ullage_tune.fit.steps import Steps, Why, runs_ahead


@pytest.mark.parametrize("budget", [256, 2048])
@pytest.mark.parametrize("ahead", [False, True])
def test_tokens_and_sequences_of_rows_are_those_of_their_steps(budget, ahead):
    """However many steps a long prompt takes; the number of prompts that finish in one step may be
    guessed too low with asynchronous scheduling, a token each."""
    engine = RecordedEngine(budget=budget, ahead=ahead)
    always = Asked(1000.0, 100, 3500)  # So that there is no gap.
    readings = list(engine.run([always, *traffic(Random(1), 200, rate=3.0, cached=0.5)]))
    found = rows(Steps.of(readings, engine.blocks * BLOCK), int(ahead), BLOCK)
    assert set(found.dropped) <= {Why.UNACCOUNTED}
    used = sum(row.steps for row in found.rows)
    assert used > 0.95 * engine.seq
    true = engine.true[-used:]
    assert sum(row.sequences for row in found.rows) == sum(sequences for _, sequences in true)
    guessed = sum(row.tokens for row in found.rows) - sum(tokens for tokens, _ in true)
    assert 0 <= guessed <= 5 * ahead
    assert sum(row.seconds >= ROW_S for row in found.rows) >= len(found.rows) - 1


def test_nothing_said_gives_no_rows():
    for readings in ([], list(RecordedEngine().run(traffic(Random(2), 1, rate=1.0)))[:1]):
        steps = Steps.of(readings, 1000)
        assert rows(steps, 0, BLOCK).rows == rows(steps, 1, BLOCK).rows == ()
        assert not runs_ahead([steps])
