"""A version over an environment that has another one."""

import sys
import zipfile
from importlib.metadata import version

import pytest

from versions.overlay import unpacked


@pytest.fixture
def wheel(tmp_path):
    """A version that calls itself by another name, with a compiled part."""
    path = tmp_path / "vllm-9.8.7-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm/__init__.py", "")
        archive.writestr("vllm/_C.abi3.so", "not for this torch")
        archive.writestr("vllm-9.8.7.dist-info/METADATA", "Name: vllm\nVersion: 9.8.7\n")
    return path


def test_it_is_vllms_cpu_build_by_name_and_nothing_compiled(wheel, tmp_path, monkeypatch):
    folder = unpacked(wheel, "9.8.7", tmp_path / "there", compiled=False)
    monkeypatch.setattr(sys, "path", [str(folder)])
    assert version("vllm") == "9.8.7+cpu"
    assert [path.name for path in (folder / "vllm").iterdir()] == ["__init__.py"]


def test_its_compiled_part_is_kept_where_it_loads(wheel, tmp_path):
    folder = unpacked(wheel, "9.8.7", tmp_path / "there", compiled=True)
    assert (folder / "vllm" / "_C.abi3.so").exists()


def test_an_unpacking_that_was_broken_off_is_done_again(wheel, tmp_path):
    folder = unpacked(wheel, "9.8.7", tmp_path / "there", compiled=False)
    (folder / "done").unlink()
    (folder / "vllm" / "__init__.py").unlink()
    unpacked(wheel, "9.8.7", folder, compiled=False)
    assert (folder / "vllm" / "__init__.py").exists()
