"""What its operator has drained, kept in a file, so that a restarted sidecar goes on with it.

The file lies beside the readings' socket, which a reboot empties: so does it end every drain. One
that cannot be read, or written, is said in the log; the sidecar goes on.
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


class Kept:
    """The file, and what stands in it."""

    def __init__(self, path: Path) -> None:
        self._path = path
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
        self._drains = {(row.engine, row.rank): Drain(row.boot_id) for row in rows}
        return self._drains

    def keep(self, drains: Mapping[Key, Drain]) -> str:
        """Keep these from now on. Returns why they cannot be, to be tried again; or nothing."""
        if drains == self._drains and (not drains or self._path.exists()):
            return ""
        rows = [_Drained(name, rank, drain.boot_id) for (name, rank), drain in drains.items()]
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
