"""Reading recorded traffic: what is kept, what is said of the rest, and which errors name what."""

import json
import os
from pathlib import Path

import pytest

from ullage_tune.traces import TraceError, read_trace
from ullage_tune.workload import Request, Segment

AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
LINE = "2023-11-16 18:15:46.6805900,374,44\n"


def row(timestamp: object, length: int, output: int, hashes: list[int]) -> str:
    told = {
        "timestamp": timestamp,
        "input_length": length,
        "output_length": output,
        "hash_ids": hashes,
    }
    return json.dumps(told) + "\n"


def written(folder: Path, text: str | bytes, name: str = "trace") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def at_s(path: Path) -> list[float]:
    return [round(request.at_s, 9) for request in read_trace(path).requests]


def test_a_mooncake_prompt_is_blocks_of_512_tokens_the_last_one_partial(tmp_path: Path) -> None:
    path = written(tmp_path, row(0, 1030, 7, [0, 4, 9]))
    prompt = (Segment(0, 512), Segment(4, 512), Segment(9, 6))
    assert read_trace(path).requests == (Request(0.0, prompt, 7),)


def test_a_prompt_of_whole_blocks_has_no_partial_one(tmp_path: Path) -> None:
    (request,) = read_trace(written(tmp_path, row(0, 1024, 7, [0, 4]))).requests
    assert request.prompt == (Segment(0, 512), Segment(4, 512))


def test_requests_of_one_tick_are_spread_over_it_in_the_files_order(tmp_path: Path) -> None:
    stamps = [0, 0, 0, 3000, 6000, 6000]
    text = "".join(row(stamp, k + 1, 1, [k]) for k, stamp in enumerate(stamps))
    path = written(tmp_path, text)
    assert at_s(path) == [0.0, 1.0, 2.0, 3.0, 6.0, 7.5]
    assert [request.prompt_tokens for request in read_trace(path).requests] == [1, 2, 3, 4, 5, 6]


def test_equal_stamps_of_a_fine_clock_do_not_reach_the_next_one(tmp_path: Path) -> None:
    text = "".join(row(stamp, 1, 1, [0]) for stamp in (0, 0, 40, 400, 900))
    assert at_s(written(tmp_path, text)) == [0.0, 0.02, 0.04, 0.4, 0.9]


def test_a_pause_is_not_taken_for_a_tick(tmp_path: Path) -> None:
    text = "".join(row(stamp, 1, 1, [0]) for stamp in (0, 3000, 6000, 6000, 60_000))
    assert at_s(written(tmp_path, text)) == [0.0, 3.0, 6.0, 7.5, 60.0]


def test_a_file_of_one_stamp_knows_no_tick_and_comes_at_once(tmp_path: Path) -> None:
    assert at_s(written(tmp_path, row(5000, 1, 1, [0]) * 3)) == [0.0, 0.0, 0.0]


def test_an_azure_prompt_is_one_text_that_no_other_has(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, AZURE + LINE + LINE))
    assert trace.requests == (
        Request(0.0, (Segment(0, 374),), 44),
        Request(0.0, (Segment(1, 374),), 44),
    )


def test_azures_other_columns_zones_and_line_ends_are_understood(tmp_path: Path) -> None:
    text = (
        "\ufeffTIMESTAMP,NumImages,ContextTokens,GeneratedTokens\r\n"
        "2024-05-10 00:00:00.009930+00:00,2,10,3\r\n"
        "\r\n"
        "2024-05-10 02:00:01.509930+02:00,0,11,4"
    )
    requests = read_trace(written(tmp_path, text)).requests
    assert [(r.at_s, r.prompt_tokens, r.output_tokens) for r in requests] == [
        (0.0, 10, 3),
        (pytest.approx(1.5), 11, 4),
    ]


