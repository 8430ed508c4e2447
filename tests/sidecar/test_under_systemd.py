"""The sidecar as systemd sees it."""

import pytest

from manager import Manager

pytestmark = pytest.mark.slow


async def test_systemd_hears_that_it_serves_that_it_lives_and_that_it_stops(
    sidecar, engine_url, tmp_path
):
    manager = Manager(str(tmp_path / "notify"))
    environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "200000"}
    await sidecar.start("--engine", engine_url, **environment)
    assert await manager.hears("READY=1") == (
        f"READY=1\nSTATUS=snapshots at {sidecar.listen}, plugins at {sidecar.socket}"
    )
    for _ in range(3):
        await manager.hears("WATCHDOG=1")
    assert await sidecar.stop() == 0
    assert (await manager.hears("STOPPING=1")).startswith("STOPPING=1\nEXTEND_TIMEOUT_USEC=")
    manager.close()
