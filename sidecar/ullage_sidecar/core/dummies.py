"""The dummy requests of a warm-up: what they ask for, as bodies of OpenAI's API.

One round is `concurrency` requests, whose prompts are in turn a sixteenth of the longest, a quarter
of it, and it: so that short and long prefills, and the batch of all, are compiled and measured.
Every round of a warm-up is the same mix. Longer prompts than `max_num_batched_tokens` would be
computed in pieces of that size, and teach nothing more.

Prompts are random token numbers, so that their lengths are exact and no prefix cache answers for
the model. Numbers from 100 to 999 are ordinary tokens in every usual vocabulary. A chat takes words
instead, of about a token each.

Who reads vLLM's log knows the dummies by their request id, which begins with `ullage-warm-up`; who
reads the API server's by the user agent.
"""

from enum import StrEnum
from random import Random
from typing import Any, Final, NamedTuple

from ullage_sidecar.core.warmup import WarmUpSettings

MARK: Final = "ullage-warm-up"
USUAL_MODEL_LEN: Final = 2_048
"""Tokens; taken where nobody says how long prompts may be, or says what cannot be."""
USUAL_BATCH: Final = 8_192
"""Tokens; taken where nobody says how many are computed in one step."""
MOST_MODEL_LEN: Final = 2**31
"""Tokens; nobody has as many."""
_TOKENS: Final = range(100, 1000)
_WORDS: Final = ("time", "year", "way", "day", "man", "thing", "life", "part", "place", "case")


class Api(StrEnum):
    """What a server may offer, in the order tried."""

    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"
    EMBEDDINGS = "/v1/embeddings"


class Dummy(NamedTuple):
    """One request."""

    model: str
    prompt_tokens: int
    generated_tokens: int


def round_of(
    model: str, max_model_len: int | None, most_at_once: int | None, settings: WarmUpSettings
) -> list[Dummy]:
    """One round. `max_model_len`, `most_at_once` (`max_num_batched_tokens`): `None` is unknown."""
    is_known = max_model_len is not None and 0 < max_model_len < MOST_MODEL_LEN
    model_len = max_model_len if max_model_len and is_known else USUAL_MODEL_LEN
    longest = int(settings.longest_prompt * model_len)
    longest = max(1, min(longest, most_at_once or USUAL_BATCH))
    # What a short context leaves beside the longest prompt; at least one token.
    generated = max(1, min(settings.generated_tokens, model_len - longest - 1))
    lengths = (max(1, longest // 16), max(1, longest // 4), longest)
    return [
        Dummy(model, lengths[index % len(lengths)], generated)
        for index in range(settings.concurrency)
    ]


def body(dummy: Dummy, api: Api, rng: Random) -> dict[str, Any]:
    """The JSON body of a dummy. A chat's `prompt_tokens` is approximate."""
    ids = rng.choices(_TOKENS, k=dummy.prompt_tokens)
    common = {"model": dummy.model, "user": MARK}
    if api is Api.EMBEDDINGS:
        return {**common, "input": ids}
    wanted = {"max_tokens": dummy.generated_tokens, "ignore_eos": True, "temperature": 0.0}
    if api is Api.COMPLETIONS:
        return {**common, **wanted, "prompt": ids}
    text = " ".join(rng.choices(_WORDS, k=dummy.prompt_tokens))
    return {**common, **wanted, "messages": [{"role": "user", "content": text}]}
