import json
import tracemalloc
from time import perf_counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage_router.core.ask import Ask, ask_of
from ullage_router.core.keys import BLOCK_BYTES, LEAST_HEAD_BYTES, MOST_MESSAGES

CHAT, MESSAGES, RESPONSES = b"/v1/chat/completions", b"/v1/messages", b"/v1/responses"
COMPLETIONS, EMBEDDINGS = b"/v1/completions", b"/v1/embeddings"
TARGETS = [CHAT, MESSAGES, RESPONSES, COMPLETIONS, EMBEDDINGS, b"/tokenize", b"/", b""]
SYSTEM = {"role": "system", "content": "Be brief. " * 30}
USER = {"role": "user", "content": "Hello?"}
ANSWER = {"role": "assistant", "content": "Hello."}
OVER = 2**63


def said(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def keys(*messages: Any, target: bytes = CHAT, **fields: Any) -> tuple[int, ...]:
    name = "input" if target == RESPONSES else "messages"
    return ask_of(target, said(model="m", **fields, **{name: list(messages)})).keys


def talk(length: int) -> list[dict[str, str]]:
    """A system prompt, and so many messages in turns."""
    turns = [{"role": ("user", "assistant")[i % 2], "content": f"{i}"} for i in range(length)]
    return [SYSTEM, *turns]


# What is asked for


def test_all_that_is_asked_for_is_found() -> None:
    body = said(model="m", messages=[SYSTEM, USER], max_tokens=64, stream=True, priority=-3)
    asked = ask_of(CHAT, body)
    read_bytes = len(json.dumps(SYSTEM)) + len(json.dumps(USER))
    assert asked == Ask("m", True, read_bytes, 64, -3, asked.keys, asked.shares)
    assert len(asked.keys) == 2
    assert asked.shares == (len(json.dumps(SYSTEM)) / read_bytes, 1.0)


@pytest.mark.parametrize(
    ("target", "body", "read"),
    [
        (CHAT, {"messages": [USER], "tools": [1], "user": "xx"}, [USER, [1]]),
        (MESSAGES, {"messages": [USER, ANSWER], "system": "Hi"}, [USER, ANSWER, "Hi"]),
        (RESPONSES, {"input": [USER], "instructions": "Hi"}, [USER, "Hi"]),
        (RESPONSES, {"input": "Hello?"}, ["Hello?"]),
        (COMPLETIONS, {"prompt": "Hello?", "suffix": "xx"}, ["Hello?"]),
        (COMPLETIONS, {"prompt": [1, 2, 3]}, [[1, 2, 3]]),
        (EMBEDDINGS, {"input": ["a", "b"]}, [["a", "b"]]),
        (b"/tokenize", {"messages": [USER], "tools": [1]}, [[USER], [1]]),
        (COMPLETIONS, {"prompt": None}, []),
        (CHAT, {"messages": None, "tools": None}, []),
    ],
)
def test_what_the_model_will_read_is_measured_as_json_spells_it(
    target: bytes, body: dict[str, Any], read: list[Any]
) -> None:
    assert ask_of(target, said(**body)).prompt_bytes == sum(len(json.dumps(r)) for r in read)


WHOLE = {
    "model": "m",
    "stream": True,
    "max_tokens": 5,
    "priority": 2,
    "prompt_cache_key": "k",
    "messages": [SYSTEM, USER],
}


@pytest.mark.parametrize("field", WHOLE)
def test_a_field_of_a_wrong_type_is_unknown_and_the_others_still_count(field: str) -> None:
    may_change = {
        "prompt_cache_key": {"keys", "shares"},
        "messages": {"prompt_bytes"},
        "model": {"keys"},
    }
    whole = ask_of(CHAT, said(**WHOLE))
    for wrong in ({"a": 1}, [True], 1.5, "x" * 9, 7, False, 10**30, -1):  # Some are right.
        odd = ask_of(CHAT, said(**(WHOLE | {field: wrong})))
        changed = {
            name for name in Ask.__struct_fields__ if getattr(odd, name) != getattr(whole, name)
        }
        assert changed <= {field} | may_change.get(field, set())
    odd = ask_of(CHAT, said(**(WHOLE | {field: {"a": 1}})))
    assert odd.max_tokens == (None if field == "max_tokens" else 5)


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_output_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": 6, "max_output_tokens": 7}, 6),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -1}, None),
        ({"max_tokens": OVER - 1}, OVER - 1),
        ({"max_tokens": OVER}, None),
        ({"max_tokens": 2 * OVER}, None),
        ({"max_tokens": 10**40}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": 5, "max_completion_tokens": "6"}, 5),
    ],
)
def test_the_most_tokens_are_the_first_limit_that_is_one(
    limits: dict[str, Any], most: int | None
) -> None:
    assert ask_of(CHAT, said(model="m", **limits)).max_tokens == most


