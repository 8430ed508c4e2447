"""`ullage-sidecar check`: all that is wrong, what would be in force, and who answers."""

import asyncio
import tomllib

import pytest

from fake_vllm import FakeVllm
from ullage_sidecar.__main__ import main

ENGINE = "http://gpu-01:8000"


@pytest.fixture
def file(tmp_path):
    return tmp_path / "sidecar.toml"


def test_a_file_in_order_says_what_would_be_in_force(file, capsys):
    file.write_text(f"[[engine]]\nurl = '{ENGINE}'\n[window]\nspan_s = 3")
    assert main(["check", str(file), "--node", "n"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{file} is in order.\n  routers    0.0.0.0:9400\n")
    assert f"  engines    vllm at {ENGINE}\n" in said
    assert "  window.span_s = 3.0   (default: 5.0)\n" in said


def test_everything_that_is_wrong_is_said_and_the_status_is_2(file, tmp_path, capsys):
    file.write_text("[score]\nfree_weight = 1\n[[engine]]\nurl = 'x'\n[[engine]]\nurl = 'y'")
    assert main(["check", str(file), "--listen", "none"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split()[2] for line in err.splitlines()] == [
        "score.free_weight", "listen", "engine[0].url", "engine[1].name", "engine[1].url",
    ]  # fmt: skip


def test_files_that_are_read_later_are_read_now(file, tmp_path, capsys):
    text = f"[health]\nca = '{tmp_path}/no'\n[[engine]]\nurl = '{ENGINE}'\napi_key_file = "
    file.write_text(f"{text}'{tmp_path}/key'")
    assert main(["check", str(file)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in told] == ["health.ca", "engine[0].api_key_file"]


@pytest.mark.parametrize("flags", [(), ("--engine", f"a={ENGINE}", "--node", "n")])
def test_what_is_printed_is_a_file_that_is_in_order(flags, file, capsys):
    assert main(["check", "--print", *flags]) == 0
    file.write_text(capsys.readouterr().out)
    (engine,) = tomllib.loads(file.read_text())["engine"]
    assert engine == {"url": ENGINE} | ({"name": "a"} if flags else {})
    assert main(["check", "--config", str(file)]) == 0


def test_nobody_to_look_after_is_wrong(capsys):
    assert main(["check"]) == 2
    assert "wanted at least one [[engine]]" in capsys.readouterr().err


async def test_each_engine_is_asked_once(capsys):
    server = FakeVllm()
    await server.start()
    words = ["check", "--connect", "--engine", f"a={server.url}"]
    try:
        assert await asyncio.to_thread(main, words) == 0
    finally:
        await server.stop()
    assert f"engine a at {server.url}  answers: /health says 200" in capsys.readouterr().out
    assert await asyncio.to_thread(main, words) == 1
    assert f"engine a at {server.url}  FAILS: Connection refused" in capsys.readouterr().out
