"""A streamed answer, read piece by piece."""

import random
from itertools import pairwise

import pytest

from ullage_tune.replay.answer import MOST_BYTES, Answer, refusal

COMPLETION = (
    b'data: {"choices":[{"text":"a"}]}\n\n'
    b'data: {"choices":[{"text":"bc"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,'
    b'"prompt_tokens_details":{"cached_tokens":4}}}\n\n'
    b"data: [DONE]\n\n"
)
ROLE = b'data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n'
WORD = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def read(*pieces: bytes) -> Answer:
    """Each piece comes a second after the one before; the first at 1 s."""
    answer = Answer()
    for at_s, piece in enumerate(pieces, 1):
        answer.feed(piece, float(at_s))
    return answer


def counted(answer: Answer) -> tuple[int | None, ...]:
    return answer.prompt_tokens, answer.cached_tokens, answer.output_tokens


def test_a_whole_answer_has_its_tokens_as_the_server_counted_them() -> None:
    answer = read(COMPLETION)
    assert (answer.whole, answer.failure) == (True, "")
    assert counted(answer) == (9, 4, 3)


def test_the_first_token_is_the_first_text_and_the_last_one_the_last() -> None:
    answer = read(ROLE, WORD, WORD, b": still there\n\n", DONE)
    assert (answer.first_s, answer.last_s, answer.pieces) == (2.0, 3.0, 2)
    assert counted(answer) == (None, None, None)


@pytest.mark.parametrize(
    "said", ['"reasoning":"a"', '"reasoning_content":"a"', '"tool_calls":[{}]']
)
def test_thoughts_and_calls_are_tokens_too(said: str) -> None:
    assert read(ROLE, b'data: {"choices":[{"delta":{%s}}]}\n\n' % said.encode()).first_s == 2.0


def test_an_answer_without_text_came_with_its_first_choice() -> None:
    answer = read(b": hello\n\n", ROLE, ROLE, DONE)
    assert (answer.whole, answer.first_s, answer.last_s) == (True, 2.0, 2.0)


def test_where_the_pieces_are_cut_does_not_matter() -> None:
    for seed in range(20):
        cuts = sorted(random.Random(seed).choices(range(len(COMPLETION)), k=5))
        ends = [0, *cuts, len(COMPLETION)]
        pieces = [COMPLETION[a:b] for a, b in pairwise(ends)]
        assert counted(read(*pieces)) == (9, 4, 3)
    assert counted(read(*(bytes([byte]) for byte in COMPLETION))) == (9, 4, 3)
    assert counted(read(COMPLETION.replace(b"\n", b"\r\n"))) == (9, 4, 3)


def test_one_that_breaks_off_is_not_whole() -> None:
    answer = read(WORD, WORD[:-9])
    assert (answer.whole, answer.failure, answer.first_s) == (False, "", 1.0)


def test_an_error_in_the_stream_is_a_failure_whatever_follows() -> None:
    answer = read(WORD, b'data: {"error":{"message":"no room","code":503}}\n\n', DONE)
    assert (answer.whole, answer.failure) == (False, "error in the stream: 503")
    assert read(b'data: {"error":"oops"}\n\n').failure == "error in the stream: unnamed"


@pytest.mark.parametrize("rubbish", [b"data: {\n\n", b"data: 7\n\n", b'data: {"choices":3}\n\n'])
def test_rubbish_is_a_failure(rubbish: bytes) -> None:
    answer = read(rubbish, DONE)
    assert (answer.whole, answer.failure) == (False, "an event that is no completion's")


def test_an_event_without_an_end_does_not_fill_the_memory() -> None:
    answer = read(b"data: " + b"x" * MOST_BYTES, b"x" * MOST_BYTES)
    assert answer.failure == "an event that does not end"


def test_a_refusal_says_its_status_and_its_code() -> None:
    assert refusal(503, b'{"error":{"code":"no_capacity"}}') == "status 503: no_capacity"
    assert refusal(400, b'{"error":{"code":400,"type":"BadRequest"}}') == "status 400"
    assert refusal(502, b"<html>") == "status 502"
    assert refusal(500, b"") == "status 500"
