"""The units that we ship, as systemd's own tools see them."""

import configparser
import re
from pathlib import Path

import pytest

import units
from ullage_router.cli import parser as router_parser
from ullage_router.config import Config as RouterConfig
from ullage_sidecar.cli import parser as sidecar_parser
from ullage_sidecar.command import _parser as drain_parser
from ullage_sidecar.config import Config as SidecarConfig

MOST_EXPOSED = 1.5
OURS = sorted((units.SHIPPED / "units").glob("*.service"))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return units.root_with_units(tmp_path_factory.mktemp("units"))


def test_systemd_finds_nothing_wrong_with_any_unit(root: Path) -> None:
    assert units.verify(root) == ""


def test_systemd_would_find_what_is_wrong(tmp_path: Path) -> None:
    bad = units.root_with_units(tmp_path) / "usr/local/lib/systemd/system/ullage-router.service"
    bad.write_text(bad.read_text().replace("WatchdogSec=", "WatchdogSeconds="))
    assert "Unknown key 'WatchdogSeconds' in section [Service]" in units.verify(tmp_path)


@pytest.mark.parametrize("service", units.SERVICES)
def test_every_service_is_hardly_exposed(service: str, root: Path) -> None:
    assert units.exposure(root, f"{service}.service") <= MOST_EXPOSED


def _sections(path: Path) -> dict[str, list[tuple[str, str]]]:
    """systemd's files have keys more than once, which configparser will not read as they are."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in path.read_text().splitlines():
        if match := re.fullmatch(r"\[(\w+)\]", line):
            section = found.setdefault(match[1], [])
        elif match := re.fullmatch(r"(\w+)=(.*)", line):
            section.append((match[1], match[2]))
    return found


def _service(path: Path) -> dict[str, list[str]]:
    keys: dict[str, list[str]] = {}
    for key, value in _sections(path)["Service"]:
        keys.setdefault(key, []).append(value)
    return keys


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_every_service_says_when_it_serves_is_watched_and_comes_back(path: Path) -> None:
    keys = _service(path)
    assert keys["Type"] == ["notify"]
    assert int(keys["WatchdogSec"][0]) > 0
    assert keys["Restart"] == ["always"]
    assert keys["RestartPreventExitStatus"] == ["2"]
    assert keys["User"] == keys["Group"]
    assert ("StartLimitIntervalSec", "0") in _sections(path)["Unit"]


def test_the_template_differs_from_the_router_only_where_it_must() -> None:
    one, template = (
        _service(units.SHIPPED / "units" / f"ullage-router{kind}.service") for kind in ("", "@")
    )
    differ = {key for key in one.keys() | template.keys() if one.get(key) != template.get(key)}
    assert differ == {"ExecStart", "EnvironmentFile", "Sockets"}
    assert template["ExecStart"] == [f"{one['ExecStart'][0]} --admin 127.0.0.1:%i"]


def test_the_socket_is_where_the_router_listens_by_default() -> None:
    socket = configparser.ConfigParser(interpolation=None)
    socket.optionxform = str  # type: ignore[assignment,method-assign]
    socket.read(units.SHIPPED / "units" / "ullage-router.socket")
    assert socket["Socket"]["ListenStream"] == RouterConfig().listen


def test_the_sockets_folder_is_made_for_the_sidecars_user_and_may_be_written_by_it() -> None:
    keys = _service(units.SHIPPED / "units" / "ullage-sidecar.service")
    folder = str(Path(SidecarConfig().socket).parent)
    assert keys["ReadWritePaths"] == [folder]
    (made,) = re.findall(r"^d .*", (units.SHIPPED / "ullage.tmpfiles").read_text(), re.M)
    assert made.split() == ["d", folder, "2750", keys["User"][0], keys["Group"][0], "-"]


def test_every_user_is_declared() -> None:
    declared = set(re.findall(r"^u (\S+)", (units.SHIPPED / "ullage.sysusers").read_text(), re.M))
    assert {_service(path)["User"][0] for path in OURS} == declared


def test_the_commands_have_the_flags_that_the_units_give_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    router_parser().parse_args(["--config", "router.toml", "--admin", "127.0.0.1:9409"])
    sidecar_parser().parse_args(["--config", "sidecar.toml"])
    drop_in = _service(units.SHIPPED / "vllm" / "vllm@.service.d" / "ullage.conf")
    (stop,) = drop_in["ExecStop"]
    options = drain_parser().parse_args(stop.split()[1:])
    assert options.wait < float(drop_in["TimeoutStopSec"][0])
    assert capsys.readouterr().err == ""


def test_vllms_drop_in_names_the_sidecars_socket_and_the_group_that_may_write_there() -> None:
    keys = _service(units.SHIPPED / "vllm" / "vllm@.service.d" / "ullage.conf")
    assert f"ULLAGE_SOCKET={SidecarConfig().socket}" in keys["Environment"]
    sidecar = _service(units.SHIPPED / "units" / "ullage-sidecar.service")
    assert keys["SupplementaryGroups"] == sidecar["Group"]


def test_every_environment_file_names_the_flags_that_its_unit_reads() -> None:
    for path in (units.SHIPPED / "etc").glob("*.env"):
        unit = (units.SHIPPED / "units" / f"ullage-{path.stem}.service").read_text()
        (variable,) = re.findall(r"^#(\w+)=", path.read_text(), re.M)
        assert f"${variable}\n" in unit
        assert f"EnvironmentFile=-/etc/ullage/{path.name}\n" in unit
