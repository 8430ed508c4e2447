"""What reached no engine: counted by kind, and told in the log now and then, with what to do."""

import logging
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from ullage_shared.log import Seldom, line
from ullage_sidecar.channel import DatagramError
from ullage_sidecar.core.reading import Hello

_log: Final = logging.getLogger("ullage.sidecar")


@dataclass(slots=True)
class Strays:
    """The counts of one node."""

    malformed: int = 0
    unmatched: int = 0
    """Hellos of a name that no `[[engine]]` has."""
    rival: int = 0
    """Hellos of a second server that goes by the name of a first."""
    early: int = 0
    """Readings of a sender that has not said hello yet."""
    _seldom: defaultdict[str, Seldom] = field(default_factory=lambda: defaultdict(Seldom))

    def refuse(self, error: DatagramError, now_s: float) -> None:
        """Take note of what is no datagram of ours."""
        self.malformed += 1
        if self._seldom["malformed"].allows(now_s):
            kept_back = self._seldom["malformed"].kept_back
            _log.warning(line("malformed", why=error, total=self.malformed, kept_back=kept_back))

    def turn_away(self, hello: Hello, configured: Iterable[str], now_s: float) -> None:
        """Take note of a server that the configuration does not know."""
        self.unmatched += 1
        if self._seldom["unmatched"].allows(now_s):
            _log.warning(
                line(
                    "unmatched",
                    engine=hello.name,
                    pid=hello.pid,
                    configured=",".join(configured),
                    fix="set ULLAGE_ENGINE of that vLLM to a configured name, or add an [[engine]]",
                    kept_back=self._seldom["unmatched"].kept_back,
                )
            )

    def name_rivals(self, heard: Hello, ignored: Hello, now_s: float) -> None:
        """Take note of a former incarnation that still speaks: it is another server."""
        self.rival += 1
        if self._seldom["rival"].allows(now_s):
            _log.warning(
                line(
                    "two_servers_of_one_name",
                    engine=heard.name,
                    heard_pid=heard.pid,
                    ignored_pid=ignored.pid,
                    fix="give each vLLM of this node its own ULLAGE_ENGINE and [[engine]]",
                    kept_back=self._seldom["rival"].kept_back,
                )
            )