@pytest.mark.parametrize(
    ("priority", "known"),
    [
        (-OVER, -OVER),
        (OVER - 1, OVER - 1),
        (-OVER - 1, 0),
        (OVER, 0),
        (-(10**40), 0),
        (None, 0),
        (1.5, 0),
    ],
)
def test_a_priority_beyond_64_bits_is_none(priority: Any, known: int) -> None:
    assert ask_of(CHAT, said(priority=priority)).priority == known


def test_a_number_of_half_a_million_digits_is_no_number() -> None:
    body = b'{"model": "m", "max_tokens": %b, "priority": %b}' % ((b"9" * 500_000,) * 2)
    assert ask_of(CHAT, body) == Ask("m")


def test_the_headers_priority_goes_before_the_bodys() -> None:
    assert ask_of(CHAT, said(priority=5), priority=-2).priority == -2
    assert ask_of(CHAT, said(priority=5), priority=0).priority == 0
    assert ask_of(CHAT, said(priority=5)).priority == 5
    assert ask_of(CHAT, b"not JSON", priority=3).priority == 3


def test_of_a_field_that_is_said_twice_the_last_holds() -> None:
    once = b'{"model": "m", "stream": true, "messages": [{"role": "user"}]}'
    twice = b'{"stream": 5, "messages": [1], "model": "n", ' + once[1:]
    assert ask_of(CHAT, twice) == ask_of(CHAT, once)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"{",
        b"[]",
        b'"model"',
        b"null",
        b'{"model": "m"',
        b'{"model": "m"} more',
        b'{"model": "m", "temperature": NaN}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\ud83d"}]}',
        b'{"model": "m", "messages": [{"role": "user", "content": "\\udc00 and more of it"}]}',
        b'{"model": "m"}'.decode().encode("utf-16"),
        b'{"model": "m", "deep": ' + b"[" * 100_000,
        b'{"model": "m", "messages": ' + b'{"a":' * 100_000,
        b"--boundary\r\nContent-Disposition: form-data\r\n\r\n",
    ],
)
def test_a_body_that_is_no_json_asks_for_nothing_that_is_known(body: bytes) -> None:
    assert {ask_of(target, body) for target in TARGETS} == {Ask()}


def test_a_byte_order_mark_hides_nothing() -> None:
    """vLLM reads past one, too."""
    body = said(**WHOLE)
    assert ask_of(CHAT, b"\xef\xbb\xbf" + body) == ask_of(CHAT, b" \r\n" + body)
    assert ask_of(CHAT, b"\xef\xbb\xbf" + body) == ask_of(CHAT, body)


def test_bytes_that_are_not_utf8_lose_their_field_alone() -> None:
    body = b'{"model": "\xff", "stream": true, "messages": [{"role": "user", "content": "\xff"}]}'
    asked = ask_of(CHAT, body)
    assert (asked.model, asked.stream, len(asked.keys)) == (None, True, 1)
    assert asked.prompt_bytes == len(b'{"role": "user", "content": "\xff"}')


def test_unused_fields_are_read_over_whatever_they_hold() -> None:
    body = b'{"seed": 99999999999999999999999, "x": {"model": "n"}, "\xff": "\xff", "model": "m"}'
    assert ask_of(CHAT, body) == Ask("m")


