"""The contest of live twins, as far as it can be told without them."""

import json
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from bench.live.contest import COLUMNS, MODEL, Turn, answers, parser, row, running
from bench.live.routers import DEFAULT, ROUTERS, Stand, needs
from twins.fleet import Pace
from ullage_tune.measure import Slo
from ullage_tune.outcome import Run
from ullage_tune.replay.player import Played

BUSY = (Pace(100, 30.0, 0, 0.0), Pace(50, 10.0, 4, 0.4))


def stand(folder: Path, *urls: str, port: int = 20000) -> Stand:
    return Stand(folder, port, urls, ("twin0", "twin1"), folder / "readings.sock")


def test_a_row_says_what_may_have_spoilt_it() -> None:
    played = Played(Run("w", "p", 0, (), (), 1.0, 1.0), (), (), tells_hits=False, left=0)
    fields = dict(zip(COLUMNS, row("ours", Turn(played, BUSY, 0.5), Slo()), strict=True))
    assert str(fields["imbalance"]) == "1.50"
    assert str(fields["twins lost"]) == "1.0%"
    assert str(fields["CPU"]) == "50.0%"


def test_each_of_ours_knows_all_twins_by_the_sidecar(tmp_path: Path) -> None:
    sidecar, router = ROUTERS["ours"](stand(tmp_path, "http://a:1", "http://b:2"))
    assert "twin0=http://a:1" in sidecar
    assert "twin1=http://b:2" in sidecar
    assert router[-1] == tmp_path / "router.toml"


@pytest.mark.parametrize("name", [name for name in ROUTERS if not name.startswith("ours")])
def test_every_rival_is_told_of_every_replica(name: str, tmp_path: Path) -> None:
    (argv,) = ROUTERS[name](stand(tmp_path, "http://a:1", "http://b:2"))
    files = "".join(file.read_text() for file in tmp_path.iterdir())
    told = files + " ".join(map(str, argv))
    assert "a:1" in told
    assert "b:2" in told


def test_what_is_needed_is_installed_and_nothing_else() -> None:
    assert needs(DEFAULT) == (["nginx"], ["smg", "vllm-router"])
    assert needs(["ours"]) == ([], [])


def test_an_unknown_router_is_refused_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ("--venv", "v", "--model", "m", "--workload", "short")
    with pytest.raises(SystemExit):
        parser().parse_args([*wanted, "--only", "ours,envoy"])
    assert "'envoy' is not one of ours, nginx round_robin" in capsys.readouterr().err


class _Replica(BaseHTTPRequestHandler):
    """Answers every completion, and remembers for which port."""

    asked: list[int]

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        assert asked["model"] == MODEL
        self.asked.append(self.server.server_address[1])
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def replicas() -> Iterator[list[ThreadingHTTPServer]]:
    _Replica.asked = []
    servers = [ThreadingHTTPServer(("127.0.0.1", 0), _Replica) for _ in range(2)]
    for server in servers:
        Thread(target=server.serve_forever, daemon=True).start()
    yield servers
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.slow
def test_a_router_is_ready_once_it_forwards_to_all_and_ends_with_its_turn(
    replicas: list[ThreadingHTTPServer], tmp_path: Path
) -> None:
    ports = [server.server_address[1] for server in replicas]
    assert shutil.which("nginx", path="/usr/sbin:/usr/bin"), "nginx is missing: run `make system`"
    here = stand(tmp_path, *(f"http://127.0.0.1:{port}" for port in ports), port=20480)
    assert not answers(here)
    with running("nginx round_robin", here):
        assert set(_Replica.asked) == set(ports)
        assert answers(here)
    assert not answers(here)
