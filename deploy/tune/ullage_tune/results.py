"""An experiment's results as a file, and back.

    {"schema": 1, "slo": {…}, "settings": {…}, "versions": {…},
     "rows": [{"cell": {…}, "policy": "…", "seed": 0, "summary": {…}}, …]}

One row per line, so that two files can be told apart by `diff`.
JSON has no infinity: a figure of a summary that is infinite is the string "never", one that there
was nothing for is null. Unknown fields are ignored; one that is missing or of another kind is an
error that names it. Another schema is refused: its figures may mean something else.
"""

import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

import msgspec

from ullage_tune.grid import Measured
from ullage_tune.measure import Slo

SCHEMA: Final = 1
_NEVER: Final = "never"
_PACKAGES: Final = ("ullage", "vllm", "numpy", "torch")


class ResultsError(Exception):
    """A file that holds no results. The message names the file, the field, and what was wanted."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """All that there is to say of one."""

    slo: Slo
    settings: Mapping[str, str]
    """What was asked for, in words: name → value."""
    versions: Mapping[str, str]
    """Of what ran: package → version."""
    rows: tuple[Measured, ...]


def versions() -> Mapping[str, str]:
    """Of Python and of the packages that figures depend on, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write_json(path: Path, experiment: Experiment) -> None:
    """Write it, whole or not at all: a file that is there already stays until this one is ready."""
    write_rows(path, {"schema": SCHEMA, **msgspec.to_builtins(experiment)})


def write_rows(path: Path, raw: dict[str, Any]) -> None:
    """Write a document with `rows`, each of which has a `summary`, in the same manner."""
    for row in raw["rows"]:
        row["summary"] = _each(row["summary"], math.inf, _NEVER)
    partial = path.with_name(f"{path.name}.partial")
    rows = b",\n".join(map(msgspec.json.encode, raw.pop("rows")))
    head = msgspec.json.encode(raw).removesuffix(b"}")
    partial.write_bytes(head + b',"rows":[\n' + rows + b"\n]}\n")
    partial.replace(path)


def read_json(path: Path) -> Experiment:
    """Read what `write_json` wrote. Raises `ResultsError`."""
    try:
        raw = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise ResultsError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.DecodeError as error:
        raise ResultsError(f"{path}: not JSON: {error}") from error
    if not isinstance(raw, dict) or "schema" not in raw:
        raise ResultsError(f"{path}: schema: missing: wanted results of ullage-tune")
    if raw["schema"] != SCHEMA:
        raise ResultsError(f"{path}: schema = {raw['schema']!r}: wanted {SCHEMA}")
    rows = raw.get("rows")
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and isinstance(row.get("summary"), dict):
            row["summary"] = _each(row["summary"], _NEVER, math.inf)
    try:
        return msgspec.convert(raw, Experiment)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at `$.")
        raise ResultsError(f"{path}: {where.rstrip('`') or 'document'}: {what}") from error


def _each(summary: Mapping[str, Any], old: Any, new: Any) -> dict[str, Any]:
    def swap(value: Any) -> Any:
        return new if value == old else value

    return {
        name: [swap(v) for v in value] if isinstance(value, list | tuple) else swap(value)
        for name, value in summary.items()
    }
