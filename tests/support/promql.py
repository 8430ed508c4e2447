"""What an expression of PromQL asks for, as far as it can be read without a parser."""

import re
from collections.abc import Iterator
from typing import NamedTuple

_METRIC = re.compile(r"\b(?P<name>(?:ullage|process)_\w+)(?:\{(?P<matchers>[^}]*)\})?")
_MATCHER = re.compile(r'(?P<label>\w+)\s*(?P<how>=~|!~|!=|=)\s*"(?P<value>[^"]*)"')


class Matcher(NamedTuple):
    """`label="value"`; a pattern of words means each of them."""

    label: str
    values: tuple[str, ...]
    """None where a variable or a pattern is meant."""


class Asked(NamedTuple):
    """One metric of an expression."""

    name: str
    matchers: tuple[Matcher, ...]


def asked_for(expression: str) -> Iterator[Asked]:
    """Every metric of ours, with what its labels must be."""
    without_recorded = re.sub(r"\w+:ullage_\w+:\w+", "", expression)
    for found in _METRIC.finditer(without_recorded):
        matchers = [
            Matcher(m["label"], _words(m["value"]))
            for m in _MATCHER.finditer(found["matchers"] or "")
        ]
        yield Asked(found["name"], tuple(matchers))


def _words(value: str) -> tuple[str, ...]:
    words = tuple(value.split("|"))
    return words if all(re.fullmatch(r"[\w-]+", word) for word in words) else ()
