"""Reads recorded traffic: Mooncake's JSON lines and Azure's CSV. The file's first line tells which.

* **Mooncake** (kvcache-ai/Mooncake, FAST'25): `{"timestamp": ms, "input_length": tokens,
  "output_length": tokens, "hash_ids": [...]}`, one id for each 512 tokens of the prompt, the last
  for what is left. A segment is such a block, so equal ids are equal tokens. Requests of one
  timestamp came within one tick of the recorder's clock, nobody knows in which order: they are
  spread evenly over it, in the file's order. The tick is the median gap between two timestamps, or
  the gap to the next one if that is less; in a file with one timestamp only they come at once.
* **Azure** (AzurePublicDataset, LLM inference 2023 and later): a header with `TIMESTAMP`,
  `ContextTokens`, `GeneratedTokens` and perhaps others, which are ignored. Prompts have no known
  prefix: one segment each, and no two alike.

Rules: a line that cannot be read is an error that names file, line and field; nothing is dropped in
silence. Requests that are too long for a server are left out, and `source` says how many. An answer
of 0 tokens is read as 1, the least there is, and counted there too. Empty lines are none. Lines out
of order are put in order. The first request that is kept comes at 0.
"""

import csv
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import groupby, pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Final, NamedTuple

import msgspec
from msgspec import Meta

from ullage_tune.workload import Request, Segment, Workload

BLOCK: Final = 512
"""Tokens behind one of Mooncake's ids."""
MOST_TOKENS: Final = 131_072
"""Prompt and answer together: what a server of 128k tokens takes."""
DIGITS: Final = 19
"""Those of 2**63."""
AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceError(ValueError):
    """The file is not what it should be. It names file, line, field and what was wanted."""


class _Row(NamedTuple):
    at_s: float
    prompt: tuple[Segment, ...]
    output_tokens: int


class _Mooncake(msgspec.Struct):
    timestamp: Annotated[float, Meta(ge=0)]
    input_length: Annotated[int, Meta(ge=1)]
    output_length: Annotated[int, Meta(ge=0)]
    hash_ids: list[Annotated[int, Meta(ge=0, le=2**63 - 1)]]


_MOONCAKE: Final = msgspec.json.Decoder(_Mooncake)


def read_trace(
    path: Path, *, skip: int = 0, limit: int | None = None, most_tokens: int = MOST_TOKENS
) -> Workload:
    """The requests of a file, or a slice: `limit` requests behind the first `skip`.

    `most_tokens` is for prompt and answer together; longer requests of the slice are left out of
    it. `TraceError`: a line cannot be read. `OSError`: the file cannot.
    """
    if skip < 0 or (limit is not None and limit < 0):
        raise ValueError(f"skip={skip}, limit={limit} must be ≥ 0")
    rows = sorted(_rows(path), key=lambda row: row.at_s)
    end = len(rows) if limit is None else min(len(rows), skip + limit)
    wanted = rows[skip:end]
    kept = [r for r in wanted if _tokens(r.prompt) + r.output_tokens <= most_tokens]
    began_s = kept[0].at_s if kept else 0.0
    requests = tuple(
        Request(row.at_s - began_s, row.prompt, max(1, row.output_tokens)) for row in kept
    )
    whole = skip == 0 and end == len(rows)
    name = path.stem if whole else f"{path.stem}[{skip}:{skip + len(wanted)}]"
    source = f"{path.name}: {len(wanted)} of its {len(rows)} requests, from number {skip} on"
    if len(kept) < len(wanted):
        source += f"; {len(wanted) - len(kept)} of more than {most_tokens} tokens left out"
    if silent := sum(row.output_tokens == 0 for row in kept):
        source += f"; {silent} without an answer given one token"
    return Workload(name, requests, source)


