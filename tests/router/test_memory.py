"""What is free goes back to the system, also what lies between things in use."""

import asyncio

from data_plane import eventually
from ullage_router.memory import give_back_memory, resident_bytes

MB = 1024 * 1024


async def test_free_memory_between_what_is_in_use_goes_back() -> None:
    before = resident_bytes()
    task = asyncio.ensure_future(give_back_memory(every_s=0.05, spare_bytes=16 * MB))
    await asyncio.sleep(0.01)
    pieces = [bytearray(b"x" * 60_000) for _ in range(2000)]
    kept = pieces[::100]
    await asyncio.sleep(0.2)
    assert resident_bytes() > before + 100 * MB  # What is in use stays.
    assert len(kept) == 20
    pieces.clear()
    await eventually(lambda: resident_bytes() < before + 32 * MB)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_router_that_needs_little_is_left_alone() -> None:
    task = asyncio.ensure_future(give_back_memory(every_s=0.01, spare_bytes=1 << 40))
    await asyncio.sleep(0.1)
    assert not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
