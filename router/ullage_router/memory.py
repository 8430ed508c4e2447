"""Memory that is free goes back to the system.

What slow clients leave behind is free, but lies between what is in use, and glibc keeps it: after a
thousand of them, three times what the router needs. Asked to, glibc gives back every free page.
"""

import asyncio
import ctypes
import resource
from contextlib import suppress
from pathlib import Path
from typing import Final

_EVERY_S: Final = 15.0
_SPARE_BYTES: Final = 32 * 1024 * 1024
"""More than that above what the router began with is worth asking for."""
_STATM: Final = Path("/proc/self/statm")


def resident_bytes() -> int:
    """The process's memory (RSS)."""
    return int(_STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()


async def give_back_memory(every_s: float = _EVERY_S, spare_bytes: int = _SPARE_BYTES) -> None:
    """For ever: look, and give back what is free. Without glibc, return at once.

    It takes half a millisecond, or tens of them where there is much; in a thread, meanwhile.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return
    usual_bytes = resident_bytes()
    while True:
        await asyncio.sleep(every_s)
        with suppress(OSError):  # No descriptor is left to look with.
            if resident_bytes() > usual_bytes + spare_bytes:
                await asyncio.to_thread(trim, 0)
