"""The steps of one sender, and what may be wrong with one. What they are made into: see `rows`."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, NamedTuple

from ullage_sidecar.core.reading import Reading

LEAST_FINISHING: Final = 10
AT_ONCE: Final = 0.02


class Why(StrEnum):
    """Why steps are in no row."""

    UNKNOWN = "not told by this vLLM"
    LOST = "the step before is missing"
    IDLE = "began after idleness"
    CLOCK = "the clock stood still or went back"
    PREEMPTED = "a sequence was preempted, or came back"
    NOT_ONE_EACH = "not one token for each that ran"
    UNACCOUNTED = "prompts half-done, or aborted"
    OUTLIER = "far from what the others say"


class Step(NamedTuple):
    """One of which all is known. Counts are totals."""

    number: int
    at_s: float
    running: int
    waiting: int
    held: float
    """Tokens that the KV blocks in use have room for."""
    prompts: int
    """Tokens of prompts that are finished."""
    generated: int
    preemptions: int
    looked_up: int
    found: int

    def computed(self, *, looks_up: bool) -> int:
        """Prompt tokens begun, less those found in the cache; without lookups those finished."""
        return self.looked_up - self.found if looks_up else self.prompts


class Steps(NamedTuple):
    """Those of one sender."""

    known: tuple[Step, ...]
    unknown: int
    looks_up: bool
    """Is there a prefix cache, and is it told of?"""

    @staticmethod
    def of(said: Sequence[Reading], room: int) -> "Steps":
        """`room`: tokens that all KV blocks have room for."""
        looks_up = all(None not in (r.prefix_queries, r.prefix_hits) for r in said)
        known = [
            Step(
                r.seq,
                r.at_s,
                r.running,
                r.waiting,
                r.kv_usage * room,
                r.prompt_tokens,
                r.generated_tokens,
                r.preemptions,
                (r.prefix_queries or 0) if looks_up else 0,
                (r.prefix_hits or 0) if looks_up else 0,
            )
            for r in said
            if r.running is not None
            and r.waiting is not None
            and r.kv_usage is not None
            and r.prompt_tokens is not None
            and r.generated_tokens is not None
            and r.preemptions is not None
        ]
        grows = bool(known) and known[-1].looked_up > known[0].looked_up
        return Steps(tuple(known), len(said) - len(known), looks_up and grows)


def broken(before: Step, now: Step, *, looks_up: bool) -> Why | None:
    """Why nobody knows what a step took, or what for; `None`: it is known."""
    if now.number != before.number + 1:
        return Why.LOST
    if not (before.running or before.waiting):
        return Why.IDLE
    if now.at_s <= before.at_s:
        return Why.CLOCK
    came_back = looks_up and now.running > before.running and now.looked_up == before.looked_up
    if came_back or now.preemptions != before.preemptions:
        return Why.PREEMPTED
    return None


def only_decodes(before: Step, now: Step) -> bool:
    """Did all that ran get a token, one each, and was no prompt finished?"""
    return now.prompts == before.prompts and now.generated - before.generated == before.running > 0


def several_each(steps: Steps) -> int:
    """In how many steps there were more tokens than sequences, though no prompt was finished."""
    return sum(
        now.prompts == before.prompts and now.generated - before.generated > before.running
        for before, now in zip(steps.known, steps.known[1:], strict=False)
        if broken(before, now, looks_up=steps.looks_up) is None
    )


def runs_ahead(each: Sequence[Steps]) -> bool:
    """Does vLLM schedule asynchronously: is what is looked up ahead of what is finished by a step?

    If so no prompt is finished in the step in which it was looked up, unless the engine was idle;
    else most are. Where nothing is looked up, or too little to tell, it is taken not to.
    """
    finishing = at_once = 0
    for steps in each:
        owed: int | None = None
        for before, now in zip(steps.known, steps.known[1:], strict=False):
            if broken(before, now, looks_up=steps.looks_up):
                owed = now.looked_up - now.prompts if not (now.running or now.waiting) else None
                continue
            if owed is not None and now.prompts > before.prompts:
                finishing += 1
                at_once += before.looked_up - now.prompts < owed
            if only_decodes(before, now) and now.looked_up == before.looked_up:
                owed = now.looked_up - now.prompts
    return finishing >= LEAST_FINISHING and at_once <= AT_ONCE * finishing
