"""The aggregator as systemd sees it."""

from pathlib import Path

import pytest

from aggregators import aggregator_process
from manager import Manager
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot

pytestmark = pytest.mark.slow


async def test_systemd_hears_that_it_serves_that_it_lives_and_that_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = Manager(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "200000")
    async with (
        SidecarStandIn(document(snapshot("http://a:1"))) as one,
        aggregator_process("--sidecar", one.url) as agg,
    ):
        assert (await manager.hears("READY=1")).endswith(", 1 sidecars")
        for _ in range(3):
            await manager.hears("WATCHDOG=1")
        agg.process.terminate()
        assert (await manager.hears("STOPPING=1")).startswith("STOPPING=1\nEXTEND_TIMEOUT_USEC=")
    manager.close()
