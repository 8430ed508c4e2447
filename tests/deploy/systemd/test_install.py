"""`make install`, into a folder that stands for the host; without extras, since that is quick."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import install.environment
from distribution import SOURCE, built, environment
from install.__main__ import main
from install.environment import InstallError
from install.layout import Layout

pytestmark = pytest.mark.slow

PREFIX = Path("/opt/elsewhere/ullage")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("host")
    (folder / "etc/ullage").mkdir(parents=True)
    (folder / "etc/ullage/router.toml").write_text("# mine\n")
    make(folder, "install")
    return folder


def make(host: Path, command: str, prefix: Path = PREFIX) -> None:
    """As the Makefile does."""
    words = [command, "--prefix", str(prefix), "--destdir", str(host)]
    if command == "install":
        words += ["--extras", "", "--wheel", str(built("wheel"))]
    subprocess.run(
        [sys.executable, "-m", "install", *words],
        env=environment() | {"PYTHONPATH": str(SOURCE / "deploy")},
        check=True,
    )


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}


def test_units_users_and_folders_are_where_systemd_looks_and_know_the_prefix(host: Path) -> None:
    lib = host / "usr/local/lib"
    shipped = SOURCE / "deploy" / "systemd"
    assert files(lib / "systemd/system") == files(shipped / "units")
    for kind in ("sysusers", "tmpfiles"):
        text = (lib / f"{kind}.d/ullage.conf").read_text()
        assert text == (shipped / f"ullage.{kind}").read_text()
    unit = (lib / "systemd/system/ullage-router.service").read_text()
    assert f"ExecStart={PREFIX}/bin/ullage-router --config" in unit
    assert "/opt/ullage" not in unit


def test_examples_are_written_and_a_file_that_is_there_is_left_alone(host: Path) -> None:
    shipped = {path.name for path in (SOURCE / "deploy/systemd/etc").iterdir()}
    assert files(host / "etc/ullage") == shipped
    assert (host / "etc/ullage/router.toml").read_text() == "# mine\n"
    assert "[[engine]]" in (host / "etc/ullage/sidecar.toml").read_text()


def test_the_environment_finds_itself_where_it_will_be(host: Path) -> None:
    home = Layout(PREFIX, host).home
    command = (home / "bin/ullage-router").read_text().splitlines()[0]
    assert command.startswith(f"#!{PREFIX}/bin/python")
    texts = [path for path in (home / "bin").iterdir() if not path.is_symlink()]
    assert [path for path in texts if str(host).encode() in path.read_bytes()] == []
    said = "import ullage_router; print(ullage_router.__spec__.cached, ullage_router.__file__)"
    done = subprocess.run(
        [home / "bin/python", "-c", said], env=environment(), capture_output=True, text=True
    )
    cached, file = done.stdout.split()
    assert Path(cached).exists()
    assert Path(file).is_relative_to(home)


def test_vllms_units_and_the_readme_stand_beside_it(host: Path) -> None:
    share = Layout(PREFIX, host).home / "share"
    drop_in = (share / "ullage/vllm/vllm@.service.d/ullage.conf").read_text()
    assert f"ExecStop=-{PREFIX}/bin/ullage-sidecar drain" in drop_in
    assert (share / "doc/ullage/README.md").read_text() == (SOURCE / "README.md").read_text()


def test_everybody_may_read_it_whatever_the_installers_umask(host: Path) -> None:
    umask = os.umask(0o077)
    os.umask(umask)
    for path in (Layout(PREFIX, host).home, host / "etc/ullage", host / "usr/local/lib"):
        for each in [path, *path.rglob("*")]:
            if not each.is_symlink():
                assert each.stat().st_mode & 0o044 == 0o044, each


def test_again_is_the_same_as_once_and_uninstall_leaves_only_what_is_the_operators(
    host: Path,
) -> None:
    before = files(host)
    (host / "etc/ullage/sidecar.toml").write_text("# mine, too\n")
    make(host, "install")
    assert files(host) == before
    assert (host / "etc/ullage/sidecar.toml").read_text() == "# mine, too\n"
    make(host, "uninstall")
    assert {path for path in files(host) if not path.startswith("etc/ullage/")} == set()
    assert (host / "etc/ullage/sidecar.toml").read_text() == "# mine, too\n"
    make(host, "uninstall")


@pytest.mark.parametrize("command", ["install", "uninstall"])
def test_a_folder_that_it_has_not_made_is_not_touched(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = tmp_path / "usr/local/bin/theirs"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    assert main([command, "--prefix", "/usr/local", "--destdir", str(tmp_path)]) == 1
    assert capsys.readouterr().err.startswith("PREFIX = /usr/local: ")
    assert files(tmp_path) == {"usr/local/bin/theirs"}


@pytest.mark.parametrize("prefix", ["/", "opt/ullage", "/opt/../ullage"])
def test_a_prefix_that_is_no_place_is_refused(
    prefix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["install", "--prefix", prefix, "--destdir", str(tmp_path)])
    assert "wanted an absolute path" in capsys.readouterr().err


def test_an_installation_that_fails_leaves_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half_made(new: Path, *_: object) -> None:
        new.mkdir()
        (new / "bin").touch()
        raise InstallError("no network")

    monkeypatch.setattr(install.environment, "_make", half_made)
    home = Layout(PREFIX, tmp_path).home
    (home / "share/doc/ullage").mkdir(parents=True)
    for name in ("share/doc/ullage/README.md", "pyvenv.cfg"):
        (home / name).touch()
    before = files(tmp_path)
    assert main(["install", "--prefix", str(PREFIX), "--destdir", str(tmp_path)]) == 1
    assert files(tmp_path) == before
    assert not home.with_name(f".{home.name}.new").exists()


def test_one_that_ended_in_the_midst_of_the_swap_is_taken_up_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_made(*_: object) -> None:
        raise InstallError("no network")

    monkeypatch.setattr(install.environment, "_make", not_made)
    home = Layout(PREFIX, tmp_path).home
    old = home.with_name(f".{home.name}.old")
    old.mkdir(parents=True)
    (old / "pyvenv.cfg").touch()
    main(["install", "--prefix", str(PREFIX), "--destdir", str(tmp_path)])
    assert files(home) == {"pyvenv.cfg"}
