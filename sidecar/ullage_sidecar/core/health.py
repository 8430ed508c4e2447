"""Does the server answer? What its `/health` said, remembered.

A refused connection or a status other than 200 is believed at once: nobody is there, or the server
itself says that its engine is dead. A timeout is not: a busy server answers late. It is believed
once timeouts have lasted `signs_of_life_s` without a step of the engine in that time. What is
believed stays so until a good answer. A good answer where nobody listened before may be a process
that has just started: until anything is heard of it, `died_s` tells that nobody knows (see life).
Who says that it is ill is there, and has not started anew when it is well again.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from msgspec import Meta


class HealthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Table `[health]`."""

    interval_s: Annotated[
        float,
        Meta(ge=0.05, le=60.0, description="Seconds between two `GET /health` of a server."),
    ] = 1.0
    timeout_s: Annotated[
        float,
        Meta(ge=0.05, le=60.0, description="Seconds to wait for the answer."),
    ] = 1.0
    signs_of_life_s: Annotated[
        float,
        Meta(
            ge=1.5,
            le=60.0,
            description="Silence after which signals are unknown; while servers are scraped, at "
            "least `scrape.interval_s` + 0.5.",
        ),
    ] = 3.0
    hung_after_s: Annotated[
        float,
        Meta(ge=1.0, le=3600.0, description="Seconds without a step, with work to do: hung."),
    ] = 30.0
    ca: Annotated[
        str,
        Meta(
            description="PEM file with the authorities that a server at `https://` is checked "
            "against. Empty: the system's."
        ),
    ] = ""


@dataclass(frozen=True, slots=True)
class Probe:
    """One answer to `GET /health`, or its absence."""

    fault: str | None
    """What went wrong; `None`: status 200. Free of figures that change from probe to probe."""
    certain: bool = True
    """False: nothing came in time, which a busy server does too."""
    gone: bool = False
    """Nobody listens there: what answers next may be another process."""


@dataclass(frozen=True, slots=True)
class Health:
    """What is known from all probes of one incarnation."""

    answered: bool = False
    """It has served: it answered a probe, or its engine made a step."""
    fault: str | None = None
    certain: bool = False
    """Was any of the present row of faults certain?"""
    fault_since_s: float = 0.0
    """When the present row of faults began."""
    died_s: float | None = None
    """When nobody listened there, at the latest; `None`: never."""
    answers_since_s: float = 0.0
    """When the present row of good answers began."""

    @property
    def is_gone(self) -> bool:
        """Has nobody listened there since the present row of faults began?"""
        since_s = self.fault_since_s
        return self.fault is not None and self.died_s is not None and self.died_s >= since_s

    def after(self, probe: Probe, now_s: float) -> "Health":
        """Remember one probe more."""
        if probe.fault is None:
            goes_on = self.answered and self.fault is None
            since_s = self.answers_since_s if goes_on else now_s
            return Health(answered=True, died_s=self.died_s, answers_since_s=since_s)
        since_s = now_s if self.fault is None else self.fault_since_s
        died_s = now_s if probe.gone else self.died_s
        certain = probe.certain or self.certain
        return Health(self.answered, probe.fault, certain, since_s, died_s)

    def after_absence(self, now_s: float) -> "Health":
        """Who asked was away until now: what merely lasted meanwhile has been seen by nobody."""
        if self.fault is None or self.certain:
            return self
        return replace(self, fault_since_s=max(self.fault_since_s, now_s))

    def is_down(self, stepped_at_s: float | None, limit_s: float, now_s: float) -> bool:
        """Is the fault believed? `stepped_at_s`: the engine's latest step."""
        if self.fault is None or self.certain:
            return self.fault is not None
        stepped = stepped_at_s is not None and now_s - stepped_at_s <= limit_s
        return now_s - self.fault_since_s > limit_s and not stepped
