"""What became of a request, and of a run."""

from dataclasses import dataclass
from typing import NamedTuple


class Outcome(NamedTuple):
    """One request's fate. Instants are seconds since the workload began."""

    arrived_s: float
    router: int
    """Which of the routers it came to."""
    replica: int | None
    """The one that served it, or failed to; `None`: it was refused."""
    prompt_tokens: int
    cached_tokens: int
    """Of these, found in the KV cache when it was first scheduled."""
    output_tokens: int
    first_token_s: float | None
    """When its first token was there; `None`: never."""
    finished_s: float | None
    """When its last one was; `None`: it failed."""
    why: str = ""
    """The rule that chose, where the policy says."""
    tries: int = 1
    """Replicas that it was sent to; 0: refused."""

    @property
    def ttft_s(self) -> float | None:
        """Time to first token, from the arrival at the router."""
        return None if self.first_token_s is None else self.first_token_s - self.arrived_s

    @property
    def e2e_s(self) -> float | None:
        """From the arrival to the last token."""
        return None if self.finished_s is None else self.finished_s - self.arrived_s

    @property
    def tpot_s(self) -> float | None:
        """Time per output token behind the first; `None`: there is no second one."""
        if self.finished_s is None or self.first_token_s is None or self.output_tokens < 2:
            return None
        return (self.finished_s - self.first_token_s) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Run:
    """One workload, one policy, one seed."""

    workload: str
    policy: str
    seed: int
    outcomes: tuple[Outcome, ...]
    """In the order of arrival."""
    busy_s: tuple[float, ...]
    """Of each replica: seconds in which its GPU had a step to do."""
    simulated_s: float
    wall_s: float
    """What it took to simulate."""
