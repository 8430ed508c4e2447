"""What came back: a streamed answer, read event by event.

An answer is whole when its stream said `[DONE]` and no event of it was an error. Anything else has
a `failure`, in few words, the same for all that failed alike.

The first token is there with the first event that has text in it; of an answer that has none at
all, with the first that has a choice. (A chat's first event may only name the role.)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from msgspec import json

MOST_BYTES: Final = 1 << 20
"""Of a single event; a longer one is not from an inference server."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _Details | None = None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None

    @property
    def says(self) -> bool:
        """Is there anything of the answer in it?"""
        if self.text:
            return True
        delta = self.delta
        return delta is not None and bool(
            delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls
        )


class _Error(msgspec.Struct):
    code: int | str | None = None
    type: str | None = None


class _Event(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: _Error | str | None = None


_decode = json.Decoder(_Event).decode


@dataclass(slots=True)
class Answer:
    """A stream as far as it has come. Instants are on the caller's clock, in seconds."""

    first_s: float | None = None
    last_s: float | None = None
    """When something of the answer last came."""
    whole: bool = False
    failure: str = ""
    prompt_tokens: int | None = None
    """These three as the server counted them; `None`: it did not say."""
    cached_tokens: int | None = None
    output_tokens: int | None = None
    pieces: int = 0
    """Events with text: its tokens, from a server that does not count them and joins none."""
    _silent_s: float | None = None
    """The first choice without text."""
    _rest: bytearray = field(default_factory=bytearray)

    def feed(self, piece: bytes, now_s: float) -> None:
        """Take in some bytes. Never raises: what cannot be read is a failure."""
        self._rest += piece
        for data in self._events():
            if data == b"[DONE]":
                self.whole = not self.failure
                if self.first_s is None:
                    self.first_s = self._silent_s
                if self.last_s is None:
                    self.last_s = self.first_s
                return
            try:
                self._take(_decode(data), now_s)
            except msgspec.MsgspecError:
                self.failure = self.failure or "an event that is no completion's"
        if len(self._rest) > MOST_BYTES:
            self._rest.clear()
            self.failure = self.failure or "an event that does not end"

    def _take(self, event: _Event, now_s: float) -> None:
        if event.error is not None and not self.failure:
            self.failure = f"error in the stream: {error_name(event.error)}"
        if event.usage is not None:
            self._count(event.usage)
        if not event.choices:
            return
        if any(choice.says for choice in event.choices):
            self.pieces += 1
            self.last_s = now_s
            if self.first_s is None:
                self.first_s = now_s
        elif self._silent_s is None:
            self._silent_s = now_s

    def _count(self, usage: _Usage) -> None:
        self.prompt_tokens = usage.prompt_tokens
        self.output_tokens = usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def _events(self) -> Iterator[bytes]:
        """Take whole lines off what came; the data of each."""
        *lines, rest = self._rest.split(b"\n")
        self._rest = bytearray(rest)
        for line in lines:
            if line.startswith(b"data:"):
                yield bytes(line[5:].strip())


def refusal(status: int, content: bytes) -> str:
    """In few words, what an answer other than 200 says."""
    try:
        error = _decode(content).error
    except msgspec.MsgspecError:
        error = None
    name = "" if error is None else error_name(error)
    return f"status {status}" + (f": {name}" if name not in ("", str(status)) else "")


def error_name(error: Any) -> str:
    """Its code, else its type: what is the same for all of its kind."""
    if isinstance(error, _Error):
        return str(error.code or error.type or "unnamed")
    return "unnamed"
