"""Configuration: a TOML file with command-line flags laid over it, checked once, by name.

A configuration is a frozen `msgspec.Struct` whose fields carry `Meta(description=…)`: what the key
is, its unit, what more of it costs. Nonsense is refused, never clamped, in one line:

    window.span_s = -1.0: wanted a number > 0.0 (sidecar.toml)
"""

import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from ullage_shared.address import without_password

Config = TypeVar("Config", bound=msgspec.Struct)
_FILLS: Final[tuple[object, ...]] = ("", 0, {})
"""One of them has the type that is wanted."""

_PLAIN_WORDS: Final = {
    "float": "number",
    "int": "whole number",
    "str": "string",
    "bool": "boolean",
    "array": "list",
    "object": "table",
}


class ConfigError(Exception):
    """The operator's fault. Each line names the key, its value, what was wanted, and where.

    What is wrong is said whole: mending one fault should not only bring the next to light.
    """

    def __init__(self, *faults: str) -> None:
        self.faults: Final = tuple(map(without_password, faults))
        """One line each, one at least."""
        super().__init__(*self.faults)

    def __str__(self) -> str:
        return "; ".join(self.faults)


@contextmanager
def at_once() -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Have several things tried before it is said, at the end, what is wrong with any of them."""
    faults: list[str] = []

    @contextmanager
    def each() -> Iterator[None]:
        try:
            yield
        except ConfigError as error:
            faults.extend(error.faults)

    yield each
    if faults:
        raise ConfigError(*faults)


def load(kind: type[Config], path: Path | None, flags: Mapping[str, Any]) -> Config:
    """Read `path` (None: no file), lay `flags` (top-level key → value) over it, check all of it."""
    values: dict[str, Any] = {}
    if path is not None:
        try:
            values = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise ConfigError(f"{path}: not TOML: {error}") from error
    values = deepcopy({**values, **flags})
    faults: list[str] = []
    mended: Counter[tuple[Step, ...]] = Counter()
    while True:
        try:
            config = msgspec.convert(values, kind)
        except msgspec.ValidationError as error:
            fault = _fault(str(error))
            where = fault.where
            # What we have left out may be missing then, and what we have filled in be wrong.
            if not any(where[:steps] in mended for steps in range(1, len(where) + 1)):
                faults.append(_explain(fault, values, path, flags, kind))
            if not _mend(fault, values, mended[where]):
                raise ConfigError(*faults) from error
            mended[where] += 1
        else:
            if faults:
                raise ConfigError(*faults)
            return config


Step = str | int
"""A key of a table, or the index of a list's element."""


class _Fault(NamedTuple):
    """What msgspec says of a value."""

    what: str
    where: tuple[Step, ...]
    """Of a key that is unknown or missing: its own place, not its table's."""
    unknown: bool = False
    missing: bool = False


def _fault(problem: str) -> _Fault:
    what, _, place = problem.partition(" - at `$")
    found = re.findall(r"\.(\w+)|\[(\d+)\]", place.rstrip("`"))
    where: tuple[Step, ...] = tuple(name or int(index) for name, index in found)
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL)
    missing = re.fullmatch(r"Object missing required field `(.*)`", what)
    named = unknown or missing
    if named:
        where = (*where, named[1])
    return _Fault(what, where, bool(unknown), bool(missing))


def _mend(fault: _Fault, values: Any, before: int) -> bool:
    """Have the next fault come to light: leave this value out, or where there must be one, put in
    another. `before`: how often that was tried. False: it is of no use.
    """
    if not fault.where or before > len(_FILLS):
        return False
    *tables, last = fault.where
    for step in tables:
        values = values[step]
    if fault.missing or isinstance(values, list):
        values[last] = deepcopy(_FILLS[before % len(_FILLS)])
    else:
        values.pop(last, None)
    return True


def _explain(
    fault: _Fault,
    values: Any,
    path: Path | None,
    flags: Mapping[str, Any],
    kind: type[msgspec.Struct],
) -> str:
    """Say it in an operator's words."""
    where = fault.where
    top = str(where[0]) if where else ""
    origin = f"--{top.replace('_', '-')}" if top in flags else str(path or "defaults")
    key = _written(where)
    if fault.missing:
        return f"{key}: is missing ({origin})"
    if fault.unknown:
        return f"{key}: no such key{_meant(where, kind)} ({origin})"
    for step in where:
        values = values[step]
    wanted = re.sub(r"^Expected ", "wanted a ", fault.what)
    if fault.what.startswith("Invalid enum value "):
        wanted = f"wanted {_choices(kind, where)}"
    for technical, plain in _PLAIN_WORDS.items():
        wanted = re.sub(rf"`{technical}`", plain, wanted)
    wanted = wanted.split(", got ")[0]
    return f"{key} = {values!r}: {wanted} ({origin})"


def _written(where: Sequence[Step]) -> str:
    """`engine[0].name`, whatever somebody calls a key."""
    shown = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step if step.isprintable() else ascii(step)}"
        for step in where
    )
    return shown.removeprefix(".")


def _meant(where: Sequence[Step], kind: type[msgspec.Struct]) -> str:
    """Which key was probably meant: one of nearly that name here, or of that name elsewhere."""
    if any(isinstance(step, int) for step in where):
        return ""
    *tables, name = map(str, where)
    known = [tuple(key.name.split(".")) for key in keys(kind)]
    beside = {path[len(tables)] for path in known if list(path[: len(tables)]) == tables}
    near = [".".join((*tables, close)) for close in get_close_matches(name, beside, n=1)]
    meant = near or [".".join(path) for path in known if path[-1] == name]
    return f", did you mean {' or '.join(meant[:2])}?" if meant else ""


def _choices(kind: Any, where: Iterable[Step]) -> str:
    """What a key may be, where it is one of several: `mean or quantile`."""
    for step in where:
        kind = get_type_hints(kind)[step] if isinstance(step, str) else get_args(kind)[0]
    told: list[str] = []
    for choice in get_args(kind) or (kind,):
        if get_origin(choice) is Literal:
            told += get_args(choice)
        elif choice is int:
            told.append("a whole number")
        elif choice is float:
            told.append("a number")
        elif isinstance(choice, type) and issubclass(choice, Enum):
            told += [member.value for member in choice]
        else:
            told.append(str(choice))
    return " or ".join(told)


@dataclass(frozen=True, slots=True)
class Key:
    """One configuration key, for tables and `--help`."""

    name: str
    default: object
    description: str


def keys(kind: type[msgspec.Struct], prefix: str = "") -> Iterator[Key]:
    """Every key of a configuration, tables flattened to `table.key`, in order of definition."""
    hints = get_type_hints(kind, include_extras=True)
    for field in msgspec.structs.fields(kind):
        name, hint = f"{prefix}{field.name}", hints[field.name]
        plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            yield from keys(plain, f"{name}.")
            continue
        default = field.default if field.default is not msgspec.NODEFAULT else None
        described = [m.description for m in get_args(hint)[1:] if isinstance(m, msgspec.Meta)]
        yield Key(name, default, next(filter(None, described), ""))
