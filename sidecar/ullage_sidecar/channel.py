"""Datagrams from vLLM to the sidecar, over a unix socket: the format and the sending end.

Rule: standard library only, and nothing here may raise or wait inside vLLM's process.

A sender has a connection (`SOCK_STREAM`) of its own and writes one datagram behind the other. Each
begins with `MAGIC` (format and version), a kind byte and its own length, head included:

* step: the fixed struct `_STEP`, little-endian, every value a double, NaN for unknown;
* hello: the sender's fields as a JSON object.

A stream, because the kernel keeps hundreds of steps of it, where it queues ten packets of a
`SOCK_DGRAM` socket (net.unix.max_dgram_qlen): the sidecar may look when it likes, and takes in all
that waits with one call. Of a stream that does not go on with `MAGIC` nothing more can be read: it
is closed, so that of two versions neither takes the other's word for something else.

A sender repeats its hello and its last step every second, the latter with its newest totals. So
either end may restart at any time, and a sidecar learns the state of an engine that has long been
idle.
"""

import fcntl
import json
import math
import os
import re
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import accumulate
from typing import Any, Final

from ullage_sidecar.core.reading import Hello, Reading

DEFAULT_SOCKET: Final = "/run/ullage/readings.sock"
MAX_DATAGRAM_BYTES: Final = 16_384
BUFFER_BYTES: Final = 212_992
"""Asked of the kernel for a connection, which gives twice that, for its own overhead: 500 steps."""

MAGIC: Final = b"ULG2"
_HELLO: Final = 0
_NAME_LIMIT: Final = 1024
_SURROGATES: Final = re.compile("[\ud800-\udfff]")  # half characters: no JSON can carry them
_STEP_KIND: Final = 1
_HEAD: Final = struct.Struct("<4sBxH")
_STEP: Final = struct.Struct("<4sBxHQQ9d")
_STEP_HEAD: Final = _HEAD.pack(MAGIC, _STEP_KIND, _STEP.size)
_COUNT_LIMIT: Final = 2.0**53  # beyond it a double does not count by ones
_MAX_BODY_BYTES: Final = MAX_DATAGRAM_BYTES - _HEAD.size
_NO_SIGNAL: Final = socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT


class DatagramError(ValueError):
    """A datagram that no plugin of ours sent, or one of another version."""


def step_packer(sender: int) -> Callable[..., bytes]:
    """What packs the steps of one sender: called with `seq`, `at_s` and `encode_step`'s values."""
    return partial(_STEP.pack, MAGIC, _STEP_KIND, _STEP.size, sender)


def encode_step(sender: int, seq: int, at_s: float, values: Sequence[float]) -> bytes:
    """Pack one step. `values`: the fields of `Reading` from `running` on; NaN is unknown."""
    return step_packer(sender)(seq, at_s, *values)


def with_totals(step: bytes, totals: Sequence[float]) -> bytes:
    """The same step with newer totals: what was counted since, without a step of one's own."""
    values = _STEP.unpack(step)
    return _STEP.pack(*values[: len(values) - len(totals)], *totals)


def encode_hello(hello: Hello) -> bytes:
    """Pack a hello. Of a list of models that does not fit, the first are sent."""
    body = _body(hello)
    if len(body) > _MAX_BODY_BYTES:
        room = _MAX_BODY_BYTES - len(_body(replace(hello, models=())))
        lengths = accumulate(len(json.dumps(model)) + len(", ") for model in hello.models)
        fitting = sum(length <= room for length in lengths)
        body = _body(replace(hello, models=hello.models[:fitting]))
    return _HEAD.pack(MAGIC, _HELLO, _HEAD.size + len(body)) + body


def _body(hello: Hello) -> bytes:
    return json.dumps(asdict(hello)).encode()


def whole(stream: bytes) -> int:
    """How many bytes of `stream`, from its beginning, are whole datagrams: the rest is to come.

    Raises `DatagramError` when what follows is none.
    """
    end = 0
    while end < len(stream):
        length = _length(stream, end)
        if length is None or length > len(stream) - end:
            break
        end += length
    return end


