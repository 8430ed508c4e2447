"""What is asked of a cluster: requests over time, as all the lab's parts know them.

A prompt is a sequence of segments: a system prompt, a message, a block of a trace. A segment is a
name for its text and a number of tokens; two prompts share what their leading equal segments hold.
"""

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple


class Segment(NamedTuple):
    """A piece of a prompt. Equal ones are equal tokens."""

    text: int
    """Names the tokens, 0 ≤ it < 2**63."""
    tokens: int
    """How many they are; at least 1."""


class Request(NamedTuple):
    """One request, and when it comes."""

    at_s: float
    """Seconds since the workload began."""
    prompt: tuple[Segment, ...]
    """At least one segment."""
    output_tokens: int
    """Tokens of the answer: known to nobody but the engine and the omniscient; at least 1."""
    session: int = -1
    """The conversation that it belongs to; -1: to none. No policy is told of it."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return sum(segment.tokens for segment in self.prompt)

    @property
    def ends(self) -> tuple[int, ...]:
        """Where each segment ends, in tokens."""
        return tuple(accumulate(segment.tokens for segment in self.prompt))


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests in the order in which they come."""

    name: str
    """For people, and unique among those that are compared."""
    requests: tuple[Request, ...]
    source: str = ""
    """Where it comes from: a trace and its slice, or a generator, its parameters and seed."""

    @property
    def duration_s(self) -> float:
        """From 0 to the last arrival."""
        return self.requests[-1].at_s if self.requests else 0.0

    def at_rate(self, factor: float) -> "Workload":
        """The same requests, `factor` times as fast. Each session's order stays as it is."""
        faster = tuple(r._replace(at_s=r.at_s / factor) for r in self.requests)
        return Workload(self.name, faster, self.source)
