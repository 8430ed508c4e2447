"""The README's tables of keys and metrics, written from the code.

Usage: tables.py --write README.md
"""

import argparse
import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client import Metric

import ullage_router.config
import ullage_router.log_events
import ullage_shared.aggregator.config
import ullage_shared.aggregator.log_events
import ullage_shared.log_events
import ullage_sidecar.config
import ullage_sidecar.log_events
from exposed import aggregator_families, router_families, sidecar_families
from ullage_router.core.decision import Why
from ullage_shared.config import keys
from ullage_shared.snapshot import Snapshot

_MARK: Final = re.compile(r"<!-- table: (?P<name>[a-z ]+) -->\n.*?<!-- end -->", re.DOTALL)


def key_table(kind: type[msgspec.Struct], prefix: str = "") -> str:
    """Every key of a configuration."""
    rows = []
    for key in keys(kind):
        default = "" if key.default is None else f"`{_toml(key.default)}`"
        rows.append((f"`{prefix}{key.name}`", default, key.description))
    return _table(("key", "default", "meaning"), rows)


def metric_table(families: Iterable[Metric]) -> str:
    """Every metric family of a process."""
    rows = []
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = ", ".join(f"`{label}`" for label in getattr(family, "_labelnames", ()))
        rows.append((f"`{name}`", family.type, labels, family.documentation))
    return _table(("metric", "type", "labels", "meaning"), rows)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value).replace("()", "[]")


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines
    )


def _sidecar_keys() -> str:
    engine = key_table(ullage_sidecar.config.EngineEntry, "engine[].")
    return key_table(ullage_sidecar.config.Config) + engine.split("\n", 2)[2]


def _reasons() -> str:
    """Every `Why`, with what stands below it in the source."""
    tree = ast.parse(inspect.getsource(Why))
    (enum,) = tree.body
    assert isinstance(enum, ast.ClassDef)
    rows = []
    for member, below in pairwise(enum.body):
        if (
            isinstance(member, ast.Assign)
            and isinstance(member.value, ast.Constant)
            and isinstance(below, ast.Expr)
            and isinstance(below.value, ast.Constant)
        ):
            rows.append((f"`{member.value.value}`", " ".join(str(below.value.value).split())))
    assert len(rows) == len(Why)
    return _table(("why", "meaning"), rows)


def _snapshot() -> str:
    """Every field of `Snapshot`, with what stands below it in the source."""
    (struct,) = ast.parse(inspect.getsource(Snapshot)).body
    assert isinstance(struct, ast.ClassDef)
    rows = []
    for field, below in pairwise(struct.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            assert isinstance(below, ast.Expr), field.target.id
            assert isinstance(below.value, ast.Constant)
            rows.append((f"`{field.target.id}`", " ".join(str(below.value.value).split())))
    assert len(rows) == len(Snapshot.__struct_fields__)
    return _table(("field", "meaning"), rows)


def _events() -> str:
    """Every event of the log, with its levels as they stand in the source."""
    logged = events()
    rows = [
        (
            f"`{event}`",
            "several" if who == "shared" else who,
            ", ".join(sorted(logged[event, who])),
            meaning,
        )
        for who, known in EVENTS.items()
        for event, meaning in known.items()
    ]
    return _table(("event", "logged by", "level", "meaning"), rows)


EVENTS: Final = {
    "router": ullage_router.log_events.EVENTS,
    "sidecar": ullage_sidecar.log_events.EVENTS,
    "aggregator": ullage_shared.aggregator.log_events.EVENTS,
    "shared": ullage_shared.log_events.EVENTS,
}
"""By the package that logs them."""
_LEVELS: Final = ("debug", "info", "warning", "error")
_MADE_ELSEWHERE: Final = {
    "request": {"info"},
    "warm_up": {"info", "warning"},
    "replica_state": {"info", "warning"},
    "not_http": {"warning"},
    "log_lines_dropped": {"warning"},
    "message": {"any"},
}
"""Levels of lines that are not made where they are logged."""


def events() -> dict[tuple[str, str], set[str]]:
    """The levels of every event that the code logs, by event and package."""
    found: dict[tuple[str, str], set[str]] = {}
    root = Path(__file__).parents[2]
    aggregator = root / "shared" / "ullage_shared" / "aggregator"
    for who in EVENTS:
        folder = aggregator if who == "aggregator" else root / who
        for path in folder.rglob("*.py"):
            if who == "shared" and path.is_relative_to(aggregator):
                continue
            for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(call, ast.Call) or not call.args:
                    continue
                event, level = _event_in(call), _called(call)
                if event is not None:
                    found.setdefault((event, who), set(_MADE_ELSEWHERE.get(event, ())))
                inner = call.args[0]
                if level in _LEVELS and isinstance(inner, ast.Call):
                    inside = _event_in(inner)
                    if inside is not None:
                        found.setdefault((inside, who), set()).add(level)
    return found


def _event_in(call: ast.Call) -> str | None:
    """The event of `line("event", …)`."""
    if _called(call) != "line" or not call.args or not isinstance(call.args[0], ast.Constant):
        return None
    return str(call.args[0].value)


def _called(call: ast.Call) -> str:
    return getattr(call.func, "id", getattr(call.func, "attr", ""))


TABLES: Final[dict[str, Callable[[], str]]] = {
    "router keys": lambda: key_table(ullage_router.config.Config),
    "reasons": _reasons,
    "sidecar keys": _sidecar_keys,
    "snapshot": _snapshot,
    "log lines": _events,
    "aggregator keys": lambda: key_table(ullage_shared.aggregator.config.Config),
    "router metrics": lambda: metric_table(router_families()),
    "sidecar metrics": lambda: metric_table(sidecar_families()),
    "aggregator metrics": lambda: metric_table(aggregator_families()),
}


MEASURED: Final = frozenset({"conformance", "versions"})
"""Tables that their own command writes, from what it measured."""


def filled(readme: str) -> str:
    """The README with every table as the code has it."""

    def table(mark: re.Match[str]) -> str:
        name = mark["name"]
        return (
            mark[0] if name in MEASURED else f"<!-- table: {name} -->\n{TABLES[name]()}<!-- end -->"
        )

    return _MARK.sub(table, readme)


def main() -> int:
    """Write the tables into a file."""
    arguments = argparse.ArgumentParser(description="write a README's tables from the code")
    arguments.add_argument("--write", type=Path, required=True, metavar="FILE")
    path: Path = arguments.parse_args().write
    path.write_text(filled(path.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
