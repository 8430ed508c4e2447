"""How many tokens a prompt had, found at the end of its answer.

    … ,"usage":{"prompt_tokens":17,"total_tokens":21,"completion_tokens":4}}

The last that an answer says holds: vLLM counts along in a stream where it is asked to, and is right
each time. Nothing is parsed: it is searched backwards for what only the field itself looks like. In
generated text the same words have escaped quotes. In the last bytes it is found even if a chunk's
framing cuts it.

Answers that say `input_tokens` (Anthropic's, Responses') say nothing here: vLLM leaves out of
Anthropic's what it had in its cache.
"""

import re
from typing import Final

_FIELD: Final = b'"prompt_tokens"'
_OBJECT: Final = b'"usage"'
_USAGE: Final = re.compile(rb'"usage"\s*:\s*\{[^{}]*"prompt_tokens"\s*:\s*(\d{1,12})\s*[,}]')
_FRAMING: Final = re.compile(rb"\r\n[0-9A-Fa-f]{1,8}(?:;[^\r\n]*)?\r\n")
_BEFORE_BYTES: Final = 512
"""How far before the field its object may have begun."""
_CUT_BYTES: Final = 1024
"""How far from the end chunks are looked for that cut it."""
_MOST_LOOKS: Final = 16
"""For text of which each token is a string that says no more than the field's name."""


def prompt_tokens_in(tail: bytes) -> int | None:
    """`usage.prompt_tokens` of the answer that ends so. None: it does not say. Total."""
    found = _last(tail)
    if found is None:
        end = tail[-_CUT_BYTES:]
        if b"\r\n" in end and (b"usage" in end or b"tokens" in end):  # One cut leaves one whole.
            return _last(_FRAMING.sub(b"", end))
    return found


def _last(tail: bytes) -> int | None:
    at = len(tail)
    for _ in range(_MOST_LOOKS):
        at = tail.rfind(_FIELD, 0, at)
        if at < 0:
            return None
        begins = tail.rfind(_OBJECT, max(0, at - _BEFORE_BYTES), at)
        usage = _USAGE.match(tail, begins) if begins >= 0 else None
        if usage is not None:
            return int(usage[1])
    return None
