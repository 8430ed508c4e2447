"""The example configurations are the code's, whole, and in order as they stand."""

import re

import pytest

import ullage_router.config
import ullage_shared.aggregator.config
import ullage_sidecar.config
import units
from install.examples import examples
from ullage_router.__main__ import main as router
from ullage_shared.aggregator.__main__ import main as aggregator
from ullage_shared.config import keys
from ullage_sidecar.__main__ import main as sidecar

COMMANDS = {"router.toml": router, "sidecar.toml": sidecar, "aggregator.toml": aggregator}
KINDS = {
    "router.toml": ullage_router.config.Config,
    "sidecar.toml": ullage_sidecar.config.Config,
    "aggregator.toml": ullage_shared.aggregator.config.Config,
}


def test_they_are_what_the_commands_print() -> None:
    shipped = {path.name: path.read_text() for path in (units.SHIPPED / "etc").glob("*.toml")}
    assert shipped == dict(examples()), "run `make docs`"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_they_are_in_order(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert COMMANDS[name](["check", str(units.SHIPPED / "etc" / name)]) == 0
    assert "is in order" in capsys.readouterr().out


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_key_is_there(name: str) -> None:
    shown = set(re.findall(r"^#?(\w+) = ", (units.SHIPPED / "etc" / name).read_text(), re.M))
    tables = {"engine": ullage_sidecar.config.EngineEntry} if name == "sidecar.toml" else {}
    wanted = {key.name.rpartition(".")[2] for key in keys(KINDS[name])} - tables.keys()
    for kind in tables.values():
        wanted |= {key.name for key in keys(kind)}
    assert shown == wanted


def test_no_example_says_where_it_was_written() -> None:
    nodes = re.findall(r"^#node = .*", "\n".join(examples().values()), re.M)
    assert sorted(nodes) == ['#node = "agg-01"', '#node = "gpu-01"']
