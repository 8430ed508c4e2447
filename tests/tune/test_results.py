"""Results as a file, and back."""

import json
from dataclasses import replace

import pytest

from synthetic_runs import experiment_rows, outcome, run_of, summary
from ullage_tune.grid import Cell, Measured
from ullage_tune.measure import Slo, summarise
from ullage_tune.results import Experiment, ResultsError, read_json, versions, write_json

CELL = Cell("chat", 4, "half speed", 0.85)


@pytest.fixture
def experiment():
    rows = experiment_rows((CELL,), ("ullage", "round_robin"), seeds=2)
    lost = Measured(CELL, "never", 0, summary(None, None))
    one = summarise(run_of(outcome(1.0, 0.0, output_tokens=1)), Slo())
    rows += (lost, Measured(CELL, "one", 0, one), Measured(CELL, "none", 0, summary()))
    return Experiment(Slo(3.0, 0.1), {"replicas": "6"}, {"python": "3.11.2"}, rows)


def test_what_is_written_is_read_back_exactly(tmp_path, experiment):
    file = tmp_path / "results.json"
    write_json(file, experiment)
    assert read_json(file) == experiment
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_never_and_nothing_are_told_apart_in_strict_json(tmp_path, experiment):
    file = tmp_path / "results.json"
    write_json(file, experiment)

    def refuse(constant):
        raise AssertionError(constant)

    raw = json.loads(file.read_text(), parse_constant=refuse)
    by_policy = {row["policy"]: row["summary"] for row in raw["rows"]}
    assert by_policy["never"]["ttft_p99_s"] == "never"
    assert by_policy["one"]["tpot_p50_s"] is None


def test_a_policy_of_the_name_never_keeps_it(tmp_path, experiment):
    file = tmp_path / "results.json"
    write_json(file, experiment)
    assert "never" in {row.policy for row in read_json(file).rows}


def test_each_row_is_a_line(tmp_path, experiment):
    file = tmp_path / "results.json"
    write_json(file, experiment)
    assert len(file.read_text().splitlines()) == len(experiment.rows) + 2


def test_no_rows_are_written_and_read_too(tmp_path, experiment):
    file = tmp_path / "results.json"
    write_json(file, replace(experiment, rows=()))
    assert read_json(file).rows == ()


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path, experiment):
    file = tmp_path / "results.json"
    write_json(file, experiment)
    with pytest.raises(TypeError):
        write_json(file, replace(experiment, settings={"a": object()}))
    assert read_json(file) == experiment


def change(path, *where, to):
    raw = json.loads(path.read_text())
    at = raw
    for step in where[:-1]:
        at = at[step]
    if to is None:
        del at[where[-1]]
    else:
        at[where[-1]] = to
    path.write_text(json.dumps(raw))


@pytest.mark.parametrize(
    ("where", "to", "message"),
    [
        (("schema",), None, r"schema: missing: wanted results of ullage-tune"),
        (("schema",), 2, r"schema = 2: wanted 1"),
        (("rows",), None, r"document: Object missing required field `rows`"),
        (("rows",), 3, r"rows: Expected `array`, got `int`"),
        (("rows", 0), 3, r"rows\[0\]: Expected `object`, got `int`"),
        (("rows", 1, "seed"), "x", r"rows\[1\]\.seed: Expected `int`, got `str`"),
        (("rows", 1, "summary", "goodput"), "good", r"summary\.goodput: Expected `float \| null`"),
        (
            ("rows", 1, "summary", "requests"),
            None,
            r"rows\[1\]\.summary: .* missing required field `requests`",
        ),
        (("slo", "ttft_s"), -1.0, r"slo\.ttft_s = -1\.0: wanted a number > 0"),
    ],
)
def test_a_wrong_field_is_an_error_that_names_file_and_field(
    tmp_path, experiment, where, to, message
):
    file = tmp_path / "results.json"
    write_json(file, experiment)
    change(file, *where, to=to)
    with pytest.raises(ResultsError, match=message) as caught:
        read_json(file)
    assert str(file) in str(caught.value)


def test_fields_of_a_later_version_are_ignored(tmp_path, experiment):
    file = tmp_path / "results.json"
    write_json(file, experiment)
    change(file, "rows", 0, "summary", "new", to=1)
    change(file, "new", to=1)
    assert read_json(file) == experiment


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"null", b'"schema"', b"\xff\xfe"])
def test_what_is_no_result_at_all_is_an_error_that_names_the_file(tmp_path, content):
    file = tmp_path / "bad.json"
    file.write_bytes(content)
    with pytest.raises(ResultsError, match=r"bad\.json: "):
        read_json(file)


def test_a_file_that_is_not_there_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ResultsError, match=r"gone\.json: cannot be read: No such file"):
        read_json(tmp_path / "gone.json")


def test_versions_name_python_and_us():
    assert {"python", "ullage"} <= set(versions())
