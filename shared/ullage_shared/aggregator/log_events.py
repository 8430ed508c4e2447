"""Every event that the aggregator logs, and what it means to whoever reads the log."""

from collections.abc import Mapping
from typing import Final

EVENTS: Final[Mapping[str, str]] = {
    "listening": "It serves routers at `http`, with so many sidecars.",
    "cannot_listen": "Its port cannot be had, and it ends.",
    "reloaded": "SIGHUP: the file was read again; `changed` names the keys.",
    "reload_refused": "SIGHUP: the file is at fault; nothing has changed.",
    "stopped": "It has ended.",
}
