"""The file of drains: what is kept is read again, by the next version and from the one before."""

import json
import logging

import pytest

from ullage_sidecar.core.engine import Drain
from ullage_sidecar.drained import Kept

DRAINS = {
    ("a", 0): Drain("boot-1", "scrape-1", 900.5),
    ("a", 1): Drain("boot-1"),
    ("b", 0): Drain(),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "readings.sock.drained"


def test_what_is_kept_is_read_again(path):
    assert Kept(path, "m").keep(DRAINS) == ""
    assert Kept(path, "m").read() == DRAINS
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("kept_by", "read_by"), [("m", "n"), ("m", ""), ("", "m"), ("", "")])
def test_no_instant_crosses_a_start_of_the_machine_and_names_do(path, kept_by, read_by):
    Kept(path, kept_by).keep(DRAINS)
    assert Kept(path, read_by).read() == {**DRAINS, ("a", 0): Drain("boot-1", "scrape-1")}


def test_what_a_former_version_kept_is_read(path):
    path.write_text('[{"engine":"a","rank":0,"boot_id":"boot-1"}]')
    assert Kept(path, "m").read() == {("a", 0): Drain("boot-1")}


def test_a_former_version_finds_what_it_needs(path):
    Kept(path, "m").keep(DRAINS)
    rows = json.loads(path.read_bytes())
    assert [(row["engine"], row["rank"], row["boot_id"]) for row in rows] == [
        ("a", 0, "boot-1"), ("a", 1, "boot-1"), ("b", 0, None),
    ]  # fmt: skip


def test_where_nothing_is_drained_there_is_no_file(path):
    kept = Kept(path, "m")
    assert kept.read() == {}
    kept.keep(DRAINS)
    kept.keep({})
    assert not path.exists()


def test_the_file_is_written_only_when_there_is_something_new_or_it_is_gone(path):
    kept = Kept(path, "m")
    kept.keep(DRAINS)
    written = path.stat().st_ino
    kept.keep(dict(DRAINS))
    assert path.stat().st_ino == written
    path.unlink()
    kept.keep(dict(DRAINS))
    assert path.exists()


@pytest.mark.parametrize("heard", ['"now"', "1e999", "[]"])
def test_an_instant_that_is_none_is_said(path, caplog, heard):
    caplog.set_level(logging.ERROR)
    path.write_text(f'[{{"engine":"a","rank":0,"boot_id":"b","heard_s":{heard},"machine":"m"}}]')
    assert Kept(path, "m").read() == {}
    assert "drains_lost" in caplog.text
