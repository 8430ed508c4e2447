"""The events that both commands log, and what they mean."""

from collections.abc import Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    "not_http": "Somebody speaks no HTTP to an operators' port; one line in 10 s.",
    "sighup_ignored": "SIGHUP came to a sidecar, which reads its file at the start only.",
    "log_lines_dropped": "Whoever reads standard error was too slow: so many lines are missing.",
    "systemd_not_told": "systemd could not be told how the process stands: `why`.",
    "message": "A library's own words, with the name of its `logger`.",
}
