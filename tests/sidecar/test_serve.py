"""The running sidecar, in this process."""

import asyncio
import contextlib
import gc

from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.serve import serve


async def test_the_collector_goes_through_nothing_that_the_start_has_made(tmp_path, until):
    """Some 50,000 objects took it 50 ms: a change is pushed within 20."""
    config = Config(
        node="n",
        engine=(EngineEntry(name="vllm", url="http://127.0.0.1:1"),),
        socket=str(tmp_path / "readings.sock"),
        listen="127.0.0.1:0",
    )
    running = asyncio.create_task(serve(config))
    try:
        await until(lambda: running.done() or gc.get_freeze_count())
        assert not running.done()
        assert len(gc.get_objects()) < 0.1 * gc.get_freeze_count()
    finally:
        gc.unfreeze()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