def _length(stream: bytes, start: int) -> int | None:
    """Of the datagram that begins there; `None`: too little of it has come to say."""
    if not stream.startswith(MAGIC, start):
        begun = stream[start : start + _HEAD.size]
        if MAGIC.startswith(begun):
            return None
        raise DatagramError(f"not a {MAGIC.decode()} datagram: {begun!r}")
    if len(stream) - start < _HEAD.size:
        return None
    length: int = _HEAD.unpack_from(stream, start)[2]
    if not _HEAD.size <= length <= MAX_DATAGRAM_BYTES:
        raise DatagramError(f"of {length} bytes, wanted {_HEAD.size} to {MAX_DATAGRAM_BYTES}")
    return length


def is_heartbeat(datagrams: bytes) -> bool:
    """Do they begin with a hello, as a sender's repeats do, and no step of their own?"""
    return datagrams[: len(MAGIC) + 1] != _STEP_HEAD[: len(MAGIC) + 1]


def decode_all(datagrams: bytes) -> Iterator[Hello | Reading | DatagramError]:
    """Unpack datagrams that lie one behind the other; in the place of a wrong one, its fault."""
    start = 0
    while start < len(datagrams):
        end = len(datagrams)
        try:
            if datagrams.startswith(_STEP_HEAD, start) and end - start >= _STEP.size:
                end = start + _STEP.size
                yield _reading(_STEP.unpack_from(datagrams, start))
            else:
                end = start + (_length(datagrams, start) or end)
                yield decode(datagrams[start:end])
        except DatagramError as error:
            yield error
        start = end


def decode(datagram: bytes) -> Hello | Reading:
    """Unpack one of either kind. Raises `DatagramError`, which says what was wrong."""
    length = _length(datagram, 0)
    if length != len(datagram):
        raise DatagramError(f"{len(datagram)} bytes of a datagram of {length or 'more'}")
    kind = datagram[len(MAGIC)]
    if kind == _STEP_KIND:
        if length != _STEP.size:
            raise DatagramError(f"step of {length} bytes, wanted {_STEP.size}")
        return _reading(_STEP.unpack(datagram))
    if kind == _HELLO:
        return _decode_hello(datagram[_HEAD.size :])
    raise DatagramError(f"unknown kind {kind}")


def _reading(values: tuple[Any, ...]) -> Reading:
    (_, _, _, sender, seq, at_s, running, waiting, kv_usage,
     prompt, generated, preempted, queries, hits) = values  # fmt: skip
    if (
        -math.inf < at_s < math.inf
        and 0.0 <= kv_usage <= 1.0
        and 0.0 <= running < _COUNT_LIMIT
        and 0.0 <= waiting < _COUNT_LIMIT
        and 0.0 <= prompt < _COUNT_LIMIT
        and 0.0 <= generated < _COUNT_LIMIT
        and 0.0 <= preempted < _COUNT_LIMIT
        and 0.0 <= queries < _COUNT_LIMIT
        and 0.0 <= hits < _COUNT_LIMIT
    ):
        return Reading(
            sender, seq, at_s, int(running), int(waiting), kv_usage,
            int(prompt), int(generated), int(preempted), int(queries), int(hits),
        )  # fmt: skip
    return _reading_of_unknowns(sender, seq, at_s, kv_usage, values)


def _reading_of_unknowns(
    sender: int, seq: int, at_s: float, kv_usage: float, values: tuple[Any, ...]
) -> Reading:
    """What does not hold in full: unknown values, or wrong ones."""
    if not math.isfinite(at_s):
        raise DatagramError(f"at_s={at_s}, wanted a finite number of seconds")
    if not (math.isnan(kv_usage) or 0.0 <= kv_usage <= 1.0):
        raise DatagramError(f"kv_usage={kv_usage}, wanted 0..1")
    running, waiting, _, *totals = values[6:]
    return Reading(
        sender,
        seq,
        at_s,
        _count("running", running),
        _count("waiting", waiting),
        None if math.isnan(kv_usage) else kv_usage,
        *(_count("total", total) for total in totals),
    )


