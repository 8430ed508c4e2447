"""Datagrams from vLLM to the sidecar, over a unix socket: the format and the sending end.

Rule: standard library only, and nothing here may raise or wait inside vLLM's process.

Two kinds of datagram, both beginning with `MAGIC` (format and version) and a kind byte:

* step: the fixed struct `_STEP`, little-endian, every value a double, NaN for unknown;
* hello: the sender's fields as a JSON object.

A sender repeats its hello and its last step every second, the latter with its newest totals. So
either end may restart at any time, and a sidecar learns the state of an engine that has long been
idle.
"""

import contextlib
import json
import math
import re
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from itertools import accumulate
from typing import Final

from ullage_sidecar.core.reading import Hello, Reading

DEFAULT_SOCKET: Final = "/run/ullage/readings.sock"
MAX_DATAGRAM_BYTES: Final = 16_384
BACKLOG: Final = 256
"""Datagrams that a sender keeps while its listener is busy: half a second of a fast engine."""

MAGIC: Final = b"ULG1"
_HELLO: Final = 0
_NAME_LIMIT: Final = 1024
_SURROGATES: Final = re.compile("[\ud800-\udfff]")  # half characters: no JSON can carry them
_STEP_KIND: Final = 1
_HEAD: Final = struct.Struct("<4sB3x")
_STEP: Final = struct.Struct("<4sB3xQQ9d")


class DatagramError(ValueError):
    """A datagram that no plugin of ours sent, or one of another version."""


def step_packer(sender: int) -> Callable[..., bytes]:
    """What packs the steps of one sender: called with `seq`, `at_s` and `encode_step`'s values."""
    return partial(_STEP.pack, MAGIC, _STEP_KIND, sender)


def encode_step(sender: int, seq: int, at_s: float, values: Sequence[float]) -> bytes:
    """Pack one step. `values`: the fields of `Reading` from `running` on; NaN is unknown."""
    return step_packer(sender)(seq, at_s, *values)


def with_totals(step: bytes, totals: Sequence[float]) -> bytes:
    """The same step with newer totals: what was counted since, without a step of one's own."""
    values = _STEP.unpack(step)
    return _STEP.pack(*values[: len(values) - len(totals)], *totals)


def encode_hello(hello: Hello) -> bytes:
    """Pack a hello. Of a list of models that does not fit, the first are sent."""
    datagram = _pack_hello(hello)
    if len(datagram) <= MAX_DATAGRAM_BYTES:
        return datagram
    room = MAX_DATAGRAM_BYTES - len(_pack_hello(replace(hello, models=())))
    lengths = accumulate(len(json.dumps(model)) + len(", ") for model in hello.models)
    return _pack_hello(
        replace(hello, models=hello.models[: sum(length <= room for length in lengths)])
    )


def _pack_hello(hello: Hello) -> bytes:
    return _HEAD.pack(MAGIC, _HELLO) + json.dumps(asdict(hello)).encode()


def decode(datagram: bytes) -> Hello | Reading:
    """Unpack either kind. Raises `DatagramError`, which says what was wrong."""
    if len(datagram) < _HEAD.size or datagram[:4] != MAGIC:
        raise DatagramError(f"not a {MAGIC.decode()} datagram: {datagram[:8]!r}")
    if datagram[4] == _STEP_KIND:
        return _decode_step(datagram)
    if datagram[4] == _HELLO:
        return _decode_hello(datagram[_HEAD.size :])
    raise DatagramError(f"unknown kind {datagram[4]}")


def _decode_step(datagram: bytes) -> Reading:
    try:
        _, _, sender, seq, at_s, running, waiting, kv_usage, *totals = _STEP.unpack(datagram)
    except struct.error as error:
        raise DatagramError(f"step of {len(datagram)} bytes, wanted {_STEP.size}") from error
    if not math.isfinite(at_s):
        raise DatagramError(f"at_s={at_s}, wanted a finite number of seconds")
    if not (math.isnan(kv_usage) or 0.0 <= kv_usage <= 1.0):
        raise DatagramError(f"kv_usage={kv_usage}, wanted 0..1")
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
    if not 0 <= value < 2**53:
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
        return 0 <= value < 2**64 and wanted in (int, int | None, float, float | None)
    if isinstance(value, float):
        return wanted in (float, float | None) and math.isfinite(value)
    return (value is None and wanted in (int | None, float | None, str | None)) or (
        isinstance(value, str) and wanted in (str, str | None) and not _SURROGATES.search(value)
    )


class Sender:
    """The sending end. Never raises, never waits.

    The kernel queues few datagrams (`net.unix.max_dgram_qlen`, often 10). What does not fit while
    the listener is busy is kept, `BACKLOG` datagrams at most, and goes before the next one. What
    nobody listens to, and what is pushed out of the backlog, is counted as dropped.

    Two threads may use it at once. The one socket is connected anew, never replaced, so no thread
    can write to a descriptor that another has just closed; the lock is only tried, never awaited.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.dropped = 0
        self.forbidden = False
        """The last attempt to connect failed for want of permission."""
        self._connected = False
        self._socket: socket.socket | None = None
        self._backlog: deque[bytes] = deque(maxlen=BACKLOG)
        self._sending = threading.Lock()

    def connect(self) -> bool:
        """Find the listener, if it has come (back). Not for the hot path: it looks up a path."""
        if self._connected:
            return True
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.settimeout(0.0)
            self._socket.connect(self.path)
        except OSError as error:
            self.forbidden = isinstance(error, PermissionError)
            return False
        self._connected = True
        return True

    def send(self, datagram: bytes) -> bool:
        """Hand over one datagram, behind those that wait, or let it wait. False: it is dropped."""
        if not self._connected:
            self.dropped += 1
            return False
        try:
            if self._backlog:
                self._keep(datagram)
                self._flush()
            else:
                self._socket.send(datagram)  # type: ignore[union-attr]  # connected
        except BlockingIOError:
            self._keep(datagram)
        except OSError:
            self._disconnected()
            return False
        return True

    def offer(self, datagram: bytes) -> bool:
        """Hand over what will be said again anyway, or let it go. False: there was no room.

        Behind a listener that was stopped for a minute it would lie a hundred times.
        """
        try:
            if self._backlog:
                self._flush()
            if self._backlog:
                return False
            self._socket.send(datagram)  # type: ignore[union-attr]  # connected
        except BlockingIOError:
            return False
        except OSError:
            self._disconnected()
        return True

    def close(self) -> None:
        """Let go of the socket, once no other thread can be sending."""
        self._connected = False
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()

    def _disconnected(self) -> None:
        self._connected = False
        self.dropped += len(self._backlog) or 1
        self._backlog.clear()

    def _keep(self, datagram: bytes) -> None:
        self.dropped += len(self._backlog) == BACKLOG
        self._backlog.append(datagram)

    def _flush(self) -> None:
        """Send what waits, as far as there is room. Raises `OSError` when the listener is gone."""
        if not self._sending.acquire(blocking=False):
            return  # The other thread is at it, or the next call will be.
        try:
            while True:
                self._socket.send(self._backlog[0])  # type: ignore[union-attr]  # connected
                self._backlog.popleft()
        except (BlockingIOError, IndexError):
            pass  # No more room, or nothing left: by us, or by the other thread.
        finally:
            self._sending.release()