def test_lines_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    text = "".join(row(stamp, stamp + 1, 1, [0]) for stamp in (500, 100, 300))
    requests = read_trace(written(tmp_path, text)).requests
    assert [(r.at_s, r.prompt_tokens) for r in requests] == [
        (0.0, 101),
        (pytest.approx(0.2), 301),
        (pytest.approx(0.4), 501),
    ]


def test_an_azure_clock_that_steps_back_is_put_in_order_too(tmp_path: Path) -> None:
    text = AZURE + "2023-11-16 18:00:05,5,1\n2023-11-16 18:00:02,2,1\n2023-11-16 18:00:03,3,1\n"
    requests = read_trace(written(tmp_path, text)).requests
    assert [(r.at_s, r.prompt_tokens) for r in requests] == [(0.0, 2), (1.0, 3), (3.0, 5)]


def test_a_slice_begins_at_0_and_says_what_it_is(tmp_path: Path) -> None:
    text = "".join(row(k * 1000, k + 1, 1, [0]) for k in range(10))
    path = written(tmp_path, text, "some.jsonl")
    part = read_trace(path, skip=4, limit=3)
    assert [(r.at_s, r.prompt_tokens) for r in part.requests] == [(0.0, 5), (1.0, 6), (2.0, 7)]
    assert part.name == "some[4:7]"
    assert part.source == "some.jsonl: 3 of its 10 requests, from number 4 on"
    assert read_trace(path).name == "some"


def test_slices_laid_end_to_end_are_the_whole_file(tmp_path: Path) -> None:
    text = "".join(row(k // 3 * 3000, k + 1, 1, [0]) for k in range(10))
    path = written(tmp_path, text)
    parts = [read_trace(path, skip=skip, limit=4).requests for skip in (0, 4, 8, 12)]
    told = [request.prompt for part in parts for request in part]
    assert told == [request.prompt for request in read_trace(path).requests]


@pytest.mark.parametrize(("skip", "limit"), [(0, 0), (10, None), (99, 5)])
def test_a_slice_of_nothing_is_an_empty_workload(
    tmp_path: Path, skip: int, limit: int | None
) -> None:
    path = written(tmp_path, row(0, 1, 1, [0]) * 10)
    assert read_trace(path, skip=skip, limit=limit).requests == ()


def test_requests_that_no_server_takes_are_left_out_and_counted(tmp_path: Path) -> None:
    text = row(0, 60, 41, [0]) + row(1000, 60, 40, [1]) + row(2000, 99, 2, [2])
    trace = read_trace(written(tmp_path, text), most_tokens=100)
    assert [(r.at_s, r.prompt_tokens) for r in trace.requests] == [(0.0, 60)]
    assert trace.source.endswith("; 2 of more than 100 tokens left out")


def test_an_answer_of_no_tokens_is_one_and_counted(tmp_path: Path) -> None:
    trace = read_trace(written(tmp_path, row(0, 5, 0, [0]) + row(1, 5, 2, [1])))
    assert [r.output_tokens for r in trace.requests] == [1, 2]
    assert trace.source.endswith("; 1 without an answer given one token")


def test_a_header_alone_is_an_empty_workload(tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, AZURE)).requests == ()


GOOD = row(0, 1, 1, [0])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", ": empty; wanted lines of JSON with timestamp"),
        ("\n \n", ": empty"),
        ("hello\n", "line 1: no TIMESTAMP; wanted lines of JSON"),
        ("[1, 2]\n", "line 1: no TIMESTAMP"),
        (GOOD + "{", "line 2: "),
        (GOOD + "\n" + "nonsense", "line 3: "),
        (GOOD + '{"timestamp": 1}', "line 2: .*input_length"),
        (GOOD + row("1", 1, 1, [0]), r"line 2: .*at `\$.timestamp"),
        (GOOD + row(-1, 1, 1, [0]), r"line 2: .*at `\$.timestamp"),
        (GOOD + row(None, 1, 1, [0]), r"line 2: .*at `\$.timestamp"),
        (GOOD + row(0, 0, 1, [0]), r"line 2: .*at `\$.input_length"),
        (GOOD + row(0, 1, -1, [0]), r"line 2: .*at `\$.output_length"),
        (GOOD + row(0, 1, 1, [-1]), r"line 2: .*at `\$.hash_ids"),
        (GOOD + row(0, 1, 1, [2**63]), r"line 2: .*at `\$.hash_ids"),
        (GOOD + row(0, 513, 1, [0]), "line 2: hash_ids has 1 of them, wanted 2"),
        (GOOD + row(0, 512, 1, [0, 1]), "line 2: hash_ids has 2 of them, wanted 1"),
        (GOOD + row(0, 10**15, 1, [0]), "line 2: hash_ids has 1 of them"),
        (GOOD.encode() + b'{"\xff"', "line 2: "),
        ("TIMESTAMP,GeneratedTokens\n", "line 1: no ContextTokens"),
        (AZURE + LINE + "2023-11-16 18:15:46,5", "line 3: 2 fields, wanted 3 as in the header"),
        (AZURE + "yesterday,5,5", "line 2: TIMESTAMP='yesterday', wanted a date and time"),
        (AZURE + "2023-11-16 18:15:46,0,5", "line 2: ContextTokens='0', wanted a whole number ≥ 1"),
        (AZURE + "2023-11-16 18:15:46,,5", "line 2: ContextTokens=''"),
        (AZURE + "2023-11-16 18:15:46,5,x", "line 2: GeneratedTokens='x', wanted a whole number"),
        (AZURE + "2023-11-16 18:15:46,5,-1", "line 2: GeneratedTokens='-1'"),
        (AZURE + "2023-11-16 18:15:46,5,1.5", "line 2: GeneratedTokens='1.5'"),
        (AZURE + f"2023-11-16 18:15:46,5,{'9' * 5000}", "line 2: GeneratedTokens='999"),
        (AZURE + '2023-11-16 18:15:46,"5,5', "line 2: unexpected end of data; wanted CSV"),
        (AZURE.encode() + b"\xff,1,1", "line 2: 'utf-8' codec can't decode.*; wanted CSV in UTF-8"),
    ],
)
def test_a_bad_line_is_an_error_that_names_file_line_and_field(
    tmp_path: Path, text: str | bytes, says: str
) -> None:
    path = written(tmp_path, text, "bad.trace")
    with pytest.raises(TraceError, match=says) as caught:
        read_trace(path)
    assert str(caught.value).startswith(str(path))


