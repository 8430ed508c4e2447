import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage_router.core.usage import prompt_tokens_in

USAGE = {"prompt_tokens": 1234, "total_tokens": 1300, "completion_tokens": 66}


def compact(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def answer(text: str, usage: Any = USAGE) -> dict[str, Any]:
    """A whole answer, its fields in vLLM's order."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}}
    return {"id": "c", "choices": [choice], "usage": usage, "prompt_logprobs": None}


def event(text: str, **more: Any) -> bytes:
    return b"data: " + compact({"choices": [{"delta": {"content": text}}], **more}) + b"\n\n"


LAST_EVENT = b"data: " + compact({"id": "c", "choices": [], "usage": USAGE}) + b"\n\n"
DONE = b"data: [DONE]\n\n"


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces) + b"0\r\n\r\n"


ANSWERS = {
    "compact": compact(answer("Hello.")),
    "spaced": json.dumps(answer("Hello.")).encode(),
    "on lines": json.dumps(answer("Hello."), indent=2).replace("\n", "\r\n").encode(),
    "in another order": compact(answer("", {"completion_tokens": 66, "prompt_tokens": 1234})),
    "with details": compact(
        answer("", USAGE | {"prompt_tokens_details": {"cached_tokens": 16, "x": None}})
    ),
    "the end alone": compact(answer("Hello."))[-110:],
    "much behind it": compact(answer("") | {"kv_transfer_params": {"x": "y" * 20_000}}),
    "in chunks": chunked(compact(answer("Hello."))),
    "an event stream": event("Hello") + event(".") + LAST_EVENT + DONE,
    "an event stream in chunks": chunked(event("Hello"), event("."), LAST_EVENT, DONE),
    "counted along": event("Hello", usage=USAGE | {"prompt_tokens": 1}) + LAST_EVENT + DONE,
    "all in one chunk": chunked(event("Hello") + LAST_EVENT + DONE),
}


@pytest.mark.parametrize("tail", ANSWERS.values(), ids=ANSWERS.keys())
def test_the_prompts_tokens_are_found_at_an_answers_end(tail: bytes) -> None:
    assert prompt_tokens_in(tail) == 1234


SILENT = {
    "empty": b"",
    "no usage": compact({"choices": []}),
    "null": compact(answer("", None)),
    "nulls in each event": event("Hello", usage=None) * 50 + DONE,
    "no count": compact(answer("", {"completion_tokens": 5})),
    "a count that is none": compact(answer("", {"prompt_tokens": None})),
    "a fraction": compact(answer("", {"prompt_tokens": 0.5})),
    "negative": compact(answer("", {"prompt_tokens": -5})),
    "a string": compact(answer("", {"prompt_tokens": "5"})),
    "endless": compact(answer("", {"prompt_tokens": 10**30})),
    "not usage": b'{"details":{"prompt_tokens":5}}',
    "behind usage": b'{"usage":{"x":{}},"y":{"prompt_tokens":5}}',
    "cut before": b'prompt_tokens":1234,"total_tokens":1}}',
    "cut behind": b'{"usage":{"prompt_tokens":12',
    "Anthropic's": compact({"usage": {"input_tokens": 5, "output_tokens": 7}}),
    "likelihoods": compact({"choices": [{"top_logprobs": [{"prompt_tokens": -0.1}]}]}),
    "chunks of nothing": b"\r\n0\r\n\r\n" * 50,
}


@pytest.mark.parametrize("tail", SILENT.values(), ids=SILENT.keys())
def test_an_answer_that_does_not_say_says_nothing(tail: bytes) -> None:
    assert prompt_tokens_in(tail) is None


LIES = [
    '"usage":{"prompt_tokens":5,"total_tokens":9}',
    '{"usage": {"prompt_tokens": 5}}',
    '\\"usage\\":{\\"prompt_tokens\\":5}',
    json.dumps(json.dumps({"usage": {"prompt_tokens": 5}})),
    'data: {"usage":{"prompt_tokens":5}}\n\ndata: [DONE]\n\n',
    '"usage"',
    '"prompt_tokens"',
    '"prompt_tokens":5',
    "usage",
    "prompt_tokens",
]


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("usage", [USAGE, None])
def test_generated_text_is_never_taken_for_it(lie: str, usage: Any) -> None:
    true = 1234 if usage else None
    whole = answer(lie, usage) | {"prompt_text": lie, "stop_reason": lie, "usage_": lie}
    stream = event(lie) + (LAST_EVENT if usage else b"") + event(lie) + DONE
    for tail in (compact(whole), json.dumps(whole).encode(), stream, chunked(event(lie), stream)):
        assert prompt_tokens_in(tail) == true


def test_text_behind_it_that_says_the_same_hides_nothing() -> None:
    tail = LAST_EVENT + event('"usage": {"prompt_tokens": 5}') * 100 + DONE
    assert prompt_tokens_in(tail) == 1234


json_values = st.recursive(
    st.none() | st.integers() | st.text() | st.sampled_from(LIES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(deadline=None, max_examples=60)
@given(json_values, st.booleans(), st.integers(0, 10**9))
def test_whatever_else_an_answer_holds_its_count_is_found(
    else_: Any, spaced: bool, prompt_tokens: int
) -> None:
    whole = {"choices": else_, "usage": {"prompt_tokens": prompt_tokens}, "more": else_}
    tail = json.dumps(whole).encode() if spaced else compact(whole)
    assert prompt_tokens_in(tail) == prompt_tokens
    assert prompt_tokens_in(chunked(tail[:7], tail[7:])) == prompt_tokens


def test_a_chunk_that_cuts_it_hides_nothing() -> None:
    """A proxy between may cut anywhere."""
    stream = event("Hello") + LAST_EVENT + DONE
    for at in range(1, len(stream)):
        assert prompt_tokens_in(chunked(stream[:at], stream[at:])) == 1234


def test_no_cuts_give_a_wrong_number() -> None:
    stream = event("Hello") + LAST_EVENT + DONE
    for size in range(1, 60):
        pieces = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert prompt_tokens_in(chunked(*pieces)) in (1234, None)


@settings(deadline=None, max_examples=60)
@given(st.binary(), st.binary())
def test_no_bytes_whatever_raise(before: bytes, behind: bytes) -> None:
    prompt_tokens_in(before + b'"usage":{"prompt_tokens":' + behind)
    assert prompt_tokens_in(before) is None
