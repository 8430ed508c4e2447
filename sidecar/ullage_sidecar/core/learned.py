"""Samples of an engine's speeds, and what is told of them: the median, once there are `LEAST`.

What is told is rounded, and moves only when the median is more than `MOVED` away from it, for each
change is a new snapshot. For what the speeds mean and where the samples come from see `speeds`.
"""

from typing import Final, NamedTuple

SAMPLES: Final = 21
LEAST: Final = 3
LEAST_EXCESS: Final = 0.25
MOVED: Final = 0.05
"""What is told changes only by more than this share: each change is a new snapshot."""
DIGITS: Final = 3
LEAST_TOLD: Final = 1e-9
MOST_TOLD: Final = 1e12
"""Seconds, or tokens per second. Beyond, clocks or counters are broken: unknown."""


class Sum(NamedTuple):
    """Steps of one kind, added up."""

    seconds: float = 0.0
    steps: int = 0
    tokens: int = 0


class Learned(NamedTuple):
    """What is known. Unknown is `None`."""

    step_s: float | None = None
    """Seconds of a decode step, > 0: of each further token of an answer."""
    decode_tokens_per_s: float | None = None
    """Tokens that all sequences together get in a second of decode steps, > 0."""
    prefill_tokens_per_s: float | None = None
    """Uncached prompt tokens computed in a second that they add to decode steps, > 0."""
    exact_step_s: float | None = None
    """`step_s` as it is, where that is what was told."""
    steps_s: tuple[float, ...] = ()
    """Samples of `step_s`, oldest first."""
    decodes: tuple[float, ...] = ()
    prefills: tuple[float, ...] = ()

    def with_decoding(self, sample: Sum) -> "Learned":
        """Take in decode steps."""
        steps_s = (*self.steps_s, sample.seconds / sample.steps)[-SAMPLES:]
        decodes = (*self.decodes, sample.tokens / sample.seconds)[-SAMPLES:]
        exact_step_s = _middle(steps_s)
        return Learned(
            _told(self.step_s, exact_step_s),
            _told(self.decode_tokens_per_s, _middle(decodes)),
            self.prefill_tokens_per_s,
            exact_step_s,
            steps_s,
            decodes,
            self.prefills,
        )

    def with_prefill(self, sample: Sum) -> "Learned":
        """Take in steps with prompts, if it is known what they would have taken without."""
        if self.exact_step_s is None:
            return self
        decoding_s = sample.steps * self.exact_step_s
        prompts_s = sample.seconds - decoding_s
        if not prompts_s > LEAST_EXCESS * decoding_s:
            return self
        prefills = (*self.prefills, sample.tokens / prompts_s)[-SAMPLES:]
        told = _told(self.prefill_tokens_per_s, _middle(prefills))
        return self._replace(prefill_tokens_per_s=told, prefills=prefills)


def _middle(samples: tuple[float, ...]) -> float | None:
    """The median; `None`: too few."""
    return sorted(samples)[len(samples) // 2] if len(samples) >= LEAST else None


def _told(was: float | None, now: float | None) -> float | None:
    """What to tell: what was told, unless it has moved."""
    if now is None or not LEAST_TOLD <= now <= MOST_TOLD:
        return None
    if was is not None and abs(now - was) <= MOVED * was:
        return was
    return float(f"{now:.{DIGITS}g}")
