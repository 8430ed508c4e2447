"""`ullage-tune replay` as people run it, against a real server."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ullage_tune.__main__ import main

EVENTS = (
    '{"choices":[{"text":"a"}]}',
    '{"choices":[],"usage":{"prompt_tokens":50,"completion_tokens":1,'
    '"prompt_tokens_details":{"cached_tokens":10}}}',
    "[DONE]",
)


class Router:
    """Answers `answered` requests at once, and the others after a minute."""

    def __init__(self) -> None:
        self.url = ""
        self.answered = 1_000_000
        self.status = 200
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.silent = asyncio.Event()
        """Set once it leaves a third request waiting."""

    async def complete(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("authorization"))
        if len(self.bodies) == self.answered + 3:
            self.silent.set()
        if len(self.bodies) > self.answered:
            await asyncio.sleep(60.0)
        if self.status != 200:
            return web.json_response({"error": {"code": "no_capacity"}}, status=self.status)
        answer = web.StreamResponse(headers={"x-ullage-replica": "gpu-01/vllm"})
        await answer.prepare(request)
        for event in EVENTS:
            await answer.write(f"data: {event}\n\n".encode())
        return answer

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "llama"}]})


@pytest.fixture
async def router() -> AsyncIterator[Router]:
    router, app = Router(), web.Application()
    app.router.add_post("/v1/completions", router.complete)
    app.router.add_get("/v1/models", router.models)
    async with TestServer(app) as server:
        router.url = str(server.make_url(""))
        yield router


async def start(*flags: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ullage_tune", "replay", *flags),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment},
    )


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str, str]:
    """Its exit status, and what it said on either stream."""
    out, err = await asyncio.wait_for(process.communicate(), 30.0)
    return process.returncode, out.decode(), err.decode()


def fields(table: str) -> dict[str, str]:
    """The first row, by column."""
    head, _, row = [line for line in table.splitlines() if line.startswith("|")][:3]
    names, values = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (head, row))
    return dict(zip(names, values, strict=True))


@pytest.mark.slow
async def test_a_table_says_how_it_went_and_a_file_says_all(router: Router, tmp_path: Path) -> None:
    flags = ("--workload", "short", "--limit", "20", "--rate", "200", "--form", "tokens")
    file = tmp_path / "fates.json"
    process = await start("--url", router.url, *flags, "--json", str(file), OPENAI_API_KEY="k")
    status, out, err = await ended(process)
    assert (status, err) == (0, "")
    row = fields(out)
    assert (row["prefix hits"], row["refused"], row["failed"]) == ("20.0%", "0", "0")
    assert "by replica: gpu-01/vllm 20" in out
    fates = json.loads(file.read_text())
    assert len(fates) == 20
    assert fates[0]["replica"] == "gpu-01/vllm"
    assert {body["model"] for body in router.bodies} == {"llama"}
    assert set(router.keys) == {"Bearer k"}


@pytest.mark.slow
async def test_refusals_are_shown_and_are_the_exit_status(router: Router) -> None:
    router.status = 503
    flags = ("--workload", "short", "--limit", "5", "--rate", "200", "--model", "m")
    status, out, _ = await ended(await start("--url", router.url, *flags))
    assert status == 1
    assert fields(out)["refused"] == "5"
    assert "5 × status 503: no_capacity" in out


@pytest.mark.slow
async def test_ctrl_c_shows_what_there_is(router: Router) -> None:
    router.answered = 3
    flags = ("--workload", "short", "--limit", "50", "--rate", "20", "--model", "m")
    process = await start("--url", router.url, *flags)
    await asyncio.wait_for(router.silent.wait(), 30.0)
    process.send_signal(signal.SIGINT)
    status, out, err = await ended(process)
    assert (status, err) == (130, "")
    assert "47 had not ended, or not begun, and are not counted" in out
    assert fields(out)["failed"] == "0"


@pytest.mark.parametrize(
    ("flags", "status", "says"),
    [
        (("--workload", "shrot"), 2, "--workload shrot: no such file, nor one of short, long"),
        (("--workload", __file__), 2, "test_replay_command.py"),
        (("--workload", "short", "--rate", "0"), 2, "'0': wanted a number > 0"),
        (("--workload", "short", "--limit", "0"), 2, "'0': wanted a whole number > 0"),
        (("--workload", "short", "--json", "/no/where"), 2, "--json /no/where: no such folder"),
        (("--workload", "short", "--url", "nonsense"), 2, "--url: 'nonsense': wanted http://host:"),
        (("--workload", "short", "--form", "x"), 2, "'x': wanted one of tokens, text, chat"),
        (("--workload", "short", "--json", "/"), 2, "--json /: a folder; wanted a file"),
        (("--workload", "short"), 1, "http://127.0.0.1:9/v1/models: "),
    ],
)
def test_what_cannot_be_is_refused_in_a_line(
    flags: tuple[str, ...], status: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", "--url", "http://127.0.0.1:9", *flags])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (status, "")
    assert says in err
