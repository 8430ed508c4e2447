"""`ullage-aggregator` as operators run it."""

import asyncio
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from aggregators import aggregator_process
from data_plane import eventually
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot

pytestmark = pytest.mark.slow


async def test_it_serves_takes_a_reload_and_a_bad_one_not_and_ends_when_told(
    tmp_path: Path,
) -> None:
    file = tmp_path / "aggregator.toml"
    async with (
        SidecarStandIn(document(snapshot("http://a:1"))) as one,
        SidecarStandIn(document(snapshot("http://b:1"))) as other,
        aiohttp.ClientSession() as session,
    ):
        write(file, f'sidecars = ["{one.url}"]')
        async with aggregator_process("--config", str(file), "--node", "agg") as agg:

            async def urls() -> list[str]:
                async with session.get(f"{agg.url}/v1/snapshots") as answer:
                    return [replica["url"] for replica in (await answer.json())["replicas"]]

            assert await urls() == ["http://a:1"]
            write(file, f'sidecars = ["{one.url}", "{other.url}"]')
            agg.process.send_signal(signal.SIGHUP)
            await eventually(lambda: any("reloaded changed=sidecars" in said for said in agg.log))
            async with asyncio.timeout(5.0):
                while True:
                    if await urls() == ["http://a:1", "http://b:1"]:
                        break
            write(file, "sidecars = []")
            agg.process.send_signal(signal.SIGHUP)
            await eventually(lambda: any("reload_refused" in said for said in agg.log))
            assert len(await urls()) == 2
            agg.process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(agg.process.wait(), 5.0) == 0
            await eventually(lambda: "stopped" in agg.log[-1])


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "sidecars = []: wanted at least one"),
        (["--sidecar", "x"], 2, "sidecars = 'x': wanted"),
        (["--sidecar", "http://127.0.0.1:1", "--listen", "192.0.2.1:1"], 1, "cannot_listen"),
    ],
)
async def test_what_keeps_it_from_serving_is_one_line_and_a_status(
    words: list[str], status: int, said: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ullage_shared.aggregator", *words),
        stderr=asyncio.subprocess.PIPE,
    )
    _, told = await asyncio.wait_for(process.communicate(), 20.0)
    assert process.returncode == status
    lines = [line for line in told.decode().splitlines() if "sidecar_problem" not in line]
    assert len(lines) == 1
    assert said in lines[0]