@pytest.mark.parametrize(
    "body",
    [
        b' \r\n\t{"messages": [{"model": "not this"}], "model": "m"}',
        b'{"model": "\\u006d", "metadata": {"model": "not this"}}',
        b'{"prompt": "' + b"x" * 20_000_000 + b'", "model": "m"}',
    ],
    ids=["last", "escaped", "behind a huge prompt"],
)
def test_the_model_is_found_wherever_it_is(body: bytes) -> None:
    """Report 25: long prompts."""
    assert {ask_of(target, body).model for target in TARGETS} == {"m"}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FIELDS = [
    *WHOLE,
    *("input", "prompt", "system", "instructions", "tools", "cache_salt"),
    *("max_completion_tokens", "max_output_tokens"),
]
bodies = st.dictionaries(st.sampled_from(FIELDS), json_values).map(lambda body: said(**body))
heads = st.none() | st.binary(max_size=20)


def noisy(body: bytes, at: int, noise: bytes) -> bytes:
    return body[: at % (len(body) + 1)] + noise + body[at % (len(body) + 1) + len(noise) :]


rubbish = st.binary() | bodies | st.builds(noisy, bodies, st.integers(0), st.binary(max_size=3))


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(TARGETS) | st.binary(), rubbish, heads, heads)
def test_no_bytes_whatever_raise(
    target: bytes, body: bytes, cache_key: bytes | None, session: bytes | None
) -> None:
    asked = ask_of(target, body, cache_key=cache_key, session=session)
    assert asked.prompt_bytes >= 0
    assert -OVER <= asked.priority < OVER
    assert all(0 <= key < 2**64 for key in asked.keys)
    assert asked == ask_of(target, body, cache_key=cache_key, session=session)
    if cache_key or session:
        assert len(asked.keys) == 1


