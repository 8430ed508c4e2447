"""What `pip` gets: as wheel and as sdist, built and installed as users do."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from distribution import SOURCE, built, environment, run

pytestmark = pytest.mark.slow

PROJECT = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]
VERSION = PROJECT["version"]
NOT_CODE = (
    *(f"ullage_router/page/{name}" for name in ("page.html", "page.css", "main.js")),
    *(f"ullage_{room}/py.typed" for room in ("router", "sidecar", "shared")),
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands of a bare `pip install ullage` are."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(folder, with_pip=False)
    pip("--python", folder / "bin" / "python", "install", "--no-index", built("wheel"))
    return folder / "bin"


def pip(*words: str | Path) -> str:
    return run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *words)


def names_in(kind: str) -> set[str]:
    if kind == "wheel":
        with zipfile.ZipFile(built("wheel")) as wheel:
            return set(wheel.namelist())
    with tarfile.open(built("sdist")) as sdist:
        return {name.partition("/")[2] for name in sdist.getnames()}


def test_version_and_changelog_say_the_same() -> None:
    newest = re.search(r"^## (\S+)", (SOURCE / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == VERSION
    assert built("wheel").name.startswith(f"ullage-{VERSION}-")
    assert built("sdist").name == f"ullage-{VERSION}.tar.gz"


def test_a_bare_install_brings_no_dependency_and_the_plugin(bare: Path) -> None:
    said = "from importlib.metadata import *; print(*sorted(d.name for d in distributions()))"
    assert run(bare / "python", "-c", said).split() == ["ullage"]
    found = (
        "from importlib.metadata import entry_points as e; "
        "print(*(p.value for p in e(group='vllm.stat_logger_plugins')))"
    )
    assert run(bare / "python", "-c", found).split() == [
        "ullage_sidecar.vllm_plugin:UllageStatLogger"
    ]
    run(bare / "python", "-c", "import ullage_sidecar.channel, ullage_sidecar.core.reading")


@pytest.mark.parametrize("command", sorted(PROJECT["scripts"]))
def test_a_command_without_its_packages_says_what_to_install(command: str, bare: Path) -> None:
    done = subprocess.run(
        [bare / command, "--version"], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert f'pip install "ullage[{command.removeprefix("ullage-")}]"' in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("extra", ["aggregator", "router", "sidecar"])
def test_an_extra_brings_what_it_names_and_no_vllm(extra: str) -> None:
    """Resolved as pip would, and not downloaded: vLLM would be gigabytes."""
    words = ("--dry-run", "--ignore-installed", "--report", "-", f"{built('wheel')}[{extra}]")
    report = json.loads(pip("install", *words))
    brought = {row["metadata"]["name"].lower().replace("_", "-") for row in report["install"]}
    named = {re.split(r"[><=]", need)[0] for need in PROJECT["optional-dependencies"][extra]}
    assert named < brought
    assert brought.isdisjoint({"vllm", "torch", "numpy"})


def test_pages_and_types_are_in_the_wheel_and_nothing_of_the_tests() -> None:
    names = names_in("wheel")
    assert names.issuperset(NOT_CODE)
    tops = {name.split("/")[0] for name in names}
    assert tops == {
        *("ullage_router", "ullage_sidecar", "ullage_shared", "ullage_tune"),
        f"ullage-{VERSION}.dist-info",
    }


def test_every_file_of_the_packages_is_in_the_wheel() -> None:
    wanted = {
        str(path.relative_to(room))
        for room in (SOURCE / name for name in ("sidecar", "router", "shared", "deploy/tune"))
        for path in room.glob("ullage_*/**/*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= names_in("wheel")


def test_from_the_sdist_comes_the_same_wheel(tmp_path: Path) -> None:
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, built("sdist"))
    (again,) = tmp_path.iterdir()
    with zipfile.ZipFile(again) as wheel, zipfile.ZipFile(built("wheel")) as first:
        assert {row.filename: row.CRC for row in wheel.infolist()} == {
            row.filename: row.CRC for row in first.infolist()
        }


def test_the_sdist_brings_what_an_installation_needs() -> None:
    names = names_in("sdist")
    for name in (
        "deploy/install/__main__.py",
        "deploy/rolling/__main__.py",
        "deploy/systemd/units/ullage-router.service",
        "deploy/systemd/etc/router.toml",
        "README.md",
        "CHANGELOG.md",
        "LICENSE",
    ):
        assert name in names
    assert not [name for name in names if name.startswith(("tests", ".build"))]
