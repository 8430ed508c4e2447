"""From an engine's steps to rows: what was computed in a while, and how long it took.

A plugin tells of each step when it was done and what stands then: the sequences that run, the KV
blocks in use; and totals: tokens generated, prompt tokens looked up in the prefix cache and found
there (both when a prompt is begun), tokens of prompts (when one is finished). So of step i:

    seconds     since step i-1, if that one left work: else nobody knows when the step began
    sequences   generated_i + half-done_i: each one gets a token, but a prompt that goes on
    tokens      generated_i - prompts finished_i + prompt tokens computed_i
    context     see `context`

How much of a long prompt is computed in which of its steps is not told. But the model is a sum, so
what holds of steps holds of several added up, and a row is all steps between two moments at which
no prompt is half-done: when as many prompt tokens are finished as were looked up. The tokens
computed in it are exact: those looked up less those found. Rows are `ROW_S` long or longer, so
that a late event loop, which makes one step long and the next one short, is small beside them.

vLLM's asynchronous scheduling begins step i+1 before it tells of step i: what is looked up, and the
gauges, are ahead by one step (`lead`, see `steps.runs_ahead`).

What is dropped, by why, is in `Why`. After a break rows begin anew where no prompt is half-done.
The accounts are opened anew whenever the engine is idle, and at decode steps (all that ran got a
token, no prompt was begun or finished; see `ullage_sidecar.core.speeds`): so an aborted prompt,
which never finishes, spoils what is around it only. Preempted sequences are computed again, which
no total tells: steps in which the batch grows though nothing was looked up, or not all get a token,
are left out. Where prefix caching is off nothing is looked up: rows then end at decode steps.

How good it is. An engine that always has a prompt half-done, flooded for minutes, gives few rows.
What a KV connector fetched counts as computed. How many prompts finished in one
step, a token each, is known but for asynchronous scheduling: there it is at least the batch's
growth. Speculative decoding and pipeline parallelism are not steps of this kind: nearly all of
theirs are dropped.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

from ullage_tune.fit.context import with_context
from ullage_tune.fit.steps import Step, Steps, Why, broken, only_decodes

ROW_S: Final = 0.1


class Row(NamedTuple):
    """Some steps, added up."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0
    sequences: int = 0
    context: float = 0.0

    def plus(self, other: "Row") -> "Row":
        """Both."""
        return Row(
            self.seconds + other.seconds,
            self.steps + other.steps,
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.context + other.context,
        )


class Rows(NamedTuple):
    """What the steps of one sender give."""

    rows: tuple[Row, ...] = ()
    dropped: Mapping[Why, int] = {}
    """Steps."""

    def plus(self, other: "Rows") -> "Rows":
        """Both."""
        return Rows(self.rows + other.rows, Counter(self.dropped) + Counter(other.dropped))


def rows(steps: Steps, lead: int, block_size: int) -> Rows:
    """Those of one sender. `lead`: 1 of asynchronous scheduling, else 0."""
    walk = _Walk(steps, lead, block_size)
    walk.go()
    return Rows(tuple(walk.rows), +walk.dropped)


class _Walk:
    """Goes through the steps, and adds them up."""

    def __init__(self, steps: Steps, lead: int, block_size: int) -> None:
        self.rows: list[Row] = []
        self.dropped = Counter({Why.UNKNOWN: steps.unknown})
        self._steps = with_context(steps.known, lead, (block_size - 1) / 2.0)
        self._looks_up = steps.looks_up
        self._lead = lead
        self._owed: int | None = None
        """Prompt tokens looked up less those finished, where no prompt is half-done."""
        self._done = Row()
        """From the beginning of the row to the last moment at which none was."""
        self._open = Row()
        """Since then."""
        self._computed: int | None = None
        """Prompt tokens by that moment; `None`: there was none since the last break."""

    def go(self) -> None:
        """All of them."""
        for number in range(1 + self._lead, len(self._steps)):
            before, now = self._steps[number - 1], self._steps[number]
            why = broken(before, now, looks_up=self._looks_up)
            if why is None:
                self._take(number, before, now)
            else:
                self._break(why)
                self._look(number, now)
        self._end_row()
        self.dropped[Why.UNACCOUNTED] += self._open.steps

    def _take(self, number: int, before: Step, now: Step) -> None:
        ahead, ahead_before = (self._steps[n - self._lead] for n in (number, number - 1))
        balance = ahead.looked_up - now.prompts
        decodes = (
            only_decodes(before, now)
            and ahead.looked_up == ahead_before.looked_up
            and (self._looks_up or now.running <= before.running)
        )
        is_even = decodes or (self._looks_up and balance == self._owed)
        if (
            is_even
            and now.generated - before.generated != before.running
            and not (now.prompts > before.prompts)
        ):
            self._break(Why.NOT_ONE_EACH)
            self._look(number, now)
            return
        if decodes and self._looks_up and balance != self._owed:
            self._break(Why.UNACCOUNTED)
        elif self._computed is None:
            self.dropped[Why.UNACCOUNTED] += 1
        else:
            self._open = self._open.plus(self._row(number, before, now, is_even=is_even))
        if is_even:
            self._owed = balance
            self._close(ahead if self._looks_up else now)

    def _row(self, number: int, before: Step, now: Step, *, is_even: bool) -> Row:
        """One step, without the prompt tokens computed."""
        made = decoded = now.generated - before.generated
        if now.prompts > before.prompts:
            went_on = before.running - (self._open.steps > 0)
            if self._lead:
                went_on = before.generated - self._steps[number - 2].generated
            decoded = min(made - 1, went_on)
        # Who ended has given its blocks back; ahead, those of the next step are counted by then.
        held = before.held if self._lead else max(before.held, now.held)
        sequences = made if is_even else max(made + 1, before.running)
        return Row(now.at_s - before.at_s, 1, decoded, sequences, held)

    def _close(self, moment: Step) -> None:
        """No prompt is half-done."""
        computed = moment.computed(looks_up=self._looks_up)
        if self._computed is not None:
            added = self._open._replace(tokens=self._open.tokens + computed - self._computed)
            self._done = self._done.plus(added)
        self._open, self._computed = Row(), computed
        if self._done.seconds >= ROW_S:
            self._end_row()

    def _break(self, why: Why) -> None:
        self._end_row()
        self.dropped[why] += 1
        self.dropped[Why.UNACCOUNTED] += self._open.steps
        self._open, self._computed = Row(), None

    def _look(self, number: int, now: Step) -> None:
        """Are the accounts known behind a step that was dropped?"""
        ahead = self._steps[number - self._lead]
        balance = ahead.looked_up - now.prompts
        if not (now.running or now.waiting):
            self._owed = balance
        if self._looks_up and balance == self._owed:
            self._close(ahead)

    def _end_row(self) -> None:
        if self._done.steps:
            self.rows.append(self._done)
        self._done = Row()
