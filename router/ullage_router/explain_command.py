"""`ullage-router explain`: who would get this request now, and why, told in words.

    ullage-router explain --model llama --prompt 'Tell me of ullage.'
    gpu-02/a would get it: drawn among the shortest waits: nobody knows how the request begins, …

Nothing is sent to a replica; a running router is asked, at its `admin`. Its `POST /explain` has
all the figures, which `--json` prints.

Exit status: 0 somebody would get it; 1 nobody would, or no router answers; 2 wrong usage, or a
request that the router would refuse.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from ullage_router.admin_client import AdminError, admin_flag, fetch
from ullage_router.core.decision import Why
from ullage_shared import start
from ullage_shared.plain import plain

_COMMAND: Final = "ullage-router explain"
_GIVEN, _NOBODY, _REFUSED = 0, 1, 2
_OK: Final = 200
_STDIN: Final = Path("-")
_FIGURES: Final = (
    "replica",
    "wait_s",
    "uncached_tokens",
    "score",
    "effective",
    "trend",
    "odds",
)
"""Of each candidate, as the page calls them."""
_CERTAIN: Final = 0.99
"""Odds from which on no chance is worth telling."""

WORDS: Final[Mapping[str, str]] = {
    Why.SCORE: "no key settles it, so it is chosen among those with headroom",
    Why.OWN_COUNTS: "no sidecar speaks for anybody, so by what this router has sent there itself",
    Why.AFFINITY: "it knows how the request begins",
    Why.AFFINITY_BY_CHANCE: "the replica of its key has little room, and keeps it by chance",
    Why.NEW_KEY: "nobody knows how the request begins, and its key prefers this one",
    Why.WAIT: "drawn among the shortest waits: nobody knows how the request begins, or only those "
    "that have more to do",
    Why.KEY_MOVED: "the replica of its key is full or gone, and the key moves along",
    Why.KEY_SPILLED: "the replica of its key has little room; the key stays where it is",
    Why.HOT_KEY: "its key comes so often that several replicas share it",
    Why.FULL: "replicas serve, and none has headroom: it would wait in the queue, or get 503",
    Why.NO_REPLICA: "no replica is serving: it would get 503 at once",
}


def main(words: Sequence[str]) -> int:
    """Ask, and tell. Returns the exit status."""
    command = _parser()
    options = command.parse_args(words)
    if options.file is not None and options.model is not None:
        command.error("--model and --file: the body names its model")
    try:
        status, page = fetch(options.admin, "/explain", _body(options), options.headers)
    except AdminError as error:
        return _fault(str(error), _NOBODY)
    except OSError as error:
        return _fault(f"{error.filename}: {error.strerror}", _REFUSED)
    except (UnicodeError, orjson.JSONEncodeError):
        return _fault("model or prompt is not text in UTF-8", _REFUSED)
    try:
        given = _tell(status, page, as_json=options.json)
        sys.stdout.flush()
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__} {error}"
        return _fault(f"what answers at {options.admin} is another version: {why}", _NOBODY)
    except OSError as error:
        seen = start.unread(error)
        return _GIVEN if seen else _fault(f"standard output: {error.strerror}", _NOBODY)
    return given


def _tell(status: int, page: bytes, *, as_json: bool) -> int:
    """Raises whatever where it is no such page; `OSError`: nobody takes what is told."""
    content = orjson.loads(page)
    if as_json:
        sys.stdout.write(page.decode())
    if status != _OK:
        return _fault(content["error"]["message"], _REFUSED if status < 500 else _NOBODY)
    rows = [] if as_json else [f"{row}\n" for row in told(content)]
    sys.stdout.writelines(rows)
    return _NOBODY if content["replica"] is None else _GIVEN


def _fault(why: str, status: int) -> int:
    sys.stderr.write(f"{_COMMAND}: {plain(why)}\n")
    return status


def _parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(
        allow_abbrev=False,
        prog=_COMMAND,
        description="Asks a running router who would get a request now, and why. Nothing is sent.",
        epilog="examples:\n"
        "  ullage-router explain --model llama --prompt 'Tell me of ullage.'\n"
        "  ullage-router explain --file body.json --header 'x-session-id: 7'\n"
        "exit status: 0 somebody would get it, 1 nobody would or no router answers,\n"
        "  2 wrong usage, or a request that the router would refuse",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    admin_flag(command)
    add = command.add_argument
    add("--model", metavar="NAME", help="the model that the request names")
    what = command.add_mutually_exclusive_group().add_argument
    what("--prompt", metavar="TEXT|-", help="a chat's first message; -: standard input")
    what("--file", type=Path, metavar="FILE|-", help="the whole body, as a client sends it")
    add(
        "--header",
        dest="headers",
        type=_header,
        action="append",
        default=[],
        metavar="NAME:VALUE",
        help="as a client sends it; may be repeated",
    )
    add("--json", action="store_true", help="print the router's page as it is")
    return command


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r}: wanted NAME:VALUE")
    return name.strip(), value.strip()


def _body(options: argparse.Namespace) -> bytes:
    """The request's body. Raises `OSError`."""
    if options.file is not None:
        return sys.stdin.buffer.read() if options.file == _STDIN else options.file.read_bytes()
    text = sys.stdin.read() if options.prompt == "-" else options.prompt or ""
    named = {} if options.model is None else {"model": options.model}
    return orjson.dumps({**named, "messages": [{"role": "user", "content": text}]})


