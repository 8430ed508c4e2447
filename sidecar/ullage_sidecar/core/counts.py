"""Counters of one engine, summed over its senders.

A sender reports totals since it started. What counts is the difference to its previous total, so a
lost datagram loses no token and a second API process adds its own. The first reading of a sender
counts from 0 if this sidecar can have heard everything (it is the sender's first step, or the
incarnation began after the sidecar did); else it is only the baseline.

The sequence number tells what became of the readings: a gap is lost datagrams, a repeat a
heartbeat. Counts go on over incarnations, as Prometheus counters should.
"""

import msgspec

from ullage_sidecar.core.reading import Reading


class Counts(msgspec.Struct, frozen=True, gc=False):
    """What was received and what it added up to. A total nobody ever reported is `None`."""

    received: int = 0
    lost: int = 0
    heartbeats: int = 0
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    preemptions: int | None = None
    prefix_queries: int | None = None
    prefix_hits: int | None = None

    def with_step(self, before: Reading, step: Reading) -> "Counts":
        """Add what happened between two steps of one sender."""
        lost = self.lost + step.seq - before.seq - 1
        return self._with_totals(self.received + 1, lost, self.heartbeats, before, step)

    def with_heartbeat(self, before: Reading, again: Reading) -> "Counts":
        """Add one repeat of the last step; its totals may have grown since."""
        return self._with_totals(self.received, self.lost, self.heartbeats + 1, before, again)

    def _with_totals(
        self, received: int, lost: int, heartbeats: int, before: Reading, now: Reading
    ) -> "Counts":
        return Counts(
            received,
            lost,
            heartbeats,
            _grown(self.prompt_tokens, before.prompt_tokens, now.prompt_tokens),
            _grown(self.generated_tokens, before.generated_tokens, now.generated_tokens),
            _grown(self.preemptions, before.preemptions, now.preemptions),
            _grown(self.prefix_queries, before.prefix_queries, now.prefix_queries),
            _grown(self.prefix_hits, before.prefix_hits, now.prefix_hits),
        )


def birth(sender: int) -> Reading:
    """What a sender stood at before its first step: all totals 0."""
    return Reading(sender, 0, 0.0, None, None, None, 0, 0, 0, 0, 0)


def _grown(total: int | None, before: int | None, now: int | None) -> int | None:
    if now is None:
        return total
    if before is None or now <= before:
        return total or 0
    return (total or 0) + now - before
