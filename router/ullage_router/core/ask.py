"""What a request asks for, as far as choosing needs to know.

msgspec reads the whole body for validity but builds nothing except what is named here.
"""

from typing import Final

import msgspec


class _Ask(msgspec.Struct, frozen=True):
    model: str | None = None


_decoder: Final = msgspec.json.Decoder(_Ask)


def model_of(body: bytes) -> str | None:
    """The model that an OpenAI-style JSON body names. None: it names none, or is no such body."""
    if not body.startswith(b"{") and body.lstrip()[:1] != b"{":
        return None
    try:
        return _decoder.decode(body).model
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
