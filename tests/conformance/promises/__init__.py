"""The table: groups of promises, in the order in which they are printed."""

from typing import Final

from conformance.promise import Row
from conformance.promises import (
    bodies,
    company,
    connections,
    cut,
    failures,
    http_1_0,
    hygiene,
    leaving,
    limits,
    odd,
    refusals,
    refusing,
    time_limits,
    upgrades,
)

GROUPS: Final[dict[str, tuple[Row, ...]]] = {
    "Connections": connections.ROWS,
    "HTTP/1.0 clients": http_1_0.ROWS,
    "Bodies and targets": bodies.ROWS,
    "Upgrades": upgrades.ROWS,
    "Refused, and seen by no replica": refusals.ROWS,
    "Odd but sound": odd.ROWS,
    "Fields": hygiene.ROWS,
    "Limits of size": limits.ROWS,
    "Limits of time": time_limits.ROWS,
    "Replicas that fail": failures.ROWS,
    "Replicas that refuse": refusing.ROWS,
    "Answers that are cut": cut.ROWS,
    "Clients that leave": leaving.ROWS,
    "Clients side by side": company.ROWS,
}