def _rows(path: Path) -> list[_Row]:
    lines = [
        (number, line)
        for number, line in enumerate(path.read_bytes().splitlines(), 1)
        if line.strip()
    ]
    if not lines:
        raise TraceError(f"{path}: empty; wanted {_WANTED}")
    first = lines[0][1].removeprefix(b"\xef\xbb\xbf").lstrip()
    if first.startswith(b"{"):
        lines[0] = (lines[0][0], first)
        return _spread([_mooncake(path, number, line) for number, line in lines])
    return list(_azure(path, lines))


_WANTED: Final = (
    "lines of JSON with timestamp, input_length, output_length and hash_ids, "
    f"or a header with {', '.join(AZURE)}"
)


def _mooncake(path: Path, number: int, line: bytes) -> _Row:
    try:
        told = _MOONCAKE.decode(line)
    except msgspec.MsgspecError as error:
        raise TraceError(f"{path}, line {number}: {error}") from error
    blocks = -(-told.input_length // BLOCK)
    if len(told.hash_ids) != blocks:
        raise TraceError(
            f"{path}, line {number}: hash_ids has {len(told.hash_ids)} of them, wanted {blocks}: "
            f"one for each {BLOCK} of input_length={told.input_length} tokens"
        )
    rest = told.input_length - BLOCK * (blocks - 1)
    prompt = (
        *(Segment(name, BLOCK) for name in told.hash_ids[:-1]),
        Segment(told.hash_ids[-1], rest),
    )
    return _Row(told.timestamp / 1000.0, prompt, told.output_length)


def _spread(rows: Sequence[_Row]) -> list[_Row]:
    """Rows of equal timestamps over their tick."""
    stamps = sorted({row.at_s for row in rows})
    gaps = {a: b - a for a, b in pairwise(stamps)}
    tick_s = median(gaps.values()) if gaps else 0.0
    spread: list[_Row] = []
    for at_s, group in groupby(sorted(rows, key=lambda row: row.at_s), lambda row: row.at_s):
        same = list(group)
        step_s = min(tick_s, gaps.get(at_s, tick_s)) / len(same)
        spread += (row._replace(at_s=at_s + k * step_s) for k, row in enumerate(same))
    return spread


def _azure(path: Path, lines: Sequence[tuple[int, bytes]]) -> Iterator[_Row]:
    (header_line, header), *body = ((number, _cells(path, number, line)) for number, line in lines)
    for name in AZURE:
        if name not in header:
            raise TraceError(f"{path}, line {header_line}: no {name}; wanted {_WANTED}")
    columns = [header.index(name) for name in AZURE]
    for text, (number, cells) in enumerate(body):
        where = f"{path}, line {number}"
        if len(cells) != len(header):
            raise TraceError(f"{where}: {len(cells)} fields, wanted {len(header)} as in the header")
        stamp, context, generated = (cells[column].strip() for column in columns)
        yield _Row(
            _instant(where, stamp),
            (Segment(text, _whole(where, "ContextTokens", context, 1)),),
            _whole(where, "GeneratedTokens", generated, 0),
        )


def _cells(path: Path, number: int, line: bytes) -> list[str]:
    try:
        return next(csv.reader([line.decode("utf-8-sig")], strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise TraceError(f"{path}, line {number}: {error}; wanted CSV in UTF-8") from error


def _instant(where: str, stamp: str) -> float:
    try:
        told = datetime.fromisoformat(stamp)
    except ValueError as error:
        raise TraceError(
            f"{where}: TIMESTAMP={stamp!r}, wanted a date and time as 2023-11-16 18:15:46.68059"
        ) from error
    return (told if told.tzinfo else told.replace(tzinfo=UTC)).timestamp()


def _whole(where: str, field: str, told: str, least: int) -> int:
    if not (told.isascii() and told.isdigit() and len(told) < DIGITS) or int(told) < least:
        raise TraceError(f"{where}: {field}={told!r}, wanted a whole number ≥ {least}")
    return int(told)


def _tokens(prompt: Sequence[Segment]) -> int:
    return sum(segment.tokens for segment in prompt)
