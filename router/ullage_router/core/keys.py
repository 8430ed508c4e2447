"""Cache keys: the names of what requests share, so that they go where it was last computed.

    hash(kind, value, model)     one key, where the client names it: x-ullage-cache-key, else the
                                 body's prompt_cache_key, else the session header
    key(i) = hash(m(i), seed key(i - 1))   else a chain, shortest first: a key after the head, one
                                 after each message; for /completions after 1, 2, 4, 8, … blocks of
                                 the prompt

The head is model, cache_salt, tools, system prompt, and the system messages that come first. Tools
lead because templates put them before or into the system prompt: requests that differ in their
tools share next to nothing. The head has a key only if tools, system prompt and system messages are
256 bytes or more, some four KV blocks: less is worth no detour, and "You are a helpful assistant."
would pin every second application to one replica. The keys behind the head are there at any size.
Of a long chain the first 2 and the last 32 keys are kept: as long as one turn adds fewer messages
than that, its chain holds the last key of the turn before.

* The bytes are hashed as JSON spells them. What is spelled differently has another key (so has a
  message from which Anthropic's `cache_control` has moved on): at worst a miss of the cache.
* Of what else a template may render (`chat_template_kwargs`, `documents`, …) nothing is hashed: a
  key that promises too much costs a miss, too.
* Messages beyond the 512th have no keys: a conversation that long has its home.
* Keys are the same in every process, version and machine: XXH3, 64 bits. It is no secret; a client
  who makes keys collide spoils the affinity of requests, never their answers.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import Raw
from xxhash import xxh3_64_intdigest

MOST_MESSAGES: Final = 512
LEAST_HEAD_BYTES: Final = 256
FIRST_KEYS: Final = 2
LAST_KEYS: Final = 32
BLOCK_BYTES: Final = 2048
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_TYPE: Final = rb'(?:"type"\s*:\s*"message"\s*,\s*)?'
_ROLE: Final = rb'"role"\s*:\s*"(?:(system"|developer")|\w*")'
_ROLE_FIRST: Final = re.compile(rb"\{\s*" + _TYPE + _ROLE)
_ROLE_LAST: Final = re.compile(rb"[{,]\s*" + _ROLE + rb"\s*\}\Z")
"""No string of the message can end it like this: its quotes would be escaped."""
_LOOK_AT_BYTES: Final = 64

Keys = tuple[int, ...]


class Chain(msgspec.Struct, frozen=True, gc=False):
    """The cache keys of a request, that of the shortest beginning first."""

    keys: Keys = ()
    shares: tuple[float, ...] = ()
    """How much of the prompt each of them covers, 0..1."""


NO_KEYS: Final = Chain()
NAMED_SHARE: Final = 0.75
"""A guess: the client does not say how much of the prompt has the name that it gives."""


class _Message(msgspec.Struct, frozen=True):
    role: str | None = None


_message: Final = msgspec.json.Decoder(_Message)


def named_key(
    model: str | None, header: bytes | None, in_body: str | None, session: bytes | None
) -> Chain:
    """Return the key that the client names, if any: the first of these that is not empty."""
    if header:
        return _named(b"header", header, model)
    if in_body:
        return _named(b"body", in_body.encode(), model)
    return _named(b"session", session, model) if session else NO_KEYS


def _named(kind: bytes, value: bytes, model: str | None) -> Chain:
    return Chain((xxh3_64_intdigest(_name(model) + kind + value),), (NAMED_SHARE,))


def _name(model: str | None) -> bytes:
    """The model's name, and an end that no name has: these bytes are not UTF-8."""
    return b"\xfe\xff" if model is None else model.encode() + b"\xff"


def talk_keys(
    model: str | None, salt: Raw, tools: Raw, system: Raw, messages: Sequence[Raw]
) -> Chain:
    """Return the chain of a talk: JSON each, empty for what is not there."""
    key, head_bytes = xxh3_64_intdigest(_name(model) + b"talk"), 0
    if salt or tools or system:
        head_bytes = len(tools) + len(system)
        for piece in (salt, tools, system):
            key = xxh3_64_intdigest(piece, key)
    if len(messages) > MOST_MESSAGES:
        messages = messages[:MOST_MESSAGES]
    at = 0
    for message in messages:
        role = _ROLE_FIRST.match(message)
        if not (role.lastindex if role else _is_system(message)):
            break
        key = xxh3_64_intdigest(message, key)
        head_bytes += len(message)
        at += 1
    has_head = head_bytes >= LEAST_HEAD_BYTES
    keys, ends, end = ([key], [head_bytes], head_bytes) if has_head else ([], [], head_bytes)
    for message in messages[at:] if at else messages:
        key = xxh3_64_intdigest(message, key)
        keys.append(key)
        end += len(message)
        ends.append(end)
    if len(keys) > FIRST_KEYS + LAST_KEYS:
        del keys[FIRST_KEYS:-LAST_KEYS], ends[FIRST_KEYS:-LAST_KEYS]
    return Chain(tuple(keys), tuple([at / end for at in ends]))


def _is_system(message: Raw) -> bool:
    """Is it part of the system prompt, though its role does not come first? (It may be long.)"""
    role = _ROLE_LAST.search(message, len(message) - _LOOK_AT_BYTES)
    if role:
        return role.lastindex is not None
    if bytes(memoryview(message)[:1]) != b"{":
        return False
    try:
        return _message.decode(message).role in ("system", "developer")
    except _UNREADABLE:
        return False


def block_keys(model: str | None, salt: Raw, prompt: Raw) -> Chain:
    """Return the chain of a prompt: the JSON of a text or a list, else it has none."""
    raw = memoryview(prompt)
    kind, inner = bytes(raw[:1]), raw[1:-1]  # Its end is in no longer one's place.
    if kind not in (b'"', b"["):
        return NO_KEYS
    key, size = (
        xxh3_64_intdigest(salt, xxh3_64_intdigest(_name(model) + b"blocks" + kind)),
        len(inner),
    )
    if size < BLOCK_BYTES:
        return Chain((xxh3_64_intdigest(inner, key),), (1.0,))
    keys, shares, begin, end = [], [], 0, BLOCK_BYTES
    while end <= size:
        key = xxh3_64_intdigest(inner[begin:end], key)
        keys.append(key)
        shares.append(end / size)
        begin, end = end, 2 * end
    return Chain(tuple(keys), tuple(shares))
