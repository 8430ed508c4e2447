"""Datagrams from vLLM to the sidecar, over a unix socket: the format and the sending end.

Rule: standard library only, and nothing here may raise or wait inside vLLM's process.

Two kinds of datagram, both beginning with `MAGIC` (format and version) and a kind byte:

* step: the fixed struct `_STEP`, little-endian, every value a double, NaN for unknown;
* hello: the sender's fields as a JSON object.

A sender repeats its hello and its last step every second. So either end may restart at any time,
and a sidecar learns the state of an engine that has long been idle.
"""

import contextlib
import json
import math
import socket
import struct
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Final

from ullage_sidecar.core.reading import Hello, Reading

DEFAULT_SOCKET: Final = "/run/ullage/readings.sock"
MAX_DATAGRAM_BYTES: Final = 16_384

MAGIC: Final = b"ULG1"
_HELLO: Final = 0
_STEP_KIND: Final = 1
_HEAD: Final = struct.Struct("<4sB3x")
_STEP: Final = struct.Struct("<4sB3xQQ9d")


class DatagramError(ValueError):
    """A datagram that no plugin of ours sent, or one of another version."""


def encode_step(sender: int, seq: int, at_s: float, values: Sequence[float]) -> bytes:
    """Pack one step. `values`: the fields of `Reading` from `running` on; NaN is unknown."""
    return _STEP.pack(MAGIC, _STEP_KIND, sender, seq, at_s, *values)


def encode_hello(hello: Hello) -> bytes:
    """Pack a hello."""
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
    known = {field.name for field in fields(Hello)}
    try:
        values = {key: value for key, value in json.loads(body).items() if key in known}
        values["models"] = tuple(values.get("models", ()))
        hello = Hello(**values)
    except (ValueError, TypeError, AttributeError) as error:
        raise DatagramError(f"hello: {error}") from error
    for field in fields(Hello):
        value = getattr(hello, field.name)
        if not _fits(value, field.type):
            raise DatagramError(f"hello: {field.name}={value!r}, wanted {field.type}")
    return hello


def _fits(value: object, wanted: object) -> bool:
    if wanted == tuple[str, ...]:
        return isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    if isinstance(value, bool):
        return False
    if isinstance(value, int):
        return value >= 0 and wanted in (int, int | None, float)
    if isinstance(value, float):
        return wanted is float and math.isfinite(value)
    return (value is None and wanted in (int | None, str | None)) or (
        isinstance(value, str) and wanted in (str, str | None)
    )


class Sender:
    """The sending end. Never raises, never waits: what cannot be handed over is counted."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.dropped = 0
        self._socket: socket.socket | None = None

    def connect(self) -> bool:
        """Find the listener, if it has come (back). Not for the hot path: it looks up a path."""
        if self._socket is not None:
            return True
        fresh = None
        try:
            fresh = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            fresh.settimeout(0.0)
            fresh.connect(self.path)
        except OSError:
            if fresh is not None:
                fresh.close()
            return False
        self._socket = fresh
        return True

    def send(self, datagram: bytes) -> bool:
        """Hand over one datagram, if there is a listener with room. False: it is dropped."""
        listener = self._socket
        if listener is not None:
            try:
                listener.send(datagram)
            except BlockingIOError:
                pass  # The listener is there but behind; the next step says more than this one.
            except OSError:
                self._socket = None
                with contextlib.suppress(OSError):
                    listener.close()
            else:
                return True
        self.dropped += 1
        return False
