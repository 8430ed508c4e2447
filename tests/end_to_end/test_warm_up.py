"""A fresh real vLLM is warmed up by its sidecar before any router may choose it."""

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from demo.processes import running
from ullage_sidecar.core.warmup import WarmUpSettings
from vllm_cpu.serve import CpuServer, Replica

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

KEY = "a-key"
CONFIG = """
node = "n"
socket = "{folder}/readings.sock"
listen = "127.0.0.1:{port}"
warm_up.ramp_s = 1.0
warm_up.zero_until_s = 1.0
warm_up.ramp_until_s = 2.0

[[engine]]
url = "{url}"
api_key_file = "{folder}/key"
"""


class Stand:
    """One vLLM that wants an API key, and the sidecar beside it."""

    def __init__(self, folder: Path, venv: Path, model: Path, ports: tuple[int, int]) -> None:
        self.folder = folder
        self.sidecar = f"http://127.0.0.1:{ports[1]}"
        self._venv, self._model, self._port = venv, model, ports[0]
        (folder / "key").write_text(KEY)
        url = f"http://127.0.0.1:{self._port}"
        config = CONFIG.format(folder=folder, port=ports[1], url=url)
        (folder / "sidecar.toml").write_text(config)

    def server(self, *flags: str) -> CpuServer:
        environment = {"ULLAGE_SOCKET": f"{self.folder}/readings.sock"}
        replica = Replica(
            venv=self._venv,
            model=self._model,
            port=self._port,
            environment=environment,
            flags=("--api-key", KEY, "--enable-log-requests", *flags),
        )
        return CpuServer(replica, self.folder / "vllm.log")

    @contextmanager
    def running_sidecar(self) -> Iterator[None]:
        flags = ["--config", str(self.folder / "sidecar.toml")]
        log = self.folder / "sidecar.log"
        with running("ullage_sidecar", flags, f"{self.sidecar}/healthz", log):
            yield

    async def snapshots(self, until: str, within_s: float) -> list[dict[str, Any]]:
        """Every different (state, score) in turn, looked at every 20 ms, until that state."""
        seen: list[dict[str, Any]] = []
        async with asyncio.timeout(within_s), aiohttp.ClientSession() as http:
            while not seen or seen[-1]["state"] != until:
                async with http.get(f"{self.sidecar}/v1/snapshots") as answer:
                    now = (await answer.json())["replicas"][0]
                if not seen or any(now[k] != seen[-1][k] for k in ("state", "capacity_score")):
                    seen.append(now)
                await asyncio.sleep(0.02)
        return seen

    async def sample(self, url: str, name: str) -> float:
        async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
            lines = (await answer.text()).splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))


@pytest.fixture
def stand(tmp_path: Path, vllm_venv: Path, tiny_model: Path, free_port: Any) -> Stand:
    return Stand(tmp_path, vllm_venv, tiny_model, (free_port(), free_port()))


@pytest.fixture
def until_test_ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def states(snapshots: list[dict[str, Any]]) -> list[str]:
    found: list[str] = []
    for snapshot in snapshots:
        if snapshot["state"] not in found[-1:]:
            found.append(snapshot["state"])
    return found


async def test_it_scores_nothing_until_its_dummies_have_settled_and_then_ramps(
    stand: Stand, until_test_ends: ExitStack
):
    """With the API key that it wants; and once, not again when its sidecar is restarted."""
    with stand.running_sidecar():
        server = until_test_ends.enter_context(stand.server())
        await it_is_warmed_up(stand, server)
    generated = await stand.sample(server.url, "vllm:generation_tokens_total")
    with stand.running_sidecar():
        for _ in range(100):
            seen = await stand.snapshots(until="serving", within_s=1.0)
            assert states(seen) == ["serving"]
            await asyncio.sleep(0.01)
    assert await stand.sample(server.url, "vllm:generation_tokens_total") == generated


async def it_is_warmed_up(stand: Stand, server: CpuServer) -> None:
    seen = await stand.snapshots(until="serving", within_s=60.0)
    assert states(seen)[-3:] == ["warming", "ramping", "serving"]
    assert states(seen)[:-3] in ([], ["starting"])
    assert {s["capacity_score"] for s in seen if s["state"] in ("starting", "warming")} == {0.0}
    assert max(s["capacity_score"] for s in seen if s["state"] == "ramping") <= 0.5
    assert 0.5 < seen[-1]["capacity_score"] <= 1.0
    generated = await stand.sample(server.url, "vllm:generation_tokens_total")
    assert generated >= 13 * WarmUpSettings().generated_tokens
    answered = await stand.sample(
        stand.sidecar, 'ullage_sidecar_warm_up_requests_total{result="answered"'
    )
    log = server.log.read_text(errors="replace")
    ids = {word for word in log.split() if "ullage-warm-up" in word}
    assert len(ids) >= answered >= 1 + 3 * 4


async def test_a_server_of_embeddings_is_warmed_up_by_embeddings(stand: Stand):
    with stand.running_sidecar(), stand.server("--runner", "pooling", "--convert", "embed"):
        seen = await stand.snapshots(until="serving", within_s=60.0)
        assert "ramping" in states(seen)
        assert not any("given up" in snapshot["reason"] for snapshot in seen)
        answered = await stand.sample(
            stand.sidecar, 'ullage_sidecar_warm_up_requests_total{result="answered"'
        )
        assert answered >= 1 + 3 * 4
