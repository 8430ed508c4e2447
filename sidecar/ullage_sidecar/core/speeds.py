"""How fast one engine works on its hardware, learned from the times of its steps.

What a prompt of N uncached tokens and M tokens of answer costs here:

    seconds until it is answered     N / prefill_tokens_per_s + M · step_s
    seconds of the engine's work     N / prefill_tokens_per_s + M / decode_tokens_per_s

A step computes the next token of every running sequence and, for what is left of vLLM's token
budget, a piece of the prompts that came. A decode step is one with no prompt in it:

    step_s                 median of  Σ seconds / Σ decode steps
    decode_tokens_per_s    median of  Σ generated / Σ seconds          over the same decode steps
    prefill_tokens_per_s   median of  Σ uncached prompt tokens / (Σ seconds - steps · step_s)
                                                                       over all other steps

so that the decoding in a mixed step is not taken for prefill, and a prompt is priced by what it
adds. Sums, because one late event loop makes a step long and the next short; the median of sums,
because a hiccup spoils one of them, however long it lasts. A sum of decode steps is a sample once
it holds `DECODE_S`; one of other steps once it holds `PREFILL_TOKENS` and no prompt is half-done:
vLLM computes a long one in pieces, over several steps, and counts its tokens in the last of them.
A change is believed when it fills half of the last `SAMPLES`: after some 3 s of decode steps, and
after eleven prompts or 5,600 tokens.

What is left out
* A step begins when the last one ends, if that one left work. After idleness, after a lost step,
  when clocks go back, nobody knows when a step began: it is left out, and with it the prompts that
  it may hold a part of. Idleness changes nothing.
* A step is a decode step where all that ran get a token, nobody joined them and no prompt was
  done. Of several API processes each knows its own tokens only, and those of others come with
  their heartbeats; there a step that takes many KV blocks, or gives some back, is none either.
* A preempted sequence is computed again, and vLLM does not count those tokens: so nor do we, nor
  the time.
* Steps with prompts that take less than a quarter longer than decode steps: too short to be told
  from noise.

What stays unknown: everything before `LEAST` samples; prefill where prompts are always short, or
always come to an idle engine; all of it where no step is a decode step: pipeline parallelism,
pooling, or prompts in every step.

`decode_tokens_per_s` is that of the batch as it is: more sequences, more tokens per second.
Speculative decoding makes several tokens in a step: it tells how many, and `step_s` is not the time
of a token. What a KV connector fetches counts as computed.

The estimator is ours. That steps mix decodes and pieces of prompts is from Sarathi-Serve (Agrawal
et al., OSDI 2024), whose scheduling vLLM has.
"""

from math import inf
from typing import Final, NamedTuple

from ullage_sidecar.core.counts import Counts
from ullage_sidecar.core.learned import Learned, Sum
from ullage_sidecar.core.reading import Reading
from ullage_sidecar.core.signals import Signals

DECODE_S: Final = 0.25
PREFILL_TOKENS: Final = 512
OVERDUE_TOKENS: Final = 16_384
"""A sum of so many prompt tokens is a sample even while a prompt is half-done: one always is."""
LIKELY_BLOCKS: Final = 0.25
"""Of new KV blocks per sequence in a decode step; with 16 tokens in a block 1/16 is usual."""


class Mark(NamedTuple):
    """Where a run of decode steps began."""

    at_s: float
    steps: int
    """Of the engine, as counted until then."""
    tokens: int
    """Generated, as counted until then."""


