"""What a request asks for, as far as choosing needs to know.

msgspec reads the body once, for validity, and builds nothing but what is named here; the rest stays
bytes. A field of a wrong type is unknown, the others still count. A body that is no JSON object
asks for nothing that is known; nor does one that msgspec takes for broken and Python does not (NaN,
half of a surrogate pair).

Of a talk with more messages than may have keys, the rest is read over: to build all of them would
let a body of `[1,1,1,…` weigh 29 times its bytes, and take 9 times as long.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, Final, Generic, TypeVar, Union, cast

import msgspec
from msgspec import Meta, Raw

from ullage_router.core.keys import MOST_MESSAGES, Keys, block_keys, named_key, talk_keys

_BIG_BYTES: Final = 65_536
"""In bodies up to this size all messages are built: for few it is faster, and many do not fit."""
_BASE64: Final = b";base64,"
_INLINE_BYTES: Final = 4096
"""An image is about a thousand tokens, whatever its size."""
_GLANCE_BYTES: Final = 64
_STEP_BYTES: Final = 16_384 - _GLANCE_BYTES
_MOST_INLINE: Final = 256
_INT64: Final = 2**63
_ABSENT: Final = Raw()
_NOTHING: Final = (b"null", b'""', b"[]", b"{}")
_NOTHING_BYTES: Final = 4
_BOM: Final = b"\xef\xbb\xbf"
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Ask(msgspec.Struct, frozen=True, gc=False):
    """What is known of a request. What is not known has its default."""

    model: str | None = None
    stream: bool = False
    prompt_bytes: int = 0
    """Bytes, as JSON spells them, of what the model will read, tools included."""
    max_tokens: int | None = None
    """Most tokens that the client wants generated."""
    priority: int = 0
    """In vLLM's sense: lower is served earlier."""
    keys: Keys = ()
    """Cache keys, 64 bits each, that of the shortest prefix first."""
    shares: tuple[float, ...] = ()
    """How much of the prompt each of them covers, 0..1."""


_Count = Annotated[int, Meta(ge=0, le=_INT64 - 1)]
_Priority = Annotated[int, Meta(ge=-_INT64, le=_INT64 - 1)]


class _Body(msgspec.Struct, frozen=True, gc=False):
    """What every body may have."""

    model: str | None = None
    stream: bool | None = None
    max_completion_tokens: _Count | None = None
    max_tokens: _Count | None = None
    max_output_tokens: _Count | None = None
    priority: _Priority | None = None
    prompt_cache_key: str | None = None
    cache_salt: Raw = _ABSENT
    tools: Raw = _ABSENT


class _Plain(_Body, frozen=True, gc=False):
    """A prompt, or whatever else is no talk."""

    prompt: Raw = _ABSENT
    input: Raw = _ABSENT
    messages: Raw = _ABSENT
    system: Raw = _ABSENT
    instructions: Raw = _ABSENT


class _Talk(_Body, frozen=True, gc=False):
    """A system prompt and messages, by whatever names the body has for them."""

    system: Raw = _ABSENT
    messages: Any = None
    """A `list[Raw]`, or a `_First`, or a text, or nothing."""


_First: Final = msgspec.defstruct(
    "_First", [(f"m{i}", Raw, None) for i in range(MOST_MESSAGES)], array_like=True, gc=False
)
"""The first elements of an array; those behind them are read over."""


_B = TypeVar("_B", bound=_Body)


class _Form(Generic[_B]):
    """How bodies of one form are read."""

    def __init__(self, body: type[_B]) -> None:
        fields = msgspec.structs.fields(body)
        unread = [(field.name, Raw, _ABSENT) for field in fields]
        names = {field.name: field.encode_name for field in fields}
        self._body = body
        self._decode = msgspec.json.Decoder(body).decode
        self._unread = msgspec.json.Decoder(msgspec.defstruct("_Unread", unread, rename=names))
        self._alone = {field.name: msgspec.json.Decoder(field.type) for field in fields}

    def read(self, body: bytes) -> _B:
        """Read a body. Total."""
        if not body.startswith(b"{"):
            body = body.removeprefix(_BOM).lstrip()  # A replica takes that.
            if not body.startswith(b"{"):
                return self._body()
        try:
            return self._decode(body)
        except _UNREADABLE:
            return self._field_by_field(body)

    def _field_by_field(self, body: bytes) -> _B:
        """Read a body of which something is wrong: leave that out."""
        try:
            unread = self._unread.decode(body)
        except _UNREADABLE:
            return self._body()
        read = {}
        for name, decoder in self._alone.items():
            with suppress(*_UNREADABLE):
                if raw := getattr(unread, name):
                    read[name] = decoder.decode(raw)
        return self._body(**read)


