"""Files of secrets: each edge of one, and that nothing but the header shows what it holds."""

import copy
import os
import traceback
from pathlib import Path

import pytest

from ullage_shared.config import ConfigError
from ullage_shared.secret import MOST_BYTES, Secret, accepted, opens, own

ONE, OTHER = "a" * 32, "b" * 32
KEY = "access.token"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    return path


def test_a_secret_opens_what_its_file_holds_and_nothing_else(file: Path) -> None:
    file.write_text(f"{ONE}\n\n{OTHER}\r\n")
    known = accepted(KEY, str(file))
    assert opens(known, f"Bearer {ONE}")
    assert opens(known, f"bearer  {OTHER} ")
    for said in (
        *(None, "", "Bearer", "Bearer ", f"Bearer {ONE}x", f"Bearer {ONE[:-1]}"),
        *(f"Basic {ONE}", ONE, f"Bearer {ONE} {OTHER}", f"Bearer {ONE}\n{ONE}", "Bearer ä" * 16),
    ):
        assert not opens(known, said)
    assert not opens((), f"Bearer {ONE}")


def test_no_file_is_no_secret() -> None:
    assert accepted(KEY, "") == ()
    assert own(KEY, "") is None


def test_whoever_asks_has_one(file: Path) -> None:
    file.write_text(ONE)
    secret = own(KEY, str(file))
    assert secret is not None
    assert secret.headers == {"Authorization": f"Bearer {ONE}"}
    file.write_text(f"{ONE}\n{OTHER}")
    with pytest.raises(ConfigError, match="wanted one line, not 2"):
        own(KEY, str(file))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", "is empty"),
        (" \n\n", "is empty"),
        ("a" * 15, "line 1: wanted 16 characters"),
        (f"{ONE}\n{OTHER} more", "line 2: wanted 16 characters"),
        ("ä" * 16, "line 1: wanted 16 characters"),
        ("a" * (MOST_BYTES + 1), f"wanted {MOST_BYTES} bytes"),
    ],
)
def test_what_holds_none_is_refused_by_key_and_file(file: Path, text: str, wanted: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError, match=wanted) as refused:
        accepted(KEY, str(file))
    assert str(refused.value).startswith(f"{KEY} = {str(file)!r}: ")
    told = "".join(traceback.format_exception(refused.value))
    assert not any(secret in told for secret in ("a" * 15, OTHER))


def test_a_file_that_is_missing_none_or_everybodys_is_refused(file: Path) -> None:
    file.write_text(ONE)
    file.chmod(0o644)
    with pytest.raises(ConfigError, match="everybody may read it: chmod o-rwx"):
        accepted(KEY, str(file))
    file.chmod(0o640)
    assert accepted(KEY, str(file))
    os.mkfifo(file.with_name("endless"), 0o600)
    for name, wanted in (
        ("none", "No such file"),
        (".", "wanted a file"),
        ("endless", "wanted a file"),
        ("a\0b", "cannot be read"),
    ):
        with pytest.raises(ConfigError, match=wanted):
            accepted(KEY, f"{file.parent}/{name}")


def test_a_secret_in_the_place_of_a_path_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="wanted the path of a file") as refused:
        accepted(KEY, ONE)
    assert ONE not in "".join(traceback.format_exception(refused.value))


def test_its_words_do_not_show_it() -> None:
    secret = Secret(ONE)
    for words in (repr(secret), str(secret), f"{secret}", f"{[secret]!r}", f"{copy.copy(secret)}"):
        assert ONE not in words
    assert secret == Secret(ONE) != Secret(OTHER)
    assert hash(secret) == hash(Secret(ONE))
