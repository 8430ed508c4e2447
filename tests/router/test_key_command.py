from hashlib import sha256
from pathlib import Path

import pytest

from ullage_router.http.access import read
from ullage_router.key_command import main


def test_the_key_is_printed_once_and_its_line_has_its_hash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["team-a"]) == 0
    said = capsys.readouterr()
    assert said.err == f"team-a {sha256(said.out.strip().encode()).hexdigest()}\n"


@pytest.mark.parametrize("before", [None, "", "# ours\n", "# without an end"])
def test_lines_are_appended_to_a_file_that_not_everybody_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str | None
) -> None:
    file = tmp_path / "keys"
    if before is not None:
        file.write_text(before)
    for name in ("a", "b"):
        assert main([name, "--append", str(file)]) == 0
    keys = capsys.readouterr().out.split()
    hashes = read(str(file), "").hashes
    assert hashes == [sha256(key.encode()).digest() for key in keys]
    assert file.read_text().startswith(before or "a ")
    if before is None:
        assert file.stat().st_mode & 0o007 == 0


def test_a_file_that_cannot_be_written_is_said_and_no_key_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["a", "--append", str(tmp_path / "none" / "keys")]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert "No such file or directory" in said.err


@pytest.mark.parametrize("name", ["two words", "", "a#b", "x" * 101])
def test_a_name_that_a_line_cannot_hold_is_refused(name: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name])
    assert ended.value.code == 2
