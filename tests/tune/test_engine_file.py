"""Engines of one's own, as files."""

from dataclasses import replace

import pytest

from ullage_tune.engine_file import EngineError, engine_of, parse, written
from ullage_tune.gpu import ENGINES, SPIKE, StepModel

OWN = replace(SPIKE, blocks=1234, block_size=32, max_num_seqs=7, max_model_len=4096)
FILE = written(OWN, ["Mine.", ""])


def test_what_is_written_is_read_again():
    assert parse(FILE) == OWN
    assert FILE.startswith("# Mine.\n#\nblocks = 1234\n")
    third = replace(OWN, steps=StepModel(0.01 / 3, 1e-5 / 3, 0.0, 1e-8 / 3))
    assert parse(written(third, [])).steps == pytest.approx(third.steps, rel=1e-3)


def test_a_name_comes_before_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "spike").write_text(FILE)
    (tmp_path / "own.toml").write_text(FILE)
    assert engine_of("spike") == ENGINES["spike"]
    assert engine_of("own.toml") == OWN


@pytest.mark.parametrize(
    ("was", "now", "fault"),
    [
        ("blocks = 1234", "", "blocks is missing: wanted blocks, block_size"),
        ("blocks = 1234", "blocks = 1", "blocks = 1: wanted a whole number of 2 or more"),
        ("block_size = 32", "block_size = 32.0", r"block_size = 32\.0: wanted a whole number"),
        ("block_size = 32", "block_size = true", "block_size = True: wanted a whole number"),
        ("max_num_seqs = 7", "max_seqs = 7", "max_num_seqs is missing"),
        ("max_num_seqs = 7", "max_num_seqs = 7\nlayers = 3", "layers: wanted only blocks"),
        ("[step]", "[steps]", r"wanted a table \[step\] with base_s"),
        ("base_s = 0.018", "", r"step\.base_s is missing"),
        ("base_s = 0.018", "base_s = -1", r"step\.base_s = -1: wanted seconds, 0 or more"),
        ("base_s = 0.018", "base_s = inf", r"step\.base_s = inf: wanted seconds"),
        ("base_s = 0.018", "base_s = nan", r"step\.base_s = nan: wanted seconds"),
        ("base_s = 0.018", 'base_s = "1"', r"step\.base_s = '1': wanted seconds"),
        ("base_s = 0.018", "base_s = ", "own.toml: Invalid value"),
    ],
)
def test_what_makes_no_sense_is_refused_by_file_and_field(tmp_path, was, now, fault):
    file = tmp_path / "own.toml"
    assert was in FILE
    file.write_text(FILE.replace(was, now))
    with pytest.raises(EngineError, match=fault) as refused:
        engine_of(str(file))
    assert str(refused.value).startswith(str(file))


def test_steps_that_take_no_time_are_refused():
    still = replace(OWN, steps=StepModel(0.0, 0.0, 0.0, 1e-8))
    with pytest.raises(ValueError, match="wanted steps that take some time"):
        parse(written(still, []))


def test_a_file_that_is_none_is_refused_with_the_names_there_are(tmp_path):
    with pytest.raises(EngineError, match="'h300': wanted a file, or one of h100-8b"):
        engine_of("h300")
    with pytest.raises(EngineError, match="Is a directory"):
        engine_of(str(tmp_path))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(EngineError, match="binary"):
        engine_of(str(tmp_path / "binary"))
    (tmp_path / "empty").write_text("")
    with pytest.raises(EngineError, match=r"empty: wanted a table \[step\]"):
        engine_of(str(tmp_path / "empty"))
