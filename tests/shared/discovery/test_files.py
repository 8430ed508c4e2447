"""Sources that are files. Each look is made by hand."""

import os
from pathlib import Path

import pytest

from ullage_shared.discovery.files import MOST_LOOKS, Files

A, B, C = "http://a:1", "http://b:1", "http://c:1"


def write(path: Path, *targets: str) -> None:
    """In the place of what was there, in one go."""
    new = path.with_suffix(".new")
    new.write_text(f"[{{targets: [{', '.join(targets)}]}}]")
    new.replace(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yml"
    write(path, "a:1")
    return path


def test_a_file_is_read_at_the_first_look(file: Path) -> None:
    known = Files(str(file)).look()
    assert (known.urls, known.problem, known.holds) == ((A,), "", True)


def test_a_change_is_taken_once_the_file_has_stood_still(file: Path) -> None:
    files = Files(str(file))
    files.look()
    write(file, "a:1", "b:1")
    assert files.look().urls == (A,)
    assert files.look().urls == (A, B)
    assert files.look().urls == (A, B)


def test_of_a_file_that_is_being_written_nothing_is_taken(file: Path) -> None:
    files = Files(str(file))
    files.look()
    with file.open("w") as half:
        half.write("[{targets: [b:1]}")  # Cut here it would be no list,
        half.flush()
        assert files.look().urls == (A,)
        half.write(", {targets: [c:1]}]")  # and here a shorter one.
    assert files.look().urls == (A,)
    assert files.look().urls == (B, C)


def test_one_that_never_stands_still_is_read_after_all(file: Path) -> None:
    files = Files(str(file))
    files.look()
    for number in range(MOST_LOOKS - 1):
        write(file, f"n{number}:1")
        assert files.look().urls == (A,)
    write(file, "b:1")
    assert files.look().urls == (B,)


def test_a_link_that_is_turned_to_another_file_is_a_change(file: Path) -> None:
    """As Kubernetes mounts a ConfigMap."""
    link, other = file.with_name("link.yml"), file.with_name("other.yml")
    write(other, "b:1")
    link.symlink_to(file)
    files = Files(str(link))
    files.look()
    new = file.with_name("new")
    new.symlink_to(other)
    new.replace(link)
    assert [files.look().urls, files.look().urls] == [(A,), (B,)]


def test_a_list_that_is_emptied_on_purpose_is_empty(file: Path) -> None:
    files = Files(str(file))
    files.look()
    file.write_text("[]")
    files.look()
    known = files.look()
    assert (known.urls, known.problem, known.holds) == ((), "", True)


@pytest.mark.parametrize("content", ["", "[{targets: [b:1]", "targets: [b:1]"])
def test_a_file_that_is_broken_keeps_its_last_list_until_it_is_mended(
    file: Path, content: str
) -> None:
    files = Files(str(file))
    files.look()
    file.write_text(content)
    files.look()
    known = files.look()
    assert known.urls == (A,)
    assert known.problem.startswith(f"{file}: ")
    write(file, "b:1")
    files.look()
    known = files.look()
    assert (known.urls, known.problem) == ((B,), "")


def test_a_file_that_is_gone_keeps_its_list_and_is_read_when_it_is_back(file: Path) -> None:
    files = Files(str(file))
    files.look()
    file.unlink()
    known = files.look()
    assert (known.urls, known.problem) == ((A,), f"{file}: no such file")
    write(file, "b:1")
    files.look()
    assert files.look().urls == (B,)


def test_one_that_was_never_there_names_nobody_and_is_no_end(tmp_path: Path) -> None:
    known = Files(str(tmp_path / "none.json")).look()
    assert (known.urls, known.holds) == ((), False)
    assert "no such file" in known.problem


def test_one_that_cannot_be_read_is_tried_again(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = Files(str(file))
    with monkeypatch.context() as broken:
        broken.setattr(Path, "read_bytes", _refuse)
        assert files.look().problem == f"{file}: cannot be read: Permission denied"
    assert files.look().urls == (A,)


def _refuse(_: Path) -> bytes:
    raise PermissionError(13, os.strerror(13))


def test_a_pattern_is_all_its_files_and_one_that_goes_takes_its_list_along(file: Path) -> None:
    files = Files(f"{file.parent}/*.yml")
    write(file.with_name("t.yml"), "b:1")
    assert files.look().urls == (A, B)
    file.unlink()
    assert files.look().urls == (B,)
    file.with_name("t.yml").unlink()
    assert files.look().urls == (B,), "the last one does not"


def test_one_bad_file_costs_no_other(file: Path) -> None:
    files = Files(f"{file.parent}/*.yml")
    other = file.with_name("t.yml")
    write(other, "b:1")
    files.look()
    other.write_text("{")
    write(file, "c:1")
    files.look()
    known = files.look()
    assert known.urls == (C, B)
    assert str(other) in known.problem


def test_the_name_says_which_form_a_file_has(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text("[{targets: [a:1]}]")
    assert "not JSON" in Files(str(path)).look().problem
