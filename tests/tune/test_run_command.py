"""`ullage-tune run` and `show`, before a lab that measures nothing."""

import io
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest
from rich.console import Console

from synthetic_runs import measured
from ullage_tune.__main__ import main
from ullage_tune.grid import Cell, Measured
from ullage_tune.measure import Slo
from ullage_tune.plan import LAB, Plan, PlanError, Task
from ullage_tune.progress import Progress
from ullage_tune.results import read_json

POLICIES = ("ullage", "least_in_flight", "round_robin")


class StubLab:
    """Makes runs up. `stop_after`: there Ctrl-C is pressed."""

    plan: Plan
    stop_after: int | None = None

    def tasks(self, plan: Plan) -> Sequence[Task]:
        self.plan = plan
        for name in plan.policies:
            if name not in POLICIES:
                raise PlanError(f"--policy {name}: wanted one of {', '.join(POLICIES)}")
        return [
            Task(Cell(workload, plan.routers, load=load), policy, seed)
            for workload in plan.workloads
            for load in plan.loads
            for seed in range(plan.seeds)
            for policy in plan.policies or POLICIES
        ]

    def run(self, plan: Plan, tasks: Sequence[Task]) -> Iterator[Measured]:
        for done, task in enumerate(tasks):
            if done == self.stop_after:
                raise KeyboardInterrupt
            yield measured(*task, requests=20)


@pytest.fixture
def lab(monkeypatch):
    lab = StubLab()
    monkeypatch.setitem(sys.modules, LAB, lab)
    return lab


def status_of(*argv: str) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    return stopped.value.code


def test_a_run_prints_a_table_for_each_cell_and_then_the_bar(lab, capsys):
    assert status_of("run", "--workload", "chat", "--load", "0.85,0.5", "--seeds", "2") == 0
    out = capsys.readouterr().out
    titles = [line for line in out.splitlines() if line.startswith("**")]
    assert titles == ["**chat, 50% load**", "**chat, 85% load**", "**The bar, cell by cell**"]


def test_every_flag_reaches_the_plan(lab, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for workload in ("a", "b.jsonl"):
        (tmp_path / workload).touch()
    argv = "run --workload a --workload b.jsonl --workload a --policy ullage --policy round_robin"
    argv += " --replicas 8 --routers 4 --load 1.1,0.5 --seeds 1 --requests 30 --slo-ttft 2"
    argv += " --slo-tpot 0.05 --jobs 3"
    assert status_of(*argv.split()) == 0
    assert lab.plan == Plan(
        engine="4xh100-70b",
        scenarios=("plain",),
        workloads=("a", "b.jsonl"),
        policies=("ullage", "round_robin"),
        replicas=8,
        routers=4,
        loads=(0.5, 1.1),
        seeds=1,
        requests=30,
        slo=Slo(2.0, 0.05),
        jobs=3,
    )


def test_results_and_report_are_written_and_shown_again_alike(lab, capsys, tmp_path):
    file, folder = tmp_path / "r.json", tmp_path / "new" / "report"
    argv = ("--workload", "chat", "--seeds", "2", "--json", str(file), "--report", str(folder))
    assert status_of("run", *argv) == 0
    out = capsys.readouterr().out
    assert f"report: {folder / 'report.html'}" in out
    assert (folder / "report.html").stat().st_size > 0
    experiment = read_json(file)
    assert experiment.settings["loads"] == "85%"
    assert len(experiment.rows) == 6
    assert status_of("show", str(file)) == 0
    assert capsys.readouterr().out == out.partition("report: ")[0]


def test_ctrl_c_shows_and_writes_what_can_be_compared(lab, capsys, tmp_path):
    file = tmp_path / "r.json"
    lab.stop_after = 5  # Of six: the second seed lacks a policy.
    assert status_of("run", "--workload", "chat", "--seeds", "2", "--json", str(file)) == 130
    out, err = capsys.readouterr()
    assert "interrupted: 3 of 6 runs can be compared" in err
    assert "Medians over 1 seed." in out
    assert {row.seed for row in read_json(file).rows} == {0}


def test_ctrl_c_before_anything_is_done_is_no_fault(lab, capsys):
    lab.stop_after = 0
    assert status_of("run", "--workload", "chat") == 130
    assert capsys.readouterr().out == ""


def test_strict_tells_a_missed_bar_by_the_status(lab):
    worse = ("run", "--workload", "chat", "--seeds", "2", "--policy", "ullage")
    assert status_of(*worse, "--strict") == 0  # Nobody to be worse than.
    lab.run = lambda plan, tasks: iter(
        Measured(task.cell, task.policy, task.seed, measured(*swap(task)).summary) for task in tasks
    )

    def swap(task: Task) -> Task:
        return task._replace(policy="round_robin" if task.policy == "ullage" else "ullage")

    assert status_of(*worse, "--policy", "round_robin", "--strict") == 1
    assert status_of(*worse, "--policy", "round_robin") == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["run"], "--workload"),
        (
            ["run", "--workload", "a", "--load", "0"],
            "'0': wanted a number > 0, or several like",
        ),
        (["run", "--workload", "a", "--load", "0.5,"], "'': wanted a number > 0"),
        (["run", "--workload", "a", "--load", "inf"], "'inf': wanted a number > 0"),
        (["run", "--workload", "a", "--seeds", "0"], "'0': wanted a whole number > 0"),
        (["run", "--workload", "a", "--seeds", "1.5"], "'1.5': wanted a whole number > 0"),
        (["run", "--workload", "a", "--slo-ttft", "nan"], "'nan': wanted a number > 0"),
        (["run", "--workload", "a", "--json", "/no/such/r.json"], "no such folder: /no/such"),
        (["run", "--workload", "a", "--json", "/tmp"], "--json /tmp: a folder; wanted a file"),
        (["run", "--workload", "a", "--report", "/dev/null"], "--report /dev/null: File exists"),
        (["run", "--workload", "chat", "--policy", "x"], "--policy 'x': wanted one of ullage,"),
        (["show", "/no/such.json"], "/no/such.json: cannot be read: No such file"),
        (["fly"], "invalid choice: 'fly'"),
        ([], "COMMAND"),
    ],
)
def test_nonsense_is_refused_with_status_2_before_anything_runs(lab, capsys, argv, message):
    lab.stop_after = 0
    assert status_of(*argv) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "search"])
