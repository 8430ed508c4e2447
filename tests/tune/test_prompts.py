"""What is sent for a request."""

import json
from typing import Any

import pytest

from ullage_tune.replay.prompts import Form, apart, body, ids, messages, text
from ullage_tune.workload import Request, Segment, Workload

SYSTEM, HELLO, ANSWER, MORE = (Segment(text, 20 + text) for text in range(4))


def sent(form: Form, *prompt: Segment, plain: bool = False) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(body(Request(0.0, prompt, 7), form, "m", plain=plain))
    return fields


def test_tokens_are_as_many_as_asked_and_the_same_on_every_machine() -> None:
    prompt = sent(Form.TOKENS, SYSTEM, HELLO)["prompt"]
    assert len(prompt) == 41
    assert prompt[:4] == [1735, 1588, 1014, 740]
    assert all(300 <= token < 2000 for token in prompt)


def test_equal_segments_are_equal_text_wherever_they_stand() -> None:
    one, two = (sent(Form.TEXT, SYSTEM, other)["prompt"] for other in (HELLO, MORE))
    assert one == text(SYSTEM) + text(HELLO)
    assert two == text(SYSTEM) + text(MORE)
    assert len(text(MORE).split()) == 23


def test_of_two_that_differ_in_length_the_shorter_one_begins_the_longer_one() -> None:
    long, short = Segment(9, 512), Segment(9, 100)
    assert ids(long)[:100] == ids(short)
    assert text(long).startswith(text(short) + " ")


def test_different_segments_do_not_begin_alike() -> None:
    firsts = {ids(Segment(number, 4)) for number in range(1000)}
    assert len(firsts) == 1000


@pytest.mark.parametrize(
    ("prompt", "roles"),
    [
        ((HELLO,), ["user"]),
        ((SYSTEM, HELLO), ["system", "user"]),
        ((HELLO, ANSWER, MORE), ["user", "assistant", "user"]),
        ((SYSTEM, HELLO, ANSWER, MORE), ["system", "user", "assistant", "user"]),
        ((), []),
    ],
)
def test_a_user_has_the_last_word(prompt: tuple[Segment, ...], roles: list[str]) -> None:
    assert [message["role"] for message in messages(prompt)] == roles


def test_a_conversation_begins_with_the_one_before() -> None:
    for start in ((HELLO,), (SYSTEM, HELLO)):
        before = messages(start)
        assert messages((*start, ANSWER, MORE))[: len(before)] == before


def test_the_answer_is_streamed_counted_and_of_just_that_length() -> None:
    asked = sent(Form.CHAT, HELLO)
    assert (asked["max_tokens"], asked["ignore_eos"], asked["stream"]) == (7, True, True)
    assert asked["stream_options"] == {"include_usage": True}
    assert Form.CHAT.path == "/v1/chat/completions"


def test_plain_is_what_openai_knows() -> None:
    assert set(sent(Form.CHAT, HELLO, plain=True)) == {
        "model", "messages", "max_tokens", "stream", "stream_options",
    }  # fmt: skip


def test_what_two_workloads_call_alike_is_another_text_in_each() -> None:
    ask = Request(0.0, (Segment(1, 9), Segment(1, 5), Segment(2, 9)), 1)
    work = Workload("w", (ask,))
    (short,), (same,), (other,) = (apart(work, name).requests for name in ("w 1", "w 1", "w 2"))
    assert short == same
    assert [s.tokens for s in short.prompt] == [9, 5, 9]
    assert short.prompt[0].text == short.prompt[1].text != short.prompt[2].text
    assert not {s.text for s in short.prompt} & {s.text for s in other.prompt}
    assert all(0 <= s.text < 2**63 for s in short.prompt)