@pytest.mark.parametrize("target", [CHAT, RESPONSES])
def test_a_body_of_millions_of_messages_weighs_no_more_than_its_bytes(target: bytes) -> None:
    """To build a list of them takes 29 times as much."""
    body = b'{"messages": [%b1], "input": [%b1]}' % ((b"1," * 500_000,) * 2)
    tracemalloc.start()
    asked = ask_of(target, body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert asked.prompt_bytes == len(body)
    assert peak < 100_000


# Keys that the client names


def test_a_key_that_the_client_names_is_the_only_one_in_order_of_preference() -> None:
    def of(cache_key: bytes | None, in_body: str | None, session: bytes | None) -> tuple[int, ...]:
        body = said(**(WHOLE | {"prompt_cache_key": in_body}))
        return ask_of(CHAT, body, cache_key=cache_key, session=session).keys

    header, in_body, session = of(b"k", None, None), of(None, "k", None), of(None, None, b"k")
    chain = of(None, None, None)
    assert [len(each) for each in (header, in_body, session, chain)] == [1, 1, 1, 2]
    assert len({header, in_body, session, chain[:1], chain[1:]}) == 5
    assert of(b"k", "k", b"k") == header
    assert of(None, "k", b"k") == in_body
    assert of(b"", "k", b"") == in_body
    assert of(b"", "", b"k") == session
    assert of(b"", "", b"") == chain


@pytest.mark.parametrize("body", [said(model="m", prompt="x", messages=[USER]), b"no JSON", b""])
def test_every_target_and_body_may_have_a_named_key(body: bytes) -> None:
    one, other = (
        {ask_of(target, body, cache_key=key).keys for target in TARGETS} for key in (b"1", b"2")
    )
    assert len(one) == len(other) == 1
    assert one != other


def test_a_named_key_is_another_for_another_model() -> None:
    """Models share no cache. Not to name one is not to name one without letters."""
    bodies = [said(model="m"), said(model="n"), said(model=""), said()]
    assert len({ask_of(CHAT, body, session=b"s").keys for body in bodies}) == 4


# Chains


@pytest.mark.parametrize(
    "other",
    [
        {"model": "n"},
        {"cache_salt": "s"},
        {"tools": [{"name": "t"}]},
        {"cache_salt": "s", "tools": [{"name": "t"}]},
        {"system": "s"},
        {"system": ["s"]},
    ],
)
def test_what_comes_before_the_messages_parts_all_keys(other: dict[str, Any]) -> None:
    plain = ask_of(CHAT, said(model="m", messages=talk(3))).keys
    parted = ask_of(CHAT, said(**({"model": "m", "messages": talk(3)} | other))).keys
    assert len(parted) == len(plain)
    assert not set(parted) & set(plain)


def test_salt_tools_and_system_prompt_do_not_run_into_each_other() -> None:
    heads = [{"cache_salt": "a"}, {"tools": "a"}, {"system": "a"}, {"system": "a", "tools": "a"}]
    assert len({keys(USER, **head)[-1] for head in heads}) == len(heads)


@pytest.mark.parametrize(("less", "levels"), [(0, 2), (1, 1)])
@pytest.mark.parametrize("text", ["a", "é", '"'])
def test_a_system_prompt_by_any_name_is_measured_as_json_spells_it(
    text: str, less: int, levels: int
) -> None:
    """Of 256 bytes it has a key, of 255 it has none."""
    spelled = json.dumps(text)[1:-1]
    most, rest = divmod(LEAST_HEAD_BYTES - len('""') - less, len(spelled))
    prompt = text * most + "x" * rest
    assert len(keys(USER, system=prompt, target=MESSAGES)) == levels
    assert len(keys(USER, instructions=prompt, target=RESPONSES)) == levels
    around = len('{"role": "system", "content": ""}') - len('""')
    most, rest = divmod(LEAST_HEAD_BYTES - len('""') - around - less, len(spelled))
    assert len(keys({"role": "system", "content": text * most + "x" * rest}, USER)) == levels


def test_a_default_system_prompt_pins_no_one_to_a_replica() -> None:
    default = {"role": "system", "content": "You are a helpful assistant."}
    one, other = keys(default, USER, ANSWER), keys(default, ANSWER, USER)
    assert len(one) == len(other) == 2
    assert not set(one) & set(other)


@pytest.mark.parametrize("nothing", [None, [], "", {}])
def test_a_field_that_says_nothing_is_as_one_that_is_not_there(nothing: Any) -> None:
    assert keys(USER, tools=nothing, system=nothing, cache_salt=nothing) == keys(USER)


@pytest.mark.parametrize("length", [0, 1, 40, MOST_MESSAGES - 2, MOST_MESSAGES - 1, MOST_MESSAGES])
def test_a_big_body_has_the_keys_of_a_small_one(length: int) -> None:
    """They are read in two ways."""
    small = ask_of(CHAT, said(model="m", messages=talk(length)))
    big = ask_of(CHAT, said(model="m", messages=talk(length), user="x" * 70_000))
    assert big.keys == small.keys
    if length + 1 < MOST_MESSAGES:
        assert big == small


@pytest.mark.parametrize("wrong", [{"role": "user"}, 7, True])
def test_messages_that_are_no_list_have_no_keys_in_a_big_body_either(wrong: Any) -> None:
    assert ask_of(CHAT, said(model="m", messages=wrong, user="x" * 70_000)) == Ask("m")


def test_responses_have_instructions_first_and_may_have_one_input() -> None:
    prompt = "Be brief. " * 30
    head, one = keys(USER, target=RESPONSES, instructions=prompt)
    assert keys(target=RESPONSES, instructions=prompt) == (head,)
    text = ask_of(RESPONSES, said(model="m", instructions=prompt, input="Hello?")).keys
    assert text[:1] == (head,)
    assert len(text) == 2
    assert text[1] != one
    big = said(model="m", instructions=prompt, input="Hello?", user="x" * 70_000)
    assert ask_of(RESPONSES, big).keys == text


@pytest.mark.parametrize(
    ("target", "chained"),
    [
        (b"/v1/chat/completions", True),
        (b"/v1/chat/completions?api-version=1", True),
        (b"/prefix/v1/chat/completions", True),
        (b"http://host/v1/chat/completions", True),
        (b"/v1/messages", True),
        (b"/v1/completions", True),
        (b"/v1/completions?a=/b", True),
        (b"/v1/responses", True),
        (b"/v1/messages/count_tokens", False),
        (b"/v1/chat/completions/render", False),
        (b"/v1/embeddings", False),
        (b"/v1/embeddings?x=/v1/chat/completions", False),
        (b"/score", False),
        (b"/tokenize", False),
        (b"/v1/audio/transcriptions", False),
        (b"/incompletions", False),
    ],
)
def test_only_targets_that_generate_text_have_chains(target: bytes, *, chained: bool) -> None:
    body = said(model="m", messages=[USER], prompt="Hello?", input="Hello?")
    assert bool(ask_of(target, body).keys) == chained


# Prompts


@pytest.mark.parametrize("prompt", [None, "", [], {}, 5, True, {"a": 1}])
def test_what_is_no_prompt_has_no_keys(prompt: Any) -> None:
    assert ask_of(COMPLETIONS, said(model="m", prompt=prompt)).keys == ()


@pytest.mark.parametrize("other", [{"cache_salt": "s"}, {"model": "n"}, {"model": None}])
def test_a_prompt_is_another_for_another_model_or_salt(other: dict[str, Any]) -> None:
    plain = {"model": "m", "prompt": "x" * 2 * BLOCK_BYTES}
    one, two = (ask_of(COMPLETIONS, said(**body)).keys for body in (plain, plain | other))
    assert len(one) == len(two) == 2
    assert not set(one) & set(two)


# The formula


def test_keys_are_the_same_in_every_process_and_version() -> None:
    """Routers agree on them without talking, whatever their versions."""
    body = b'{"model":"m","tools":["%b"],"messages":[{"role":"system"},{"role":"user"}]}'
    long = body % (b"x" * LEAST_HEAD_BYTES)
    assert ask_of(CHAT, long).keys == (0x4E41489F1B05E775, 0x78B37143267BDD97)
    assert ask_of(CHAT, body % b"x").keys == (0x32292B5233C55079,)
    assert ask_of(CHAT, long, cache_key=b"k").keys == (0x21B864653837AB15,)
    assert ask_of(CHAT, long, session=b"k").keys == (0x4BFE4CBC2E69A480,)
    assert ask_of(CHAT, said(prompt_cache_key="k")).keys == (0x30136373A9CE7EE9,)
    prompt = b'{"prompt":"%b"}' % (b"x" * 2 * BLOCK_BYTES)
    assert ask_of(COMPLETIONS, prompt).keys == (0xA8172FCA88FC80CD, 0x320B4D839DC49CEE)


IMAGE = b'{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}'


def test_an_image_is_a_thousand_tokens_however_many_bytes_it_has() -> None:
    text = b'{"type":"text","text":"' + b"x" * 1_000 + b'"}'

    def chat(*parts: bytes) -> bytes:
        return b'{"messages":[{"role":"user","content":[' + b",".join(parts) + b"]}]}"

    two = chat(text, IMAGE % (b"A" * 1_000_000), IMAGE % (b"B" * 500_000))
    reckoned = chat(text, IMAGE % (b"A" * 4_000), IMAGE % (b"B" * 4_000))
    plain, images = ask_of(CHAT, reckoned).prompt_bytes, ask_of(CHAT, two).prompt_bytes
    assert abs(images - plain) < 300


@pytest.mark.parametrize("before", range(60_000, 80_000, 3_333))
def test_an_image_among_much_text_is_found_wherever_it_begins(before: int) -> None:
    def chat(image: bytes) -> bytes:
        parts = b"so it is " * (before // 9), IMAGE % image, b"and so on " * 3_000
        return b'{"messages":["%b",%b,"%b"]}' % parts

    small, large = chat(b"A" * 4_000), chat(b"A" * 20_000)
    assert abs(ask_of(CHAT, large).prompt_bytes - ask_of(CHAT, small).prompt_bytes) < 300


def test_a_body_full_of_what_looks_like_images_is_looked_through_in_no_time() -> None:
    body = b'{"messages":["' + b";base64," * 1_000_000 + b'"]}'
    assert 0 <= ask_of(CHAT, body).prompt_bytes <= len(body)
    many = b'{"messages":[' + b'";base64,",' * 500_000 + b'""]}'
    began_s = perf_counter()
    ask_of(CHAT, many)
    assert perf_counter() - began_s < 1.0