@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--workload", "none"], "--workload 'none': wanted a file, or one of short"),
        (["--workload", "chat", "--scenario", "x"], "--scenario 'x': wanted one of plain, slow"),
        (["--workload", "chat", "--engine", "x"], "--engine 'x': wanted a file, or one of"),
    ],
)
def test_names_are_looked_up_before_vllm_is_loaded(command, flags, message, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, LAB, None)  # An import that fails.
    assert status_of(command, *flags) == 2
    assert message in capsys.readouterr().err


def test_without_vllm_the_command_says_what_it_needs(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, LAB, None)  # An import that fails.
    assert status_of("run", "--workload", "chat") == 1
    assert "vLLM's environment" in capsys.readouterr().err


def test_a_reader_that_has_had_enough_is_no_fault(tmp_path, lab):
    file = tmp_path / "r.json"
    status_of("run", "--workload", "chat", "--seeds", "5", "--json", str(file))
    shown = subprocess.run(
        f"{sys.executable} -m ullage_tune show {file} | head -1",
        shell=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == "**chat, 85% load**\n"
    assert shown.stderr == ""


@pytest.mark.parametrize(("total", "lines"), [(3, 3), (10, 10), (40, 10)])
def test_off_a_terminal_progress_is_a_line_for_each_tenth(total, lines):
    file = io.StringIO()
    row = measured(Cell("chat"), "ullage", 7, requests=1)
    with Progress(Console(file=file), total) as progress:
        for _ in range(total):
            progress.done(row)
    printed = file.getvalue().splitlines()
    assert len(printed) == lines
    assert printed[-1] == f"{total} of {total}: chat, 100% load: ullage, seed 7"


def test_on_a_terminal_progress_is_a_bar_that_leaves_nothing_behind():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120)
    row = measured(Cell("a[b]"), "ullage", 7, requests=1)
    with Progress(console, 2) as progress:
        progress.done(row)
        progress.done(row)
    text = file.getvalue()
    assert "a[b], 100% load: ullage, seed 7" in text
    assert "2/2" in text
    assert text.endswith("\x1b[2K")  # The line is wiped.


def test_what_need_not_be_run_counts_no_more():
    file = io.StringIO()
    row = measured(Cell("chat"), "ullage", 7, requests=1)
    with Progress(Console(file=file), 10) as progress:
        progress.done(row)
        progress.spared(8)
        progress.done(row)
    assert [line.partition(":")[0] for line in file.getvalue().splitlines()] == [
        "1 of 10",
        "2 of 2",
    ]


def test_no_runs_are_no_progress_and_no_fault():
    with Progress(Console(file=io.StringIO()), 0):
        pass
