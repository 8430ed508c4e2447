"""Configuration: a TOML file with command-line flags laid over it, checked once, by name.

A configuration is a frozen `msgspec.Struct` whose fields carry `Meta(description=…)`: what the key
is, its unit, what more of it costs. Nonsense is refused, never clamped, in one line:

    window.span_s = -1.0: wanted a number > 0.0 (sidecar.toml)
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

Config = TypeVar("Config", bound=msgspec.Struct)

_PLAIN_WORDS: Final = {
    "float": "number",
    "int": "whole number",
    "str": "string",
    "bool": "boolean",
    "array": "list",
    "object": "table",
}


class ConfigError(Exception):
    """The operator's fault. The message names the key, its value, what was wanted, and where."""


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
    try:
        return msgspec.convert({**values, **flags}, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), {**values, **flags}, path, flags, kind)) from error


def _explain(
    problem: str,
    values: Any,
    path: Path | None,
    flags: Mapping[str, Any],
    kind: type[msgspec.Struct],
) -> str:
    """Say a `msgspec.ValidationError` in an operator's words."""
    what, _, where = problem.partition(" - at `$")
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", what, re.DOTALL)
    missing = re.fullmatch(r"Object missing required field `(.*)`", what)
    steps = re.findall(r"\.(\w+)|\[(\d+)\]", where.rstrip("`"))
    key = where.rstrip("`").lstrip(".")
    top = steps[0][0] if steps else ""
    origin = f"--{top.replace('_', '-')}" if top in flags else str(path or "defaults")
    if unknown or missing:
        field = (unknown or missing or [""])[1]
        shown = field if field.isprintable() else ascii(field)
        name = ".".join(filter(None, (key, shown)))
        return f"{name}: {'no such key' if unknown else 'is missing'} ({origin})"
    for name, index in steps:
        values = values[name] if name else values[int(index)]
    wanted = re.sub(r"^Expected ", "wanted a ", what)
    if what.startswith("Invalid enum value "):
        wanted = f"wanted {_choices(kind, steps)}"
    for technical, plain in _PLAIN_WORDS.items():
        wanted = re.sub(rf"`{technical}`", plain, wanted)
    wanted = wanted.split(", got ")[0]
    return f"{key} = {values!r}: {wanted} ({origin})"


def _choices(kind: Any, steps: Iterable[tuple[str, str]]) -> str:
    """What a key may be, where it is one of several: `mean or quantile`."""
    for name, _ in steps:
        kind = get_type_hints(kind)[name] if name else get_args(kind)[0]
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
