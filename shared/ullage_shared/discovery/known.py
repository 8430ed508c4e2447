"""What is known of a source of servers, and what a look at it changes: pure.

    event                        what is known then
    names somebody               that, whole
    says that there is nobody    nobody: a file with an empty list, an SRV record of `.`
    names nobody                 as before, with a problem: a name without records, a list of
                                 entries that all are none. From the start on: nobody
    cannot be read               as before, with a problem

An answer without anybody is far more often a fault of whoever gives it than the end of all servers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from ullage_shared.discovery.listed import Found

_TOLD: Final = 3
"""Entries refused that are told one by one."""
_WORDS: Final = 200
"""Characters of each, and of why a source cannot be read: others may have written them."""


@dataclass(frozen=True, slots=True)
class Known:
    """A source as it was last read well, and what has been wrong since."""

    urls: tuple[str, ...] = ()
    problem: str = ""
    """Why what it says now does not hold, or which of its entries do not; empty: all is well."""
    holds: bool = False
    """Has it ever been read well? Else `urls` is empty for want of an answer."""


def after(known: Known, found: Found | str) -> Known:
    """What is known after a look that brought this; text: it could not be read, and why."""
    if isinstance(found, str):
        return replace(known, problem=brief(found))
    if found.urls or found.meant:
        return Known(found.urls, _refused(found), holds=True)
    kept = f"the {len(known.urls)} of before are kept" if known.urls else "nor did it before"
    said = f"it names nobody, {kept}"
    return replace(known, problem="; ".join(filter(None, (said, _refused(found)))))


def together(parts: Iterable[Known]) -> Known:
    """Several files as one source: it holds as soon as one of them does."""
    each = list(parts)
    return Known(
        merged(part.urls for part in each),
        "; ".join(part.problem for part in each if part.problem),
        holds=any(part.holds for part in each),
    )


def merged(lists: Iterable[Iterable[str]]) -> tuple[str, ...]:
    """All of them, each once, in order."""
    return tuple(dict.fromkeys(url for urls in lists for url in urls))


def brief(text: str) -> str:
    """As much of it as goes into a log line, in ASCII."""
    return text.encode("ascii", "backslashreplace").decode()[:_WORDS]


def _refused(found: Found) -> str:
    told = [brief(entry) for entry in found.refused[:_TOLD]]
    more = len(found.refused) - len(told)
    return "; ".join([*told, f"and {more} more"] if more else told)
