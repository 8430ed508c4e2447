"""A configuration as a TOML file that says of each key what it means, and its default.

    # How long, in seconds, a request waits at most; then 503. …
    #max_wait_s = 2.0

Rules
* Read again, it gives the same configuration; and with every `#key` uncommented, too.
* A key that has its default stands behind `#`: kept as a file, it follows the defaults of later
  versions. Of one that has not, the default is told.
"""

import json
import textwrap
from collections.abc import Iterator
from typing import Any, Final, get_args, get_type_hints

import msgspec

from ullage_shared.config import keys

_WIDTH: Final = 98


def printed(config: msgspec.Struct) -> str:
    """The whole file."""
    return "\n".join(_table(config, "")).lstrip("\n") + "\n"


def toml(value: object) -> str:
    """A value as TOML has it: text, number, boolean, or a list of these."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return f"[{', '.join(map(toml, value))}]"
    return repr(value)


def changed(config: msgspec.Struct, prefix: str = "") -> Iterator[tuple[str, object, object]]:
    """The keys that do not have their default, with value and default (`UNSET`: there is none)."""
    for field in msgspec.structs.fields(config):
        value, default = getattr(config, field.name), _default(field)
        if isinstance(value, msgspec.Struct):
            yield from changed(value, f"{prefix}{field.name}.")
        elif value != default:
            yield f"{prefix}{field.name}", value, default


def _table(table: msgspec.Struct, name: str) -> Iterator[str]:
    """Keys first: those behind the head of another table would be that one's."""
    told = {key.name: key.description for key in keys(type(table))}
    fields = msgspec.structs.fields(table)
    tables = [field for field in fields if _inner(table, field) is not None]
    for field in fields:
        if field not in tables:
            yield from _key(table, field, told[field.name])
    for field in tables:
        value, inside = getattr(table, field.name), f"{name}{field.name}"
        if isinstance(value, msgspec.Struct):
            yield from ("", f"[{inside}]")
            yield from _table(value, f"{inside}.")
        else:
            for each in value:
                yield from ("", *_comment(told[field.name]), f"[[{inside}]]")
                yield from _table(each, f"{inside}.")


def _key(table: msgspec.Struct, field: Any, meaning: str) -> Iterator[str]:
    value, default = getattr(table, field.name), _default(field)
    yield ""
    yield from _comment(meaning)
    if value == default:
        yield f"#{field.name} = {toml(value)}"
        return
    if default is not msgspec.UNSET:
        yield f"# default: {toml(default)}"
    yield f"{field.name} = {toml(value)}"


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(text, _WIDTH, break_on_hyphens=False)]


def _default(field: Any) -> object:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return msgspec.UNSET


def _inner(table: msgspec.Struct, field: Any) -> type[msgspec.Struct] | None:
    """What a key holds that is a table, or a list of them."""
    hint = get_type_hints(type(table))[field.name]
    for kind in (hint, *get_args(hint)):
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return kind
    return None
