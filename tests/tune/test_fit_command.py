"""`ullage-tune fit` and `record` as people run them."""

import asyncio
import os
import signal
import sys
from random import Random

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from guarded import HEADER, token_file
from recorded_engine import TRUTH, Asked, RecordedEngine, stream, traffic
from ullage_sidecar.recorder import PATH
from ullage_tune.__main__ import main
from ullage_tune.engine_file import engine_of, parse

HELLO = RecordedEngine().hello()


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    file = tmp_path_factory.mktemp("recording") / "steps.ulg"
    file.write_bytes(stream(HELLO, RecordedEngine().run(traffic(Random(1), 300, rate=4.0))))
    return file


def status_of(*argv: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(each) for each in argv])
    return stopped.value.code


def test_the_engine_file_goes_to_standard_output_and_says_where_it_is_from(
    recording, capsys, tmp_path
):
    assert status_of("fit", recording) == 0
    out, err = capsys.readouterr()
    (tmp_path / "engine.toml").write_text(out)
    engine = engine_of(str(tmp_path / "engine.toml"))
    assert engine.steps == pytest.approx(TRUTH, rel=0.01)
    assert (engine.blocks, engine.block_size, engine.max_num_seqs) == (30_001, 16, 64)
    for said in ("steps.ulg, vllm:0: model llama, vLLM 0.32.0", " steps, in ", "at p90"):
        assert said in err
        assert said in out
    assert "per_token_s = 0.00011 ± " in out


def test_what_is_not_told_is_named_with_the_traffic_that_would_tell_it(capsys, tmp_path):
    file, engine = tmp_path / "steps.ulg", RecordedEngine()
    readings = list(engine.run([Asked(1000.0, 16, 900 + 60 * n) for n in range(32)]))
    file.write_bytes(stream(HELLO, readings[1:]))
    assert status_of("fit", file) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "per_token_s: prompts of many lengths" in err
    assert "per_sequence_s: now few, now many requests" in err
    assert "--assume per_token_s=S" in err
    assert status_of("fit", file, "--assume", "per_token_s=1.1e-4") == 0
    out, _ = capsys.readouterr()
    assert "per_token_s = 0.00011 assumed" in out
    assert parse(out).steps == pytest.approx(TRUTH, rel=0.01)


def test_of_a_recording_that_is_cut_off_that_is_said(recording, capsys, tmp_path):
    file = tmp_path / "cut.ulg"
    file.write_bytes(recording.read_bytes()[:-5])
    assert status_of("fit", file) == 0
    said = f"{file}: cut off in the midst of a record, its last 91 bytes are left out"
    assert said in capsys.readouterr().err
    assert status_of("fit", recording) == 0
    assert "cut off" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "status", "fault"),
    [
        (("--server", "b"), 2, "--server b: wanted one of those in the recording: vllm:0"),
        (("--assume", "per_day_s=1"), 2, "wanted one of base_s, per_token_s"),
        (("--assume", "base_s"), 2, "wanted base_s=S, in seconds"),
        (("--assume", "base_s=-1"), 2, "wanted base_s=S, in seconds"),
        (("--blocks", "0"), 2, "wanted a whole number > 0"),
        (("--blocks", "1"), 1, "blocks = 1: wanted 2 or more"),
    ],
)
def test_wrong_flags_are_refused_by_name(recording, capsys, flags, status, fault):
    assert status_of("fit", recording, *flags) == status
    assert fault in capsys.readouterr().err


async def record(*flags: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "ullage_tune", "record", *flags,
        stderr=asyncio.subprocess.PIPE, env=os.environ,
    )  # fmt: skip


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, str]:
    _, err = await asyncio.wait_for(process.communicate(), 30.0)
    return process.returncode, err.decode()


class Sidecar:
    """Hands out a recording, in two parts, and then goes on or not."""

    def __init__(self, said: bytes, *, lasting: bool = False) -> None:
        self.said = said
        self.lasting = lasting
        self.asked: list[str] = []
        self.authorizations: list[str | None] = []
        self.given = asyncio.Event()

    async def steps(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.query_string)
        self.authorizations.append(request.headers.get("Authorization"))
        answer = web.StreamResponse()
        await answer.prepare(request)
        for part in (self.said[:1000], self.said[1000:]):
            await answer.write(part)
        self.given.set()
        if self.lasting:
            await asyncio.sleep(60.0)
        return answer


async def at(sidecar: Sidecar) -> TestServer:
    app = web.Application()
    app.router.add_get(PATH, sidecar.steps)
    server = TestServer(app)
    await server.start_server()
    return server


async def test_what_a_sidecar_hands_out_is_in_the_file_and_summed_up(recording, tmp_path):
    said, file = recording.read_bytes(), tmp_path / "new.ulg"
    server = await at(sidecar := Sidecar(said))
    process = await record("--sidecar", str(server.make_url("")), "--seconds", "7", str(file))
    status, err = await ended(process)
    await server.close()
    assert (status, sidecar.asked) == (0, ["seconds=7"])
    assert file.read_bytes() == said
    assert err.endswith(" steps, 0 lost\n")
    assert err.startswith("vllm:0: ")


async def test_a_sidecar_that_wants_a_token_is_shown_it(recording, tmp_path):
    server = await at(sidecar := Sidecar(recording.read_bytes()))
    words = ["--sidecar", str(server.make_url("")), "--seconds", "7"]
    process = await record(*words, "--token-file", token_file(tmp_path), str(tmp_path / "new.ulg"))
    assert (await ended(process))[0] == 0
    assert sidecar.authorizations == [HEADER]
    process = await record(*words, "--token-file", f"{tmp_path}/none", str(tmp_path / "two.ulg"))
    status, err = await ended(process)
    await server.close()
    assert (status, "--token-file = " in err) == (2, True)


async def test_ctrl_c_keeps_what_has_come(recording, tmp_path):
    said, file = recording.read_bytes(), tmp_path / "new.ulg"
    server = await at(sidecar := Sidecar(said, lasting=True))
    process = await record("--sidecar", str(server.make_url("")), str(file))
    await sidecar.given.wait()
    async with asyncio.timeout(10.0):
        while file.stat().st_size < len(said):  # noqa: ASYNC110 (another process writes it)
            await asyncio.sleep(0.01)
    process.send_signal(signal.SIGINT)
    status, err = await ended(process)
    await server.close()
    assert status == 130
    assert file.read_bytes() == said
    assert "vllm:0: " in err


async def test_it_holds_no_more_than_was_asked_for(tmp_path):
    said, file = stream(HELLO, []) * 10_000, tmp_path / "new.ulg"
    server = await at(Sidecar(said, lasting=True))
    process = await record("--sidecar", str(server.make_url("")), "--most-mb", "1", str(file))
    status, err = await ended(process)
    await server.close()
    assert (status, file.stat().st_size) == (0, 1_000_000)
    assert "1 MB are there" in err


def test_a_file_that_is_there_is_not_written_over(recording, capsys):
    said = recording.read_bytes()
    assert status_of("record", recording) == 2
    assert "wanted a new file" in capsys.readouterr().err
    assert recording.read_bytes() == said
    assert status_of("record", "--seconds", "3601", "new.ulg") == 2
    assert "wanted 3600 or less" in capsys.readouterr().err


async def test_where_nobody_answers_no_file_is_left(tmp_path, unused_tcp_port):
    file = tmp_path / "new.ulg"
    process = await record("--sidecar", f"http://127.0.0.1:{unused_tcp_port}", str(file))
    status, err = await ended(process)
    assert status == 1
    assert f"http://127.0.0.1:{unused_tcp_port}/v1/steps" in err
    assert not file.exists()