def told(page: Mapping[str, Any]) -> Iterator[str]:
    """The page in words, a line each."""
    return map(plain, _told(page))


def _told(page: Mapping[str, Any]) -> Iterator[str]:
    replica, why = page["replica"], WORDS.get(page["why"], page["why"])
    yield (
        f"{replica} would get it: {why}{_chance(page['candidates'], replica)}."
        if replica
        else f"Nobody would get it: {why}."
    )
    yield ""
    yield f"The request: {_asked(page['request'])}."
    if page["candidates"]:
        yield ""
        yield from _table(page["candidates"], replica)
    if page["left_out"]:
        yield ""
        yield "Left out:"
        width = max(map(len, page["left_out"]))
        for name, reason in sorted(page["left_out"].items()):
            yield f"  {name:<{width}}  {reason}"


def _chance(candidates: Iterable[Mapping[str, Any]], chosen: str | None) -> str:
    """How likely the chosen one was, where waits were drawn from."""
    for candidate in candidates:
        if candidate["replica"] == chosen and candidate.get("wait_s") is not None:
            odds = candidate["odds"]
            return f" (drawn at {100.0 * odds:.2g} %)" if odds < _CERTAIN else ""
    return ""


def _asked(request: Mapping[str, Any]) -> str:
    words = [f"about {request['prompt_tokens']} prompt tokens ({request['size']})"]
    if request["model"] is not None:
        words.append(f"model {request['model']}")
    if request["max_tokens"] is not None:
        words.append(f"at most {request['max_tokens']} tokens of answer")
    if request["priority"]:
        words.append(f"priority {request['priority']}")
    keys, known = request["cache_keys"], request["cache_keys_known"]
    words.append(f"{known} of its {keys} cache keys known" if keys else "no cache key")
    if request["cache_key_per_s"] is not None:
        words.append(f"the longest known one comes {request['cache_key_per_s']:g} times a second")
    return ", ".join(words)


def _table(candidates: Iterable[Mapping[str, Any]], chosen: str | None) -> Iterator[str]:
    """The candidates, the likeliest first, `>` before the chosen one, `*` behind a home."""
    rows: list[tuple[str, ...]] = [("", *_FIGURES)]
    for candidate in candidates:
        cells = [_cell(candidate.get(key)) for key in _FIGURES]
        cells[0] += " *" if candidate["home"] else ""
        rows.append((">" if candidate["replica"] == chosen else "", *cells))
    shown = [i for i in range(len(rows[0])) if i < 2 or any(row[i] != "-" for row in rows[1:])]
    widths = {i: max(len(row[i]) for row in rows) for i in shown}
    for row in rows:
        cells = [row[i].ljust(widths[i]) if i < 2 else row[i].rjust(widths[i]) for i in shown]
        yield "  ".join(cells).rstrip()
    if any(row[1].endswith(" *") for row in rows[1:]):
        yield "* knows how the request begins"


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
