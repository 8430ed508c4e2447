"""Metrics as text, without holding up the requests that the same event loop serves.

Thousands of series take tens of milliseconds to write. So they are written in pieces, and between
two the loop turns to whatever else there is.
"""

import asyncio
from collections.abc import Iterable
from typing import Final

from prometheus_client import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

_PIECE: Final = 128
"""Series written in one go."""


class _Only(Collector):
    """A registry of one family."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> Iterable[Metric]:
        """That one."""
        return (self._family,)


async def exposition(families: Iterable[Metric]) -> bytes:
    """Prometheus' text form of all families."""
    written = bytearray()
    for family in families:
        samples = family.samples
        for start in range(0, max(1, len(samples)), _PIECE):
            family.samples = samples[start : start + _PIECE]
            text = generate_latest(_Only(family))
            written += text.split(b"\n", 2)[2] if start else text  # Type and help are said once.
            await asyncio.sleep(0.0)
    return bytes(written)