@pytest.mark.parametrize(("skip", "limit"), [(-1, None), (0, -1)])
def test_a_slice_from_before_the_beginning_is_refused(
    tmp_path: Path, skip: int, limit: int | None
) -> None:
    with pytest.raises(ValueError, match=f"skip={skip}, limit={limit} must be ≥ 0"):
        read_trace(written(tmp_path, GOOD), skip=skip, limit=limit)


def test_a_file_that_is_not_there_is_the_systems_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none")


def recorded() -> list[Path]:
    """Traces of the folder that TRACES names; a plain clone has none."""
    folder = os.environ.get("TRACES")
    found = Path(folder).iterdir() if folder else ()
    return sorted(path for path in found if path.suffix in (".csv", ".jsonl"))


@pytest.mark.parametrize("path", ["small", *recorded()], ids=str)
def test_a_trace_comes_whole_in_order_and_the_same_each_time(
    tmp_path: Path, path: Path | str
) -> None:
    if isinstance(path, str):
        path = written(tmp_path, AZURE + LINE * 3)
    trace = read_trace(path, most_tokens=10**9)
    at = [request.at_s for request in trace.requests]
    lines = [line for line in path.read_text().splitlines() if line]
    assert len(at) == len(lines) - (path.suffix != ".jsonl")
    assert at[0] == 0.0
    assert at == sorted(at)
    assert read_trace(path, most_tokens=10**9) == trace
