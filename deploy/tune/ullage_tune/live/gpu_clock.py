"""When a modelled GPU is done with a step: the time line of one live twin.

    due = (end of the step before, or now if the engine has been idle) + seconds of the step

The engine's own work between two steps (scheduling, handing out tokens) is within the step's time,
as it is with vLLM's asynchronous scheduling, and a late wake-up shortens the next sleep: nothing
adds up. Only when that work takes longer than the whole step is the twin slower than its model:
an overrun. It is counted, with the seconds lost, and the time line begins anew from there.

The clock may not run backwards (`time.monotonic` does not).
"""

from dataclasses import dataclass


@dataclass(slots=True)
class GpuClock:
    """The time line, and what went by on it."""

    steps: int = 0
    """Those that computed something."""
    busy_s: float = 0.0
    """Seconds that the model gave for them."""
    overruns: int = 0
    """Steps whose time was over before the engine had even asked for them."""
    lost_s: float = 0.0
    """By how much, in all: the twin was slower than its model by this."""
    _free_s: float | None = None
    """When the step before ends; `None`: the engine is idle."""

    def due_s(self, step_s: float, now_s: float) -> float:
        """When a step that is asked for at `now_s` will be done, ≥ `now_s`, if it takes `step_s`.

        Both instants on one monotonic clock; seconds. The step is counted.
        """
        due_s = (now_s if self._free_s is None else self._free_s) + step_s
        self.steps += 1
        self.busy_s += step_s
        if due_s < now_s:
            self.overruns += 1
            self.lost_s += now_s - due_s
            due_s = now_s
        self._free_s = due_s
        return due_s

    def idle(self) -> None:
        """Nothing is left to compute: the next step begins when it is asked for."""
        self._free_s = None

    def told(self) -> dict[str, float]:
        """Make it ready for a report, without the time line."""
        return {
            "steps": self.steps,
            "busy_s": round(self.busy_s, 6),
            "overruns": self.overruns,
            "lost_s": round(self.lost_s, 6),
        }