def _talk(system: str, messages: str, *also: type) -> tuple[_Form[_Talk], _Form[_Talk]]:
    """For bodies that have these names for them: the form of small ones, and of big ones.

    `also`: what messages may be beside a list.
    """
    forms = []
    for kind in (list[Raw], _First):
        fields = [("system", Raw, _ABSENT), ("messages", Union[kind, *also, None], None)]
        names = {"system": system, "messages": messages}
        body = msgspec.defstruct(
            "_Talk", fields, bases=(_Talk,), rename=names, frozen=True, gc=False
        )
        forms.append(_Form(cast(type[_Talk], body)))
    return forms[0], forms[1]


_CHAT: Final = _talk("system", "messages")
_RESPONSES: Final = _talk("instructions", "input", str)
_PLAIN: Final = _Form(_Plain)


def ask_of(
    target: bytes,
    body: bytes,
    *,
    cache_key: bytes | None = None,
    session: bytes | None = None,
    priority: int | None = None,
) -> Ask:
    """What the request asks for. Total: every target and every body has its answer.

    `cache_key`: of `x-ullage-cache-key`; `session`: of the session header; `priority`: of
    `x-ullage-priority`, which goes before the body's. An empty key is none.
    """
    big = len(body) > _BIG_BYTES
    forms, has_prompt = _form(target)
    asked: _Talk | _Plain
    if forms is not None:
        asked = forms[big].read(body)
        messages = _listed(asked.messages)
        tools = _content(asked.tools) if asked.tools else _ABSENT
        system = _content(asked.system) if asked.system else _ABSENT
        prompt_bytes = sum(map(len, messages), len(tools) + len(system))
        if len(messages) >= MOST_MESSAGES:  # There may be more than were looked at.
            prompt_bytes = len(body)
        model = asked.model
        if cache_key or asked.prompt_cache_key or session:
            chain = named_key(model, cache_key, asked.prompt_cache_key, session)
        else:
            salt = asked.cache_salt and _content(asked.cache_salt)
            chain = talk_keys(model, salt, tools, system, messages)
    else:
        asked = _PLAIN.read(body)
        prompt_bytes = _plain_bytes(asked)
        model = asked.model
        chain = named_key(model, cache_key, asked.prompt_cache_key, session)
        if not chain.keys and has_prompt:
            salt = _content(asked.cache_salt)
            chain = block_keys(model, salt, _content(asked.prompt))
    if big:
        prompt_bytes = max(0, prompt_bytes - _inline_bytes(body))
    limit = asked.max_completion_tokens
    if limit is None:
        limit = asked.max_tokens if asked.max_tokens is not None else asked.max_output_tokens
    if priority is None:
        priority = asked.priority or 0
    stream = asked.stream is True
    return Ask(model, stream, prompt_bytes, limit, priority, chain.keys, chain.shares)


@lru_cache(maxsize=64)
def _form(target: bytes) -> tuple[tuple[_Form[_Talk], _Form[_Talk]] | None, bool]:
    """The forms of the talks that are sent there, if they are; and whether prompts are."""
    path = target.partition(b"?")[0]
    if path.endswith(b"/responses"):
        return _RESPONSES, False
    if path.endswith((b"/chat/completions", b"/messages")):
        return _CHAT, False
    return None, path.endswith(b"/completions")


def _inline_bytes(body: bytes) -> int:
    """What images and the like have more of than of what the model makes of them."""
    # A glance would fall into a large one, and see no space. To search for where one begins takes
    # ten times as long.
    if all(b" " in body[at : at + _GLANCE_BYTES] for at in range(0, len(body), _STEP_BYTES)):
        return 0
    more_bytes, at = 0, body.find(_BASE64)
    for _ in range(_MOST_INLINE):
        end = body.find(b'"', at) if at >= 0 else -1
        if end < 0:
            break
        more_bytes += max(0, end - at - _INLINE_BYTES)
        at = body.find(_BASE64, end)
    return more_bytes


def _listed(messages: Any) -> Sequence[Raw]:
    """All messages, if they are fewer than `MOST_MESSAGES`; else so many, or more."""
    if messages is None or type(messages) is list:
        return messages or ()
    if type(messages) is str:
        return (Raw(msgspec.json.encode(messages)),) if messages else ()
    first: tuple[Raw, ...] = msgspec.structs.astuple(messages)
    return first if first[-1] is not None else first[: first.index(cast(Raw, None))]


def _content(raw: Raw) -> Raw:
    """The field's JSON; nothing, if it says nothing."""
    return _ABSENT if 0 < len(raw) <= _NOTHING_BYTES and bytes(raw) in _NOTHING else raw


def _plain_bytes(asked: _Plain) -> int:
    prompt, instructions = (asked.prompt, asked.input), (asked.system, asked.instructions)
    read = (*prompt, asked.messages, *instructions, asked.tools)
    return sum(len(_content(raw)) for raw in read if raw)
