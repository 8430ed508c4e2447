"""The README says what the code does."""

import re
from pathlib import Path

import pytest

import tables
import ullage_router.__main__
import ullage_router.cli
import ullage_shared.aggregator.__main__
import ullage_sidecar.__main__
import ullage_sidecar.config

COMMANDS = [ullage_router.__main__, ullage_sidecar.__main__, ullage_shared.aggregator.__main__]
README = Path(__file__).parents[2] / "README.md"


def test_every_table_in_the_readme_is_what_the_code_says():
    text = README.read_text(encoding="utf-8")
    assert (
        set(re.findall(r"<!-- table: ([a-z ]+) -->", text))
        == tables.TABLES.keys() | tables.MEASURED
    )
    assert tables.filled(text) == text, "run `make docs`"


@pytest.mark.parametrize("name", sorted(tables.TABLES))
def test_every_key_and_metric_is_described(name):
    rows = [row.strip("| \n").split(" | ") for row in tables.TABLES[name]().splitlines()[2:]]
    assert rows
    assert [row[0] for row in rows if len(row[-1]) < 10] == []


def test_every_event_that_the_code_logs_is_described_and_no_other():
    described = {(event, who) for who, known in tables.EVENTS.items() for event in known}
    logged = tables.events()
    assert described == logged.keys()
    assert all(logged.values()), "an event without a level"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_readme_shows_only_flags_that_exist(command, capsys):
    name = command.__name__.split(".")[-2].replace("_", "-")
    name = name if name.startswith("ullage-") else f"ullage-{name}"
    shown = {}
    for line in README.read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name} "):
            word = line.split()[1]
            of = word if word in command.COMMANDS else ""
            shown.setdefault(of, set()).update(re.findall(r"--[a-z-]+", line))
    assert shown
    for subcommand, flags in shown.items():
        with pytest.raises(SystemExit):
            command.main([*filter(None, [subcommand]), "--help"])
        offered = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
        assert flags <= offered, subcommand


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_subcommand_and_the_exit_status(command, capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    said = capsys.readouterr().out
    assert "exit status: 0 " in said
    for subcommand in command.COMMANDS:
        assert re.search(rf"^  {subcommand}\b", said, re.M), subcommand
        with pytest.raises(SystemExit) as ended:
            command.main([subcommand, "--help"])
        assert ended.value.code == 0
        assert "exit status" in capsys.readouterr().out, subcommand


def test_the_makefile_has_the_targets_that_the_readme_names():
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README.read_text(encoding="utf-8"), re.M))
    makefile = (README.parent / "Makefile").read_text(encoding="utf-8")
    assert named
    assert named <= set(re.findall(r"^([a-z-]+):", makefile, re.M))


def test_every_configuration_in_the_readme_is_accepted(tmp_path):
    blocks = re.findall(r"```toml\n# (router|sidecar)\.toml\n(.*?)```", README.read_text(), re.S)
    assert {command for command, _ in blocks} == {"router", "sidecar"}
    for command, text in blocks:
        file = tmp_path / f"{command}.toml"
        file.write_text(text)
        if command == "router":
            arguments = ullage_router.cli.parser().parse_args(["--config", str(file)])
            assert ullage_router.cli.configure(arguments).sidecars
        else:
            assert ullage_sidecar.config.read(file, {}).engine
