"""A recording: what plugins said to their sidecar, byte for byte (`GET /v1/steps`).

The file is the plugin's own channel (`ullage_sidecar.channel`): datagrams, each with its format's
version and its length, one behind the other. Each sender says who it is at least every second, and
its steps are numbered. So a recording may begin and end anywhere, lose what it likes, and say so;
and two of them joined by `cat` are one. A datagram that is cut off at the end is left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ullage_sidecar.channel import DatagramError, decode_all, whole
from ullage_sidecar.core.reading import Hello, Reading


class RecordingError(Exception):
    """The user's fault: no recording, or not of what was asked for. The message says which."""


class Key(NamedTuple):
    """An engine of one node."""

    server: str
    rank: int

    def __str__(self) -> str:
        return f"{self.server}:{self.rank}"


@dataclass(slots=True)
class Said:
    """What was said of one engine."""

    hello: Hello
    """The last one."""
    senders: dict[int, list[Reading]] = field(default_factory=dict)
    """Steps of each sender, in order, repeats left out. A server that starts anew has others."""
    boots: dict[str, set[int]] = field(default_factory=dict)
    """The senders of each start of the server."""

    @property
    def steps(self) -> int:
        """All there are."""
        return sum(map(len, self.senders.values()))

    @property
    def shared(self) -> bool:
        """Did several API processes speak for it at a time? Then none knows all of a step."""
        return any(
            sum(bool(self.senders.get(sender)) for sender in senders) > 1
            for senders in self.boots.values()
        )


class Recording(NamedTuple):
    """A file."""

    engines: Mapping[Key, Said]
    """At least one."""
    cut_bytes: int
    """Of a datagram that is cut off at the end: it is left out."""


def read(path: Path) -> Recording:
    """What the file says of each engine. Raises `RecordingError`."""
    try:
        stream = path.read_bytes()
    except OSError as error:
        raise RecordingError(f"{path}: {error.strerror}") from None
    try:
        engines, cut_bytes = heard(stream), len(stream) - whole(stream)
    except DatagramError as error:
        raise RecordingError(f"{path}: {error}; wanted a recording of this version") from None
    if not engines:
        raise RecordingError(f"{path}: no plugin says in it who it is, as each does every second")
    return Recording(engines, cut_bytes)


def cut_off(recording: Recording) -> str:
    """That its end is missing, in words."""
    return (
        f"cut off in the midst of a record, its last {recording.cut_bytes} bytes are left out; "
        "what is behind them is not known"
    )


def heard(stream: bytes) -> Mapping[Key, Said]:
    """The same, of bytes. Raises `DatagramError`."""
    hellos: list[Hello] = []
    steps: dict[int, list[Reading]] = {}
    for said in decode_all(stream[: whole(stream)]):
        if isinstance(said, Hello):
            hellos.append(said)
        elif isinstance(said, Reading):
            known = steps.setdefault(said.sender, [])
            if not known or said.seq > known[-1].seq:
                known.append(said)
        else:
            raise said
    return _by_engine(hellos, steps)


def _by_engine(hellos: Iterable[Hello], steps: dict[int, list[Reading]]) -> dict[Key, Said]:
    engines: dict[Key, Said] = {}
    for hello in hellos:
        key = Key(hello.name, hello.engine_index)
        said = engines.setdefault(key, Said(hello))
        said.hello = hello
        said.senders[hello.sender] = steps.get(hello.sender, [])
        said.boots.setdefault(hello.boot_id, set()).add(hello.sender)
    return engines


def chosen(engines: Mapping[Key, Said], wanted: str | None) -> tuple[Key, Said]:
    """The engine that `NAME` or `NAME:RANK` means, or the only one. Raises `RecordingError`."""
    there = ", ".join(map(str, sorted(engines)))
    keys = [key for key in engines if wanted in (None, key.server, str(key))]
    if len(keys) != 1:
        asked = "several engines" if wanted is None else f"--server {wanted}"
        raise RecordingError(f"{asked}: wanted one of those in the recording: {there}")
    key = keys[0]
    if engines[key].shared:
        why = "several API processes speak for it, and none knows all of a step"
        raise RecordingError(f"{key}: {why}; wanted a server with --api-server-count 1")
    return key, engines[key]
