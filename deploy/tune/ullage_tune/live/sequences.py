"""How far each request of a live twin is, from what vLLM's scheduler says.

A request has tokens: its prompt, and what was sampled. In a step the scheduler computes some of
them; when all are computed, one more is sampled. A preempted request is computed again from where
the scheduler says, prompt and answer alike, and samples nothing until it is back.

Sampled tokens are letters, by position: the same request has the same answer wherever it goes.
"""

from typing import Any, Final

LETTERS: Final = range(65, 91)
"""Their ids: no byte-level vocabulary has a special token there."""


class Sequences:
    """All requests that the executor knows of; false: none."""

    def __init__(self) -> None:
        self._has: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self._has)

    def step(self, scheduled: Any) -> tuple[dict[str, list[int]], int]:
        """Take in a step (vLLM's `SchedulerOutput`).

        Returns what each of its requests samples, and the tokens that all of them then hold in the
        KV cache.
        """
        for gone in scheduled.finished_req_ids:
            self._has.pop(gone, None)
        computed = {}
        for new in scheduled.scheduled_new_reqs:
            self._has[new.req_id] = len(new.prompt_token_ids or ())
            computed[new.req_id] = new.num_computed_tokens
        cached = scheduled.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        sampled, context_tokens = {}, 0
        for request, tokens in scheduled.num_scheduled_tokens.items():
            upto = computed[request] + tokens
            context_tokens += upto
            sampled[request] = [LETTERS[upto % len(LETTERS)]] if upto >= self._has[request] else []
            self._has[request] += len(sampled[request])
        return sampled, context_tokens
