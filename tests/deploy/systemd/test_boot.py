"""All of it on a machine that systemd has booted: what a unit says it does, it does.

vLLM is a stand-in (`vllm_stand_in`): the plugin's channel and HTTP are real, the engine is not.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from asking_there import SUPPORT, Asking, asking
from distribution import built
from machine import SOURCES, WHEELS, Machine, machine

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("boot")]

ROUTER, SIDECAR, VLLM = "ullage-router", "ullage-sidecar", "vllm@a"
ADMIN = "http://127.0.0.1:9401"
ROUTER_TOML = 'sidecars = ["http://127.0.0.1:9400"]\n[limits]\nstop_grace_s = 20.0\n'
SIDECAR_TOML = '[[engine]]\nname = "a"\nurl = "http://127.0.0.1:8000"\n'
STAND_IN = f"""\
#!/bin/sh
export PYTHONPATH={SUPPORT} PYTHONDONTWRITEBYTECODE=1
exec /opt/ullage/bin/python {SUPPORT}/vllm_stand_in.py "$@"
"""
INSTALLER = (f"PYTHONPATH={SOURCES}/deploy", "python3", "-m", "install")
ERROR, WARNING, INFO = "3", "4", "6"
CLIENTS = 6
"""Fewer than the sequences that the server runs at once: else it is full, on a busy machine."""


@pytest.fixture(scope="module")
def host() -> Iterator[Machine]:
    """As an operator sets it up: installed, configured, enabled, in one go."""
    with machine() as booted:
        installer = (
            "python3",
            "-m",
            "install",
            "install",
            "--wheel",
            f"{WHEELS / built('wheel').name}",
        )
        paths = (f"PYTHONPATH={SOURCES}/deploy", f"PIP_FIND_LINKS={WHEELS}")
        booted.run("env", *paths, "PIP_NO_INDEX=1", "PYTHONDONTWRITEBYTECODE=1", *installer)
        units = "/etc/systemd/system"
        booted.run("cp", "-r", "/opt/ullage/share/ullage/vllm/.", units)
        booted.run("systemd-sysusers", "--inline", "u vllm -")
        booted.write("/opt/vllm/bin/vllm", STAND_IN)
        booted.run("chmod", "755", "/opt/vllm/bin/vllm")
        booted.write("/etc/vllm/a.env", "VLLM_MODEL=tiny\nVLLM_PORT=8000\nVLLM_FLAGS=\n")
        booted.write("/etc/ullage/router.toml", ROUTER_TOML)
        booted.write("/etc/ullage/sidecar.toml", SIDECAR_TOML)
        for unit in (ROUTER, SIDECAR):  # Nobody waits for a minute here.
            booted.write(f"{units}/{unit}.service.d/test.conf", "[Service]\nWatchdogSec=3\n")
        booted.systemctl("daemon-reload")
        booted.systemctl("enable", "--now", VLLM, SIDECAR, f"{ROUTER}.socket", ROUTER)
        yield booted


@pytest.fixture(autouse=True)
def well(host: Machine) -> None:
    """Each test finds a machine that serves, however the one before has left it."""
    host.write("/etc/ullage/router.toml", ROUTER_TOML)
    host.write("/etc/ullage/sidecar.toml", SIDECAR_TOML)
    host.systemctl("start", f"{ROUTER}.socket", ROUTER, SIDECAR, VLLM)
    host.comes_true(lambda: serves(host))


def serves(host: Machine) -> bool:
    units = all(host.show(unit, "ActiveState") == "active" for unit in (ROUTER, SIDECAR, VLLM))
    return units and replica(host).get("standing") == "eligible"


def replica(host: Machine) -> Any:
    status, body = host.get(f"{ADMIN}/replicas")
    found = json.loads(body)["replicas"] if status == 200 else []
    return found[0] if found else {}


def running(host: Machine) -> int:
    """Requests that the router has at vLLM just now."""
    found = replica(host)
    return int(found["in_flight"]) if found else 0


def pid(host: Machine, unit: str) -> int:
    return int(host.show(unit, "MainPID"))


def priorities(host: Machine, unit: str, word: str) -> set[str]:
    """Of all lines of a unit with this word in them."""
    return {row["PRIORITY"] for row in host.journal(unit) if word in str(row["MESSAGE"])}


@contextmanager
def one_long_request(host: Machine) -> Iterator[Asking]:
    """One whose answer takes some 3 s; it has begun when this goes on."""
    with asking(host, 1, max_tokens=300) as they:
        host.comes_true(lambda: running(host))
        they.last()
        yield they
    assert they.ends.keys() == {"200"}, they.ends


def test_a_request_goes_from_client_to_vllm_by_what_its_plugin_tells(host: Machine) -> None:
    with asking(host, 1) as they:
        host.comes_true(lambda: replica(host).get("capacity_score"))
    assert they.ends.keys() == {"200"}, they.ends
    assert replica(host)["id"].endswith("/a")
    assert "state engine=a" in str([row["MESSAGE"] for row in host.journal(SIDECAR)])


def test_the_sidecar_was_up_before_vllm_began(host: Machine) -> None:
    began, ready = (
        int(host.show(unit, f"{what}TimestampMonotonic"))
        for unit, what in ((VLLM, "InactiveExit"), (SIDECAR, "ActiveEnter"))
    )
    assert ready < began


def test_systemctl_status_says_where_it_serves(host: Machine) -> None:
    assert host.show(ROUTER, "StatusText") == "clients at 0.0.0.0:8080, operators at 127.0.0.1:9401"
    assert host.show(SIDECAR, "StatusText") == (
        "snapshots at 0.0.0.0:9400, plugins at /run/ullage/readings.sock"
    )


def test_each_runs_as_its_own_user_and_vllm_reaches_the_socket_by_its_group(host: Machine) -> None:
    users = {
        unit: host.run("stat", "--format=%U", f"/proc/{pid(host, unit)}").stdout.strip()
        for unit in (ROUTER, SIDECAR, VLLM)
    }
    assert users == {ROUTER: "ullage-router", SIDECAR: "ullage", VLLM: "vllm"}
    socket = host.run("stat", "--format=%A %U %G", "/run/ullage/readings.sock").stdout.strip()
    assert socket == "srw-rw---- ullage ullage"
    status = host.run("cat", f"/proc/{pid(host, ROUTER)}/status").stdout
    assert "CapBnd:\t0000000000000000" in status
    assert "NoNewPrivs:\t1" in status


@pytest.mark.parametrize("unit", [ROUTER, SIDECAR, VLLM])
def test_what_is_killed_is_started_again(unit: str, host: Machine) -> None:
    before = pid(host, unit)
    host.kill("KILL", before)
    host.comes_true(lambda: pid(host, unit) not in (0, before))


@pytest.mark.parametrize("unit", [ROUTER, SIDECAR])
def test_what_hangs_is_ended_by_the_watchdog_and_says_where_it_was(
    unit: str, host: Machine
) -> None:
    before = pid(host, unit)
    host.kill("STOP", before)
    host.comes_true(lambda: pid(host, unit) not in (0, before))
    said = str([row["MESSAGE"] for row in host.journal(unit)])
    assert "Watchdog timeout" in said
    assert "Fatal Python error: Aborted" in said


def test_a_reload_takes_over_the_file_and_systemctl_says_so(host: Machine) -> None:
    before = pid(host, ROUTER)
    host.write("/etc/ullage/router.toml", f"poll_interval_s = 0.25\n{ROUTER_TOML}")
    host.systemctl("reload", ROUTER)
    host.comes_true(lambda: priorities(host, ROUTER, "reloaded changed=poll_interval_s") == {INFO})
    assert pid(host, ROUTER) == before


def test_a_reload_of_a_bad_file_fails_says_why_and_changes_nothing(host: Machine) -> None:
    before = pid(host, ROUTER)
    host.write("/etc/ullage/router.toml", "poll_interval_s = -1\n")
    done = host.systemctl("reload", ROUTER, check=False)
    host.write("/etc/ullage/router.toml", ROUTER_TOML)
    assert done.returncode != 0
    said = str([row["MESSAGE"] for row in host.journal(ROUTER)])
    assert "poll_interval_s = -1: wanted" in said
    assert (pid(host, ROUTER), host.show(ROUTER, "ActiveState")) == (before, "active")


def test_a_wrong_configuration_ends_it_for_good_with_an_error_in_the_journal(host: Machine) -> None:
    host.write("/etc/ullage/sidecar.toml", "listen = 1\n")
    assert host.systemctl("restart", SIDECAR, check=False).returncode != 0
    assert host.show(SIDECAR, "ActiveState") == "failed"
    assert host.show(SIDECAR, "NRestarts") == "0"
    assert priorities(host, SIDECAR, "listen = 1: wanted a string") == {ERROR}
    host.write("/etc/ullage/sidecar.toml", SIDECAR_TOML)
    host.systemctl("restart", SIDECAR)


def test_vllm_is_stopped_when_its_requests_have_ended(host: Machine) -> None:
    with one_long_request(host):
        host.systemctl("stop", VLLM)
    host.systemctl("start", VLLM)
    host.comes_true(lambda: serves(host))
    assert "drain" not in host.run("/opt/ullage/bin/ullage-sidecar", "status").stdout


def test_stopped_together_vllm_drains_before_its_sidecar_goes(host: Machine) -> None:
    with one_long_request(host):
        host.systemctl("stop", VLLM, SIDECAR)


def test_a_router_that_restarts_refuses_nobody(host: Machine) -> None:
    with asking(host, CLIENTS) as they:
        host.systemctl("restart", ROUTER)
        host.systemctl("restart", ROUTER)
    assert they.ends.keys() == {"200"}, they.ends


def test_a_second_router_takes_over_and_back_and_no_request_is_lost(host: Machine) -> None:
    """What ullage-router@.service says of an upgrade."""
    with asking(host, CLIENTS) as they:
        host.systemctl("start", f"{ROUTER}@9409")
        assert host.get("http://127.0.0.1:9409/healthz")[0] == 200
        host.systemctl("restart", ROUTER)
        host.systemctl("stop", f"{ROUTER}@9409")
    assert they.ends.keys() == {"200"}, they.ends
    assert sum(they.ends.values()) > 20


@contextmanager
def second_node(host: Machine) -> Iterator[None]:
    """Another sidecar with a server beside, of which the router knows too."""
    serve = ("/opt/vllm/bin/vllm", "serve", "tiny", "--port", "8100")
    told = ("--setenv=ULLAGE_SOCKET=/run/second/readings.sock", "--setenv=ULLAGE_ENGINE=a")
    sidecar = ("--node", "second", "--socket", "/run/second/readings.sock")
    listen = ("--listen", "127.0.0.1:9500", "--engine", "a=http://127.0.0.1:8100")
    host.run(
        "systemd-run", "--unit=second-sidecar", f"/opt/ullage/bin/{SIDECAR}", *sidecar, *listen
    )
    host.run("systemd-run", "--unit=second-vllm", *told, *serve)
    both = ROUTER_TOML.replace("]", ', "http://127.0.0.1:9500"]', 1)
    host.write("/etc/ullage/router.toml", both)
    host.systemctl("reload", ROUTER)
    try:
        yield
    finally:
        host.write("/etc/ullage/router.toml", ROUTER_TOML)
        host.systemctl("reload", ROUTER)
        host.systemctl("stop", "second-sidecar", "second-vllm")


def test_the_shipped_program_upgrades_all_of_it_by_its_units_and_no_request_is_lost(
    host: Machine,
) -> None:
    node = replica(host)["id"].partition("/")[0]
    before = {unit: pid(host, unit) for unit in (VLLM, SIDECAR, ROUTER)}
    router = ("--router", f"r={ADMIN}", "--run", "sh -c", "--within", "60")
    with second_node(host), asking(host, CLIENTS) as they:
        host.comes_true(lambda: '"second/a"' in host.get(f"{ADMIN}/replicas")[1])
        host.comes_true(lambda: json.loads(host.get(f"{ADMIN}/healthz")[1])["eligible"] == 2)
        host.comes_true(lambda: '"ramping"' not in host.get(f"{ADMIN}/replicas")[1])
        for what, name in (("replicas", node), ("sidecars", node), ("routers", "r")):
            host.run("python3", f"{SOURCES}/deploy/rolling", what, name, *router)
    assert they.ends.keys() == {"200"}, they.ends
    assert not [unit for unit in before if pid(host, unit) == before[unit]]


def test_requests_are_let_finish_when_the_router_stops(host: Machine) -> None:
    with one_long_request(host):
        host.systemctl("stop", f"{ROUTER}.socket", ROUTER)


def test_the_aggregator_serves_what_the_sidecar_says(host: Machine) -> None:
    host.write("/etc/ullage/aggregator.toml", 'sidecars = ["http://127.0.0.1:9400"]\n')
    host.systemctl("start", "ullage-aggregator")
    listen = host.show("ullage-aggregator", "StatusText")
    assert "9402" in listen
    host.comes_true(lambda: '"id":"' in host.get("http://127.0.0.1:9402/v1/snapshots")[1])


def test_the_journal_has_lines_with_their_priorities(host: Machine) -> None:
    assert priorities(host, ROUTER, "level=INFO listening") == {INFO}
    assert priorities(host, ROUTER, "level=WARNING replica_failing") <= {WARNING}
    ours = [row for row in host.journal(ROUTER) if row.get("_COMM", "").startswith("ullage")]
    assert ours
    assert not [row for row in ours if str(row["MESSAGE"]).startswith("<")]


def test_uninstalled_it_is_gone_and_the_configuration_stays(host: Machine) -> None:
    """The last one: it puts all back that the others need no more."""
    host.run("env", *INSTALLER, "uninstall")
    left = host.run("sh", "-c", "ls /opt; ls /usr/local/lib/systemd/system").stdout.split()
    assert left == ["vllm"]
    assert host.run("ls", "/etc/ullage").stdout
    assert host.show(ROUTER, "LoadState") == "not-found"
