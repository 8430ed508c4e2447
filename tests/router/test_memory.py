"""What is free goes back to the system, also what lies between things in use."""

import asyncio
import subprocess
import sys

from ullage_router.memory import give_back_memory

SCRIPT = """
import asyncio
from ullage_router.memory import give_back_memory, resident_bytes

async def main():
    task = asyncio.create_task(give_back_memory(every_s=0.05, spare_bytes=16 << 20))
    await asyncio.sleep(0)
    began = resident_bytes()
    pieces = [bytearray(b"x" * 60_000) for _ in range(2000)]
    await asyncio.sleep(0.2)
    full = resident_bytes()
    kept = pieces[::100]
    pieces.clear()
    for _ in range(100):
        await asyncio.sleep(0.05)
        if resident_bytes() < began + (32 << 20):
            break
    print((full - began) >> 20, (resident_bytes() - began) >> 20, len(kept))

asyncio.run(main())
"""


def test_free_memory_between_what_is_in_use_goes_back() -> None:
    """In a process of its own: what others have left in this one would blur it."""
    said = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=30
    )
    full_mb, left_mb, kept = map(int, said.stdout.split())
    assert full_mb > 100  # What is in use stays.
    assert (left_mb < 32, kept) == (True, 20)


async def test_a_router_that_needs_little_is_left_alone() -> None:
    task = asyncio.ensure_future(give_back_memory(every_s=0.01, spare_bytes=1 << 40))
    await asyncio.sleep(0.1)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
