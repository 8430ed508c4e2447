"""The log's side of a state: one line for each change of it.

A change of the reason alone is told too, but of one engine's at most one in `SELDOM_S`: a dying
server answers 503 and refuses by turns. What is left then is told when it lasts.
"""

import logging
from collections import defaultdict
from typing import Final

from ullage_shared.log import Seldom, line
from ullage_shared.snapshot import State

_log: Final = logging.getLogger("ullage.sidecar")


class Told:
    """What the log says of each engine."""

    def __init__(self) -> None:
        self._standings: dict[str, tuple[State, str]] = {}
        self._reasons: defaultdict[str, Seldom] = defaultdict(Seldom)

    def tell(self, name: str, state: State, reason: str, now_s: float) -> None:
        """Log how an engine stands, unless that has been said."""
        was = self._standings.get(name)
        if was == (state, reason):
            return
        if was and was[0] is state and not self._reasons[name].allows(now_s):
            return
        self._standings[name] = (state, reason)
        _log.info(line("state", engine=name, was=was[0] if was else "-", now=state, why=reason))
