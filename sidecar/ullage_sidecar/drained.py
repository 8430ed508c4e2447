"""What its operator has drained, kept in a file, so that a restarted sidecar goes on with it.

The file lies beside the readings' socket, which a reboot empties: so does it end every drain. One
that cannot be read, or written, is said in the log; the sidecar goes on. What a former version
wrote is read: it tells less of the incarnation that is meant.

Rule: no instant crosses a start of the machine. One that was kept before it, or whose machine is
not known, is forgotten; the names are not.
"""

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ullage_shared.log import line
from ullage_sidecar.core.engine import Drain
from ullage_sidecar.node import Key

_log: Final = logging.getLogger("ullage.sidecar")


class _Drained(msgspec.Struct, frozen=True):
    engine: str
    rank: int
    boot_id: str | None
    alias: str | None = None
    heard_s: float | None = None
    machine: str = ""


class Kept:
    """The file, and what stands in it.

    `machine` names this start of the machine. Empty: it has no name.
    """

    def __init__(self, path: Path, machine: str) -> None:
        self._path = path
        self._machine = machine
        self._drains: Mapping[Key, Drain] = {}
        self._fault = ""

    def read(self) -> Mapping[Key, Drain]:
        """What was kept; nothing, if there is no file."""
        try:
            rows = msgspec.json.decode(self._path.read_bytes(), type=list[_Drained])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            _log.error(line("drains_lost", file=self._path, why=error, fix="drain again"))
            return {}
        self._drains = {(row.engine, row.rank): self._drain(row) for row in rows}
        return self._drains

    def _drain(self, row: _Drained) -> Drain:
        ours = self._machine and row.machine == self._machine
        return Drain(row.boot_id, row.alias, row.heard_s if ours else None)

    def keep(self, drains: Mapping[Key, Drain]) -> str:
        """Keep these from now on. Returns why they cannot be, to be tried again; or nothing."""
        if drains == self._drains and (not drains or self._path.exists()):
            return ""
        rows = [
            _Drained(engine, rank, drain.boot_id, drain.alias, drain.heard_s, self._machine)
            for (engine, rank), drain in drains.items()
        ]
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            if rows:
                new.write_bytes(msgspec.json.encode(rows))
                new.replace(self._path)
            else:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()
            fault = error.strerror or str(error)
            if fault != self._fault:
                _log.error(line("drains_not_kept", file=self._path, why=fault))
            self._fault = fault
        else:
            self._drains, self._fault = drains, ""
        return self._fault