def _count(name: str, value: float) -> int | None:
    if math.isnan(value):
        return None
    if not 0 <= value < _COUNT_LIMIT:
        raise DatagramError(f"{name}={value}, wanted a count of 0 or more")
    return int(value)


def _decode_hello(body: bytes) -> Hello:
    known = {field.name for field in fields(Hello)} - {"source"}
    try:
        values = {key: value for key, value in json.loads(body).items() if key in known}
        values["models"] = tuple(values.get("models", ()))
        hello = Hello(**values)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DatagramError(f"hello: {error}") from error
    for field in fields(Hello):
        value = getattr(hello, field.name)
        if not _fits(value, field.type):
            raise DatagramError(f"hello: {field.name}={value!r}, wanted {field.type}")
    for name in ("name", "boot_id"):
        if not 1 <= len(getattr(hello, name)) <= _NAME_LIMIT:
            raise DatagramError(f"hello: {name}, wanted 1 to {_NAME_LIMIT} characters")
    return hello


def _fits(value: object, wanted: object) -> bool:
    if wanted == tuple[str, ...]:
        return isinstance(value, tuple) and all(_fits(item, str) for item in value)
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return 0 <= value < 2**63 and wanted in (int, int | None, float, float | None)
    if isinstance(value, float):
        return wanted in (float, float | None) and math.isfinite(value)
    return (value is None and wanted in (int | None, float | None, str | None)) or (
        isinstance(value, str) and wanted in (str, str | None) and not _SURROGATES.search(value)
    )


class Sender:
    """The sending end. Never raises, never waits.

    What the kernel has no room for, because the listener has not looked for long, and what nobody
    listens to, is dropped and counted.

    Two threads may use it at once. Its descriptor is one and the same for life: a new connection is
    put in the old one's place (`dup2`), so no thread can write to a descriptor that another has
    just closed and a third party got. A datagram of which the kernel takes but a part ends the
    connection: what came behind it would be read as its rest.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.dropped = 0
        self.forbidden = False
        """The last attempt to connect failed for want of permission."""
        self._connected = False
        self._socket: socket.socket | None = None

    def connect(self) -> bool:
        """Find the listener, if it has come (back). Not for the hot path: it looks up a path."""
        if self._connected:
            return True
        try:
            fresh = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError:
            return False
        try:
            fresh.settimeout(0.0)
            fresh.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
            fresh.connect(self.path)
            if self._socket is not None:
                os.dup2(fresh.fileno(), self._socket.fileno(), inheritable=False)
        except OSError as error:
            self.forbidden = isinstance(error, PermissionError)
            fresh.close()
            return False
        if self._socket is None:
            self._socket = fresh
        else:
            fresh.close()
        self._connected = True
        return True

    def send(self, datagrams: bytes) -> bool:
        """Hand over one datagram, or several in a row. False: they are dropped."""
        if self._connected:
            try:
                sent = self._socket.send(datagrams, _NO_SIGNAL)  # type: ignore[union-attr]
            except BlockingIOError:
                pass  # The listener has not looked for long.
            except OSError:
                self._connected = False
            else:
                if sent == len(datagrams):
                    return True
                self._end()
        self.dropped += 1
        return False

    def offer(self, datagrams: bytes) -> bool:
        """Hand over what will be said again anyway, or let it go. False: too much lies unread.

        Behind a listener that was stopped for an hour it would lie a thousand times, and half the
        room is for what is new.
        """
        if self._connected and self._unread_bytes() >= BUFFER_BYTES:
            return False
        self.send(datagrams)
        return True

    def close(self) -> None:
        """Let go of the socket, once no other thread can be sending."""
        self._connected = False
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()

    def _unread_bytes(self) -> int:
        """What the listener has not taken, with the kernel's own overhead."""
        answer = bytearray(4)
        with suppress(OSError):
            fcntl.ioctl(self._socket, termios.TIOCOUTQ, answer)  # type: ignore[arg-type]
        return int.from_bytes(answer, sys.byteorder)

    def _end(self) -> None:
        self._connected = False
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