class Speeds(NamedTuple):
    """What is known, and the sums in hand."""

    learned: Learned = Learned()
    decoding: Sum = Sum()
    prefilling: Sum = Sum()
    broken: bool = False
    """Prompts in progress have a part that nobody timed. So until the next decode step."""
    run: Mark | None = None
    """Decode steps that are not yet in `decoding`. While they last nothing changes, ..."""
    due_s: float = -inf
    """... until this moment."""

    def with_step(self, before: Reading, step: Reading, counts: Counts) -> "Speeds":
        """Take in a step of an engine that has one sender.

        `before`: the step before; `counts`: the engine's, this step in them.
        """
        running, made, had = step.running, step.generated_tokens, before.generated_tokens
        if (
            before.running
            and running is not None
            and made is not None
            and had is not None
            and running <= before.running <= made - had
            and step.prompt_tokens == before.prompt_tokens
            and step.seq == before.seq + 1
            and step.preemptions == before.preemptions
            and step.at_s >= before.at_s
        ):
            if step.at_s < self.due_s:
                return self
            return self._with_due(before, step, counts)
        ended = self
        if self.run is not None:
            generated = (counts.generated_tokens or 0) - ((made or 0) - (had or 0))
            ended = self._with_run(Mark(before.at_s, counts.received - 1, generated))
        if not (before.running or before.waiting):
            return ended if ended.broken else ended._replace(broken=True)
        return ended._with_other(before, step, step.at_s - before.at_s)

    def with_shared_step(
        self, before: Reading, step: Reading, last: Signals, blocks: int | None
    ) -> "Speeds":
        """Take in a step of an engine that has several senders.

        `before`: the same sender's step before; `last`: the engine's latest, whoever told of it;
        `blocks`: KV blocks of the engine.
        """
        since_s, running = last.stepped_at_s, last.running.value
        if since_s is None or not (running or last.waiting.value):
            return self._replace(broken=True, run=None, due_s=-inf)
        if _only_decodes(before, step, last, blocks):
            seconds, steps, tokens = self.decoding
            added = Sum(seconds + step.at_s - since_s, steps + 1, tokens + int(running or 0))
            return Speeds(self.learned, added, self.prefilling)._settled()
        return self._with_other(before, step, step.at_s - since_s)

    def with_tokens(self, before: Reading, again: Reading) -> "Speeds":
        """Take in a heartbeat: it has prompt tokens of steps that another sender told of."""
        prompts = _grown(before.prompt_tokens, again.prompt_tokens)
        if not prompts or self.broken:
            return self
        seconds, steps, tokens = self.prefilling
        return self._replace(prefilling=Sum(seconds, steps, tokens + prompts))

    def _with_due(self, before: Reading, step: Reading, counts: Counts) -> "Speeds":
        """Take in a decode step that begins a run, or lasts until one is due."""
        generated = counts.generated_tokens or 0
        run = self.run
        if run is None:
            made = (step.generated_tokens or 0) - (before.generated_tokens or 0)
            run = Mark(before.at_s, counts.received - 1, generated - made)
        due_s = run.at_s + DECODE_S - self.decoding.seconds
        begun = Speeds(self.learned, self.decoding, self.prefilling, run=run, due_s=due_s)
        if self.prefilling.tokens < PREFILL_TOKENS and step.at_s < due_s:
            return begun
        return begun._with_run(Mark(step.at_s, counts.received, generated))._settled()

    def _with_run(self, end: Mark) -> "Speeds":
        """Add the run, which ended here."""
        seconds, steps, tokens = self.decoding
        at_s, steps_before, tokens_before = self.run or end
        decoding = Sum(
            seconds + end.at_s - at_s,
            steps + end.steps - steps_before,
            tokens + end.tokens - tokens_before,
        )
        return Speeds(self.learned, decoding, self.prefilling, self.broken)

    def _with_other(self, before: Reading, step: Reading, took_s: float) -> "Speeds":
        """Add a step with prompts in it, or break off."""
        prompts = _grown(before.prompt_tokens, step.prompt_tokens)
        if (
            prompts is None
            or took_s < 0.0
            or step.seq != before.seq + 1
            or step.preemptions != before.preemptions
        ):
            return Speeds(self.learned, self.decoding, broken=True)
        if self.broken:
            return self
        seconds, steps, tokens = self.prefilling
        computed = prompts - (_grown(before.prefix_hits, step.prefix_hits) or 0)
        added = Sum(seconds + took_s, steps + 1, tokens + computed)
        grown = Speeds(self.learned, self.decoding, added)
        return grown._settled() if added.tokens >= OVERDUE_TOKENS else grown

    def _settled(self) -> "Speeds":
        """Make samples of the sums that are large enough. No run is on."""
        learned, decoding, prefilling, broken, *_ = self
        if decoding.seconds >= DECODE_S:
            learned, decoding = learned.with_decoding(decoding), Sum()
        if prefilling.tokens >= PREFILL_TOKENS:
            learned, prefilling = learned.with_prefill(prefilling), Sum()
        return Speeds(learned, decoding, prefilling, broken)


def _only_decodes(before: Reading, step: Reading, last: Signals, blocks: int | None) -> bool:
    """Was it a decode step? By what its teller knows, and by the KV blocks that were taken.

    A sequence that decodes needs one more in `block_size` steps, a prompt many at once. Where some
    were given back, nobody can tell.
    """
    free, running = last.free.value, last.running.value
    if (
        not running
        or step.running is None
        or step.running > running
        or last.stepped_at_s is None
        or step.at_s < last.stepped_at_s
        or step.prompt_tokens != before.prompt_tokens
        or step.seq != before.seq + 1
        or step.preemptions != before.preemptions
        or step.kv_usage is None
        or free is None
        or not blocks
    ):
        return False
    taken = (step.kv_usage - (1.0 - free)) * blocks
    return -0.5 < taken <= 1.5 + running * LIKELY_BLOCKS


def _grown(before: int | None, now: int | None) -> int | None:
    """How much more it is; `None`: unknown, or it fell."""
    return None if before is None or now is None or now < before else now - before
