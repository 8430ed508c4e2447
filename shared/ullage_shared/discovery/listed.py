"""A list of servers in Prometheus' file_sd form, read: pure.

    - targets: ["gpu-01:9400", "gpu-02:9400"]
      labels: {rack: r1}

A target is `host:port`, reached over `http`, or over what the label `__scheme__` of its group says;
or a whole URL. Other labels say nothing to us.

Rules
* What is no such list is refused whole: the list of before holds.
* A target that is none is refused by name, and costs no other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from ullage_shared.address import AddressError, parse_base_url

_SCHEME: Final = "__scheme__"
_WANTED: Final = "wanted a list of {targets: [host:port, …]}"


@dataclass(frozen=True, slots=True)
class Found:
    """What one look at a source has brought."""

    urls: tuple[str, ...]
    """In normal form, each once, in order."""
    refused: tuple[str, ...] = ()
    """A line for each entry that is none."""
    meant: bool = False
    """Does it say itself that it names nobody, rather than just not name anybody?"""


class ListError(ValueError):
    """It is no list of servers. The message says why."""


def listed(content: bytes, *, yaml: bool) -> Found:
    """Read a file's content. Raises `ListError`."""
    groups = _yaml(content) if yaml else _json(content)
    if not isinstance(groups, list):
        raise ListError(_WANTED)
    urls: dict[str, None] = {}
    refused = []
    for at, target in _targets(groups):
        try:
            urls[parse_base_url(target)[0]] = None
        except AddressError as error:
            refused.append(f"{at}: {error}")
    return Found(tuple(urls), tuple(refused), meant=not urls and not refused)


def _targets(groups: list[object]) -> Iterator[tuple[str, str]]:
    """Where each target stands, and its URL."""
    for number, group in enumerate(groups):
        targets = group.get("targets") if isinstance(group, dict) else None
        if not isinstance(group, dict) or not isinstance(targets, list):
            raise ListError(f"[{number}]: {_WANTED}")
        labels = group.get("labels") or {}
        if not isinstance(labels, dict):
            raise ListError(f"[{number}].labels: wanted a table")
        scheme = labels.get(_SCHEME, "http")
        for index, target in enumerate(targets):
            if not isinstance(target, str):
                raise ListError(f"[{number}].targets[{index}]: wanted a string, host:port")
            url = target if "://" in target else f"{scheme}://{target}"
            yield f"[{number}].targets[{index}]", url


def _json(content: bytes) -> object:
    try:
        return msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ListError(f"not JSON: {error}") from error


def _yaml(content: bytes) -> object:
    import yaml  # Whoever lists nobody in YAML need not wait for it.

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # In C where there is one.
    try:
        return yaml.load(content, Loader=loader)  # noqa: S506  Both make nothing but plain values.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ListError(f"not YAML: {' '.join(str(error).split())}") from error
