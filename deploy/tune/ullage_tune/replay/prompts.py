"""What is sent for a request: a prompt made from its segments, the same on every machine.

Equal segments become equal text, and of two that only differ in length the shorter one begins the
longer one. So prompts share in the server's KV cache what their segments share.

Three forms:

* `tokens`: token ids, to `/v1/completions`. Exact lengths. Ids are low ones (`IDS`), which are in
  every vocabulary and special in none.
* `text`: words, to `/v1/completions`. About the asked lengths: each word is one token in most
  vocabularies; what the server counted is what is reported.
* `chat`: the same words as messages, one per segment, to `/v1/chat/completions`. A prompt of an
  even number of segments begins with a system message; then users and assistants take turns, and a
  user has the last word. So turns of a conversation share their beginnings. Blocks of a trace are
  no messages: give those as `text`.
"""

import random
from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Any, Final

from msgspec import json

from ullage_tune.workload import Request, Segment, Workload

IDS: Final = range(300, 2000)
_LISTED = """
    a all and are args as at be by call class code data default else error file first for from get
    given has if import in index is it key last len line list name new no not object of on one only
    or other path raise read return same self set size start string test that the then this time to
    true type use value when which with write
"""
WORDS: Final = tuple(_LISTED.split())

CACHED_SEGMENTS: Final = 4096


class Form(StrEnum):
    """How prompts are sent."""

    TOKENS = "tokens"
    TEXT = "text"
    CHAT = "chat"

    @property
    def path(self) -> str:
        """Where."""
        return "/v1/chat/completions" if self is Form.CHAT else "/v1/completions"


def body(request: Request, form: Form, model: str, *, plain: bool) -> bytes:
    """Make its body: streamed, with its usage, and an answer of just the length asked for.

    `plain` leaves out what OpenAI's API does not know: the answer may end earlier.
    """
    asked: dict[str, Any] = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": request.output_tokens,
    }
    if not plain:
        asked["ignore_eos"] = True
    if form is Form.CHAT:
        asked["messages"] = messages(request.prompt)
    elif form is Form.TEXT:
        asked["prompt"] = "".join(map(text, request.prompt))
    else:
        asked["prompt"] = [token for segment in request.prompt for token in ids(segment)]
    return json.encode(asked)


def messages(prompt: Iterable[Segment]) -> list[dict[str, str]]:
    """Make a conversation of it, one message per segment."""
    texts = [text(segment).lstrip() for segment in prompt]
    roles = ["user" if (len(texts) - place) % 2 else "assistant" for place in range(len(texts))]
    if len(texts) % 2 == 0:
        roles[:1] = ["system"] if texts else []
    return [{"role": role, "content": words} for role, words in zip(roles, texts, strict=True)]


def apart(work: Workload, name: str) -> Workload:
    """The same requests with texts that no other name's have. Generators number theirs from 0: in a
    server's cache, those of two seeds would be the same."""

    def renamed(segment: Segment) -> Segment:
        digest = blake2b(f"{name} {segment.text}".encode(), digest_size=8).digest()
        return segment._replace(text=int.from_bytes(digest) >> 1)

    requests = tuple(r._replace(prompt=tuple(map(renamed, r.prompt))) for r in work.requests)
    return replace(work, requests=requests)


@lru_cache(CACHED_SEGMENTS)
def ids(segment: Segment) -> tuple[int, ...]:
    """Its token ids."""
    return tuple(random.Random(segment.text).choices(IDS, k=segment.tokens))


@lru_cache(CACHED_SEGMENTS)
def text(segment: Segment) -> str:
    """Its words, each with a space before it, so that they do not depend on what stands before."""
    return " " + " ".join(random.Random(segment.text).choices(WORDS, k=segment.tokens))
