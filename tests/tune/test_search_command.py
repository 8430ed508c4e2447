"""`ullage-tune search`, before a lab that makes its figures up."""

import json
import sys
import tomllib
from concurrent.futures.process import BrokenProcessPool

import pytest

from made_up_lab import MadeUpLab, bowl
from ullage_tune.__main__ import main
from ullage_tune.plan import LAB
from ullage_tune.search.study import DEFAULT

ARGV = ("search", "--workload", "chat", "--workload", "my.jsonl", "--way", "weighted")
ARGV += ("--trials", "30", "--seeds", "2")


@pytest.fixture(autouse=True)
def files(monkeypatch, tmp_path):
    """That the workload is there is looked up; what is in it, the made-up lab does not read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.jsonl").touch()


@pytest.fixture
def lab(monkeypatch):
    lab = MadeUpLab(bowl)
    monkeypatch.setitem(sys.modules, LAB, lab)
    return lab


def status_of(*argv):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    return stopped.value.code


def test_it_finds_checks_and_prints_what_to_paste(lab, capsys):
    assert status_of(*ARGV) == 0
    out = capsys.readouterr().out
    titles = [line for line in out.splitlines() if line.startswith("**")]
    assert titles == [
        "**Best on the draws of the search**",
        "**On seeds that the search has not seen**",
    ]
    assert "| all " in out
    advice = out.partition("Better than weighted as it is by default (what ships is least_wait):")[
        2
    ]
    tables = tomllib.loads(advice.partition("\n")[2])
    assert tables["window"]["span_s"] <= 2.0
    assert tables["choose"]["exponent"] >= 3.0


def test_the_best_is_checked_with_the_default_on_seeds_that_the_search_has_not_seen(lab, capsys):
    assert status_of(*ARGV, "--check-seeds", "6") == 0
    checks = [task for task in lab.made if task.seed >= 2]
    assert {task.seed for task in checks} == set(range(2, 8))
    assert len({task.policy for task in checks}) == 2
    assert len(checks) == 2 * 2 * 6
    first = lab.made.index(checks[0])
    assert lab.made[first:] == checks


def test_where_nothing_is_better_that_is_said_and_nothing_is_to_be_pasted(lab, capsys):
    lab.late = lambda make, task: 1.0
    assert status_of(*ARGV) == 0
    out = capsys.readouterr().out
    assert "no setting was, on the draws of the search." in out
    assert "[window]" not in out
    assert max(task.seed for task in lab.made) == 1


def test_what_is_better_by_luck_alone_is_told_to_be_no_better(lab, capsys):
    lab.late = lambda make, task: bowl(make, task) if task.seed < 2 else 1.0
    assert status_of(*ARGV) == 0
    out = capsys.readouterr().out
    assert "No better than" in out
    assert "TTFT p99 1.00 [1.00–1.00] times as much" in out
    assert "span_s =" not in out


def test_where_the_default_refuses_too_many_it_is_said_what_that_counts_for(lab, capsys):
    lab.late = lambda make, task: bowl(make, task) if make.sidecar or task.seed else None
    assert status_of(*ARGV) == 0
    out = capsys.readouterr().out
    assert "On 2 of the draws the default's TTFT p99 is never: too many are refused." in out


def test_trials_runs_and_verdict_are_written_and_can_be_shown(lab, capsys, tmp_path):
    file = tmp_path / "found.json"
    assert status_of(*ARGV, "--json", str(file)) == 0
    out = capsys.readouterr().out
    raw = json.loads(file.read_text())
    search = raw["search"]
    assert len(search["trials"]) == 31
    best = search["trials"][search["best"]]
    assert best["loss"] == min(t["loss"] for t in search["trials"] if not t["cut"])
    assert search["better"] is True
    assert search["gain"]["ratio"] < 0.6
    assert tomllib.loads(out.rpartition("keys):")[2]) == best["router"]
    assert raw["settings"]["way"] == "weighted"
    assert len(raw["rows"]) == len(lab.made)
    assert status_of("show", str(file)) == 0
    assert f"| {DEFAULT} " in capsys.readouterr().out


def test_the_way_that_ships_is_searched_unless_another_is_asked_for(lab, capsys):
    assert status_of("search", "--workload", "chat", "--trials", "1", "--seeds", "1") == 0
    out = capsys.readouterr().out
    assert "1 settings beside the default; 0 cut" in out
    assert "choose.temperature" in out


def test_only_the_classes_that_come_have_their_weights_searched(lab, capsys):
    lab.tokens = (100, 2_000)
    assert status_of(*ARGV) == 0
    head = capsys.readouterr().out.splitlines()[2]
    assert "| score.short | " in " ".join(head.split())
    assert "| score | " in " ".join(head.split())
    assert "score.long" not in head


@pytest.mark.parametrize("ended", [KeyboardInterrupt, BrokenProcessPool])
def test_a_search_that_ends_early_has_its_best_checked_and_told(lab, capsys, tmp_path, ended):
    lab.stop_after = {60: ended}
    file = tmp_path / "found.json"
    status = 130 if ended is KeyboardInterrupt else 1
    assert status_of(*ARGV, "--json", str(file)) == status
    out, err = capsys.readouterr()
    assert "settings were tried" in err
    assert "Better than" in out
    assert json.loads(file.read_text())["search"]["better"] is True


def test_a_second_ctrl_c_ends_the_check_and_what_was_found_is_written(lab, capsys, tmp_path):
    lab.stop_after = {60: KeyboardInterrupt, 65: KeyboardInterrupt}
    file = tmp_path / "found.json"
    assert status_of(*ARGV, "--json", str(file)) == 130
    out, err = capsys.readouterr()
    assert "is not checked" in err
    assert "Better" not in out
    assert json.loads(file.read_text())["search"]["better"] is None


def test_ctrl_c_before_the_default_has_run_is_no_fault(lab, capsys):
    lab.stop_after = {0: KeyboardInterrupt}
    assert status_of(*ARGV) == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert "ended before the default had run" in err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--way", "worst"], "argument --way: "),
        (["--for", "fun"], "argument --for: invalid choice: 'fun'"),
        (["--trials", "0"], "argument --trials: '0': wanted a whole number > 0"),
        (["--seeds", "x"], "argument --seeds: 'x': wanted a whole number > 0"),
        (["--check-seeds", "4"], "argument --check-seeds: '4': wanted 5 or more"),
        (["--load", "0"], "argument --load: '0': wanted a number > 0"),
        (["--json", "/no/such/f.json"], "--json /no/such/f.json: no such folder"),
        (["--workload", "unknown"], "--workload 'unknown': wanted a file"),
    ],
)
def test_nonsense_is_refused_by_its_flag_before_anything_runs(lab, capsys, argv, message):
    assert status_of(*ARGV, *argv) == 2
    assert message in capsys.readouterr().err
    assert lab.made == []


def test_without_vllm_the_command_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, LAB, None)  # An import that fails.
    assert status_of(*ARGV) == 1
    assert "vLLM's environment" in capsys.readouterr().err
