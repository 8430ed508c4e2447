"""The events that several commands log, and what they mean."""

from collections.abc import Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    "not_http": "Somebody speaks no HTTP to an operators' port; one line in 10 s.",
    "sighup_ignored": "SIGHUP came to a sidecar, which reads its file at the start only.",
    "log_lines_dropped": "Whoever reads standard error was too slow: so many lines are missing.",
    "systemd_not_told": "systemd could not be told how the process stands: `why`.",
    "sidecar_problem": "A sidecar or an aggregator does not answer, or says something wrong: "
    "`why`.",
    "sidecar_well": "That is over.",
    "watcher_cut_off": "A reader of `?watch` took nothing for 5 s.",
    "discovery_changed": "A source (a file, a name) lists other servers than before.",
    "discovery_problem": "Some of what a source says, or all, is not taken: `why`. What it said "
    "before holds.",
    "discovery_well": "That is over.",
    "background_loop_broken": "A fault of our own: please report it.",
    "message": "A library's own words, with the name of its `logger`.",
}
