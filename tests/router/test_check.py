"""`ullage-router check`: all that is wrong, what would be in force, and who answers."""

import asyncio
import json
import re
import tomllib
from pathlib import Path

import pytest

from certificates import Authority
from guarded import TOKEN, issued, token_file
from scripted_backend import Backend, answering, response
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.__main__ import main
from ullage_shared import check

SIDECAR = "http://gpu-01:9400"
WELL, ILL = response(b""), response(b"", status=503)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "router.toml"


def test_a_file_in_order_says_what_would_be_in_force(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(f"sidecars = ['{SIDECAR}']\n[choose]\nfloor = 0.2")
    assert main(["check", str(file), "--listen", "127.0.0.1:1"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{file} is in order.\n  clients    127.0.0.1:1, without TLS\n")
    assert f"  sidecars   {SIDECAR}\n" in said
    assert said.endswith("Not as by default:\n  choose.floor = 0.2   (default: 0.15)\n")


def test_everything_that_is_wrong_is_said_and_the_status_is_2(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text("listen = 5\nworkers = 0\n[choose]\nflor = 0.2\n[queue]\nmax_wait_s = 9")
    assert main(["check", str(file)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sorted(line.split()[2] for line in err.splitlines()) == [
        "choose.flor:",
        "listen",
        "queue.max_wait_s",
        "workers",
    ]
    assert "did you mean choose.floor?" in err


def test_certificates_are_read_and_all_that_is_wrong_with_them_is_said(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls = Authority().issue(tmp_path / "issued")
    head = f"sidecars = ['{SIDECAR}']\n[tls]\ncertificate = '{tls.certificate}'\n"
    file.write_text(f"{head}key = '{tls.key}'")
    assert main(["check", str(file)]) == 0
    assert "0.0.0.0:8080, TLS\n" in capsys.readouterr().out
    file.write_text(f"{head}key = '{tls.certificate}'\nca = '{tmp_path / 'none'}'")
    assert main(["check", str(file)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in told] == ["tls.ca", "tls.key"]


@pytest.mark.parametrize("flags", [(), ("--sidecar", SIDECAR, "--workers", "3")])
def test_what_is_printed_is_a_file_that_is_in_order(
    flags: tuple[str, ...], file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--print", *flags]) == 0
    file.write_text(capsys.readouterr().out)
    read = tomllib.loads(file.read_text())
    assert read["sidecars"][0] == SIDECAR
    assert read.get("workers") == (3 if flags else None)
    assert main(["check", str(file)]) == 0


@pytest.mark.parametrize(
    ("listen", "admin", "status"),
    [
        ("127.0.0.1:80", "127.0.0.1:80", 2),
        ("0.0.0.0:80", "127.0.0.1:80", 2),
        ("[::1]:80", "[::]:80", 2),
        ("0.0.0.0:80", "[::1]:80", 0),
        ("127.0.0.1:80", "127.0.0.2:80", 0),
        ("127.0.0.1:80", "127.0.0.1:81", 0),
        ("127.0.0.1:0", "127.0.0.1:0", 0),
    ],
)
def test_clients_and_operators_cannot_come_to_one_address(
    listen: str, admin: str, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--sidecar", SIDECAR, "--listen", listen, "--admin", admin]
    assert main(["check", *words]) == status
    wanted = f"admin = '{admin}': wanted another port than listen has (command line)"
    assert (wanted in capsys.readouterr().err) == (status == 2)


def test_without_file_and_flags_there_is_nothing_to_be_in_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["check"]) == 2
    assert "at least one must be named" in capsys.readouterr().err


def test_two_files_are_one_too_many(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["check", "a", "--config", "b"])
    assert ended.value.code == 2


async def test_everybody_is_asked_once_and_those_that_sidecars_publish_too(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with (
        Backend(answering(WELL)) as published,
        Backend(answering(WELL)) as listed,
        SidecarStandIn(document(snapshot(published.url, 0.9))) as sidecar,
    ):
        words = ["check", "--connect", "--sidecar", sidecar.url, "--replica", listed.url]
        assert await asyncio.to_thread(main, words) == 0
        assert sidecar.looks == 1
        asked = [*published.requests, *listed.requests]
    assert [request.target for request in asked] == [b"/health"] * 2
    said = capsys.readouterr().out
    assert f"sidecar {sidecar.url}  answers: " in said
    assert " is serving\n" in said
    for url in (published.url, listed.url):
        assert f"replica {url}  answers: /health says 200\n" in said


async def test_sources_are_looked_at_and_whom_they_name_is_asked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, none = tmp_path / "s.json", tmp_path / "none.yml"
    async with SidecarStandIn(document()) as sidecar:
        file.write_text(json.dumps([{"targets": [sidecar.url]}]))
        words = ["check", "--connect", "--sidecar", f"file:{file}", "--replica", f"file:{none}"]
        assert await asyncio.to_thread(main, words) == 1
        assert sidecar.looks == 1
    said = capsys.readouterr().out
    assert re.search(rf"^file:{file} +answers: 1 sidecars$", said, re.M)
    assert f"FAILS: {none}: no such file\n" in said


async def test_who_fails_is_named_with_the_reason_and_the_status_is_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "WITHIN_S", 0.2)
    async with (
        Backend(answering(ILL)) as ill,
        SidecarStandIn(document()) as silent,
        SidecarStandIn(b"{}") as odd,
        SidecarStandIn(document()) as gone,
    ):
        silent.hangs = True
        await gone.stop()
        sidecars = [word for each in (silent, odd, gone) for word in ("--sidecar", each.url)]
        words = ["check", "--print", "--connect", *sidecars, "--replica", ill.url]
        assert await asyncio.to_thread(main, words) == 1
    said = capsys.readouterr().out
    assert tomllib.loads(said)["replicas"] == [ill.url]
    told = [line for line in said.splitlines() if line.startswith(("# sidecar", "# replica h"))]
    assert [line.partition("FAILS: ")[2] for line in told] == [
        "nothing within 0.2 s",
        "snapshot document: Object missing required field `schema`",
        "Connection refused",
        "/health says 503",
    ]


async def test_what_a_sidecar_says_stays_in_its_line_and_shows_no_password(
    capsys: pytest.CaptureFixture[str],
) -> None:
    evil = 'n/\x1b[2J\nadmin = "0.0.0.0:9401"\n#'
    url = "http://me:secret@127.0.0.1:1"
    async with SidecarStandIn(document(snapshot(url, 0.9, id=evil))) as sidecar:
        words = ["check", "--print", "--sidecar", sidecar.url]
        await asyncio.to_thread(main, words)
        file = tomllib.loads(capsys.readouterr().out)
        await asyncio.to_thread(main, [*words, "--connect"])
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "secret" not in said
    assert tomllib.loads(said) == file


def test_tokens_and_certificates_for_sidecars_are_read_and_no_secret_is_said(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls, token = issued(Authority(), tmp_path / "issued"), token_file(tmp_path)
    text = (
        f"sidecars = ['{SIDECAR}']\n[access]\nsidecar_token = '%s'\n[tls]\n"
        "client_certificate = '%s'\nclient_key = '%s'\n"
    )
    file.write_text(text % (token, tls.certificate, tls.key))
    for flags in ((), ("--print",)):
        assert main(["check", str(file), *flags]) == 0
        assert TOKEN not in "".join(capsys.readouterr())
    two = token_file(tmp_path, TOKEN, TOKEN, name="two")
    file.write_text(text % (two, "", tls.key))
    assert main(["check", str(file)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in told] == ["tls.client_key", "access.sidecar_token"]
    assert "wanted one line, not 2" in told[1]
    file.write_text(text % (token, tls.certificate, tls.certificate))
    assert main(["check", str(file)]) == 2
    assert "tls.client_key = " in capsys.readouterr().err
    file.write_text(text % (TOKEN, tls.certificate, tls.key))
    assert main(["check", str(file)]) == 2
    said = capsys.readouterr().err
    assert "access.sidecar_token: wanted the path of a file" in said
    assert TOKEN not in said
