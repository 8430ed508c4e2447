import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from xxhash import xxh3_64_intdigest

from ullage_router.core import keys as code
from ullage_router.core.keys import (
    BLOCK_BYTES,
    FIRST_KEYS,
    LAST_KEYS,
    LEAST_HEAD_BYTES,
    MOST_MESSAGES,
    NAMED_SHARE,
    Keys,
)

NO_JSON = Raw()
USER = {"role": "user", "content": "Hello?"}
ANSWER = {"role": "assistant", "content": "Hello."}
SHORT = {"role": "system", "content": "You are a helpful assistant."}
LONG = {"role": "system", "content": "Be brief. " * 30}
OTHER = {"role": "system", "content": "Be kind. " * 30}


def spelled(value: Any) -> Raw:
    return NO_JSON if value is None else Raw(json.dumps(value).encode())


def named_key(*named: Any) -> Keys:
    return code.named_key(*named).keys


def talk_keys(*talk: Any) -> Keys:
    return code.talk_keys(*talk).keys


def block_keys(*prompt: Any) -> Keys:
    return code.block_keys(*prompt).keys


def keys(*messages: Any, salt: Any = None, tools: Any = None, system: Any = None) -> Keys:
    head = spelled(salt), spelled(tools), spelled(system)
    return talk_keys("m", *head, [spelled(message) for message in messages])


def turns(length: int) -> list[dict[str, str]]:
    return [{"role": ("user", "assistant")[i % 2], "content": f"{i}"} for i in range(length)]


# Keys that the client names


def test_of_the_keys_that_a_client_names_the_first_that_is_not_empty_holds() -> None:
    header = named_key("m", b"k", None, None)
    in_body = named_key("m", None, "k", None)
    session = named_key("m", None, None, b"k")
    assert [len(each) for each in (header, in_body, session)] == [1, 1, 1]
    assert len({header, in_body, session}) == 3
    assert named_key("m", b"k", "l", b"l") == header
    assert named_key("m", None, "k", b"l") == named_key("m", b"", "k", b"l") == in_body
    assert named_key("m", b"", "", b"k") == session
    assert named_key("m", b"", "", b"") == named_key("m", None, None, None) == ()


def test_a_named_key_is_another_for_another_model_and_value() -> None:
    """Models share no cache. Not to name one is not to name one without letters."""
    models = ["m", "n", "", None]
    assert len({named_key(m, v, None, None) for m in models for v in (b"1", b"2")}) == 8


# The head


def sized(size_bytes: int) -> str:
    """Make a text of so many bytes, as JSON spells it."""
    return "x" * (size_bytes - len('""'))


def told(size_bytes: int) -> dict[str, str]:
    """Make a system message of so many bytes."""
    around = len(json.dumps({"role": "system", "content": ""}))
    return {"role": "system", "content": "x" * (size_bytes - around)}


HEADS = {
    "system prompt": lambda size: ({"system": sized(size)}, []),
    "tools": lambda size: ({"tools": [sized(size - 2)]}, []),
    "a system message": lambda size: ({}, [told(size)]),
    "system messages": lambda size: ({}, [told(50), told(size - 100), told(50)]),
    "tools and system prompt": lambda size: (
        {"tools": sized(100), "system": sized(size - 100)},
        [],
    ),
    "tools and a system message": lambda size: ({"tools": sized(size - 60)}, [told(60)]),
    "all": lambda size: ({"tools": sized(50), "system": sized(50)}, [told(50), told(size - 150)]),
}


@pytest.mark.parametrize("head", HEADS.values(), ids=HEADS.keys())
def test_a_head_of_256_bytes_has_a_key_and_one_of_255_has_none(head: Any) -> None:
    fields, messages = head(LEAST_HEAD_BYTES)
    (one,) = keys(*messages, **fields)
    assert len(keys(*messages, USER, ANSWER, **fields)) == 3
    assert keys(*messages, ANSWER, **fields)[0] == one
    fields, messages = head(LEAST_HEAD_BYTES - 1)
    assert keys(*messages, **fields) == ()
    assert len(keys(*messages, USER, ANSWER, **fields)) == 2


def test_a_salt_is_no_part_of_what_is_shared() -> None:
    """It makes no short head long."""
    salt = sized(LEAST_HEAD_BYTES)
    assert keys(salt=salt) == ()
    assert len(keys(USER, salt=salt, system=sized(LEAST_HEAD_BYTES - 1))) == 1
    assert len(keys(USER, salt=salt, system=sized(LEAST_HEAD_BYTES))) == 2


def test_a_first_message_makes_no_short_head_long() -> None:
    assert len(keys(SHORT, {"role": "user", "content": "x" * 1000})) == 1


@pytest.mark.parametrize("first", [USER, 1, "", {}])
def test_a_talk_with_a_short_head_keeps_the_key_after_its_first_message(first: Any) -> None:
    """However short they are together, and the head is in it."""
    (key,) = keys(SHORT, first)
    assert keys(SHORT, first, ANSWER)[0] == key
    assert key not in keys(first)
    assert key not in keys(SHORT, SHORT, first)
    assert key not in keys(first, system=SHORT["content"])


def test_there_is_a_key_after_the_system_prompt_and_after_each_message() -> None:
    one, two, three = keys(LONG, USER, ANSWER)
    assert keys(LONG) == (one,)
    assert keys(LONG, USER) == (one, two)
    assert keys(LONG, USER, ANSWER, USER)[:3] == (one, two, three)
    assert keys() == ()


def test_without_a_system_prompt_the_first_key_is_after_the_first_message() -> None:
    """All requests of a model would share the one before it."""
    assert len(keys(USER)) == 1
    assert len(keys(USER, ANSWER)) == 2


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_run_of_system_messages_has_one_key(role: str) -> None:
    also = OTHER | {"role": role}
    both = keys(LONG, also, USER)
    assert len(both) == 2
    assert not set(both) & set(keys(LONG, USER))
    assert len(keys(LONG, USER, also)) == 3


def test_tools_or_a_system_prompt_have_a_key_of_their_own() -> None:
    for head in ({"tools": [{"name": "t" * 300}]}, {"system": "s" * 300}):
        one, two = keys(USER, **head)
        assert keys(ANSWER, **head)[0] == one
        assert keys(**head) == (one,)
        assert keys(USER, ANSWER, **head)[:2] == (one, two)


@pytest.mark.parametrize("at_head", [[], [SHORT], [LONG]])
@pytest.mark.parametrize("other", [{"salt": "s"}, {"tools": "t"}, {"system": "s"}])
def test_what_comes_before_the_messages_parts_all_keys(
    at_head: list[Any], other: dict[str, str]
) -> None:
    plain, parted = keys(*at_head, *turns(3)), keys(*at_head, *turns(3), **other)
    assert len(parted) == len(plain)
    assert not set(parted) & set(plain)


SPELLINGS = {
    "role first": b'{"role": "system", "content": "%b"}',
    "compact": b'{"role":"system","content":"%b"}',
    "wide": b'{\n  "role" : "developer",\n  "content" : "%b"\n}',
    "role last": b'{"content": "%b", "role": "system"}',
    "role last, wide": b'{\n "content": "%b",\n "role" : "developer"\n}',
    "role between": b'{"content": "%b", "role": "system", "name": "n"}',
    "escaped": b'{"role": "syst\\u0065m", "content": "%b"}',
    "typed": b'{"type": "message", "role": "developer", "content": "%b"}',
}
NO_SYSTEM = {
    "user": b'{"role": "user", "content": "%b"}',
    "role last": b'{"content": "%b", "role": "user"}',
    "longer": b'{"role": "systematic", "content": "%b"}',
    "in a text": b'{"content": "%b{\\"role\\": \\"system\\"", "role": "user"}',
    "at a text's end": b'{"role": "user", "content": "%b,\\"role\\": \\"system\\"}"}',
    "in a key": b'{"%ba,\\"role": "system"}',
    "within": b'{"content": {"x": "%b", "role": "system"}}',
    "no role": b'{"content": "%b"}',
    "no object": b'"%bsystem"',
    "not UTF-8": b'{"x": "%b", "role": "\xff", "y": 1}',
    "a list": b'{"x": "%b", "role": ["system"], "y": 1}',
}


def after(message: bytes) -> Keys:
    then = [spelled({"role": "system"}), spelled(USER)]
    return talk_keys("m", NO_JSON, NO_JSON, NO_JSON, [Raw(message), *then])


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS.keys())
def test_a_system_message_is_known_however_it_is_spelled(spelling: bytes) -> None:
    assert len(after(spelling % b"x")) == 1
    assert len(after(spelling % (b"x" * 300))) == 2


@pytest.mark.parametrize("spelling", NO_SYSTEM.values(), ids=NO_SYSTEM.keys())
def test_no_other_message_is_taken_for_one(spelling: bytes) -> None:
    assert len(after(spelling % b"x")) == 3
    assert len(after(spelling % (b"x" * 300))) == 3


# Chains


def test_messages_do_not_run_into_each_other() -> None:
    assert not set(keys(1, 2, 34)) & set(keys(12, 3, 4))
    assert not set(keys(*[1] * 99)[FIRST_KEYS:]) & set(keys(*[11] * 99)[FIRST_KEYS:])


messages_of_any_kind = st.lists(
    st.none()
    | st.integers()
    | st.text()
    | st.sampled_from([SHORT, LONG, USER, ANSWER, [], {}, {"role": 5}])
    | st.dictionaries(st.text(), st.integers() | st.text(), max_size=3),
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@given(messages_of_any_kind, messages_of_any_kind)
def test_equal_beginnings_have_equal_keys_and_others_have_not(
    one: list[Any], other: list[Any]
) -> None:
    ours, theirs = keys(USER, *one), keys(USER, *other)
    assert len(ours) == len(one) + 1
    for i, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        assert (our == their) == (json.dumps(one[:i]) == json.dumps(other[:i]))
    assert not set(ours[len(theirs) :]) & set(theirs)


@pytest.mark.parametrize("head", [[], [SHORT], [LONG]], ids=["none", "short", "long"])
@pytest.mark.parametrize("before", [1, 2, 33, 34, 35, 200, MOST_MESSAGES, 1000])
def test_a_later_turn_has_the_last_key_of_the_one_before(head: list[Any], before: int) -> None:
    earlier = keys(*head, *turns(before))
    for more in (1, 2, LAST_KEYS - 1):
        later = keys(*head, *turns(before + more))
        assert earlier[-1] in later
        assert earlier[:FIRST_KEYS] == later[: len(earlier[:FIRST_KEYS])]


@pytest.mark.parametrize("head", [[], [SHORT], [LONG]], ids=["none", "short", "long"])
def test_of_a_long_talk_the_first_2_and_the_last_32_keys_are_kept(head: Sequence[Any]) -> None:
    """The key of the head is one of them, if it has one."""
    most = FIRST_KEYS + LAST_KEYS
    levels = [*keys(*head), *(keys(*head, *turns(n))[-1] for n in range(1, 101))]
    for level in (most - 1, most, most + 1, most + 7, len(levels)):
        chain = keys(*head, *turns(level - len(keys(*head))))
        kept = levels[:level]
        if level > most:
            kept = [*kept[:FIRST_KEYS], *kept[-LAST_KEYS:]]
        assert chain == tuple(kept)


def test_the_messages_between_count_although_they_have_no_keys() -> None:
    whole, other = turns(100), turns(100)
    other[50] = ANSWER | {"content": "something else"}
    assert not set(keys(*whole)[FIRST_KEYS:]) & set(keys(*other)[FIRST_KEYS:])
    assert keys(*whole)[:FIRST_KEYS] == keys(*other)[:FIRST_KEYS]


@pytest.mark.parametrize("head", [SHORT, LONG], ids=["short", "long"])
def test_a_talk_beyond_the_bound_keeps_the_keys_it_has(head: Any) -> None:
    bound = keys(head, *turns(MOST_MESSAGES - 1))
    assert len(bound) == FIRST_KEYS + LAST_KEYS
    assert keys(head, *turns(MOST_MESSAGES)) == bound
    assert keys(head, *turns(3000)) == bound
    assert keys(head, *turns(MOST_MESSAGES - 2)) != bound


# Prompts in blocks


def prompted(prompt: Any, model: str | None = "m", salt: Any = None) -> Keys:
    return block_keys(model, spelled(salt), spelled(prompt))


@pytest.mark.parametrize(
    ("blocks", "levels"), [(1, 1), (2, 2), (3, 2), (4, 3), (7, 3), (8, 4), (107, 7)]
)
def test_a_prompt_has_keys_after_1_2_4_blocks_and_so_on(blocks: int, levels: int) -> None:
    size = blocks * BLOCK_BYTES
    exact = prompted("x" * size)
    assert len(exact) == levels
    assert prompted("x" * (size + BLOCK_BYTES - 1))[:levels] == exact
    assert len(prompted("x" * (size - 1))) == max(1, levels - (blocks & (blocks - 1) == 0))


def test_prompts_share_the_keys_of_the_blocks_they_share() -> None:
    one, other = "x" * 9 * BLOCK_BYTES, "x" * 5 * BLOCK_BYTES + "y" * 4 * BLOCK_BYTES
    assert prompted(one)[:3] == prompted(other)[:3]
    assert prompted(one)[3] != prompted(other)[3]


def test_a_prompt_shorter_than_a_block_has_its_own_key() -> None:
    short = [prompted("x" * size) for size in (1, 2, BLOCK_BYTES - 1, BLOCK_BYTES)]
    assert [len(each) for each in short] == [1, 1, 1, 1]
    assert len(set(short)) == 4
    assert prompted("x") == prompted("x")


def test_lists_of_prompts_and_tokens_have_keys_too_and_are_no_text() -> None:
    tokens = list(range(5000))
    assert prompted(tokens)[:2] == prompted([*tokens, 1])[:2]
    assert len({prompted("1, 2"), prompted([1, 2]), prompted(["1, 2"])}) == 3


@pytest.mark.parametrize("prompt", [None, 5, True, {"a": 1}])
def test_what_is_no_prompt_has_no_keys(prompt: Any) -> None:
    assert prompted(prompt) == ()


def test_a_prompt_is_another_for_another_model_or_salt() -> None:
    of_all = [prompted("x", model, salt) for model in ("m", "n", "", None) for salt in (None, "s")]
    assert len(set(of_all)) == 8


# The formula


def chained(*pieces: bytes) -> int:
    key = 0
    for piece in pieces:
        key = xxh3_64_intdigest(piece, key)
    return key


def test_keys_are_the_hash_of_the_bytes_that_the_formula_names() -> None:
    system, user = b'{"role":"system","content":"%b"}' % (b"x" * 300), b'{"role":"user"}'
    fields = b'"s"', b"[1]", b'"t"'
    head, talk = (
        chained(b"m\xfftalk", *fields, system),
        chained(b"m\xfftalk", *fields, system, user),
    )
    assert talk_keys("m", *map(Raw, fields), [Raw(system), Raw(user)]) == (head, talk)
    assert keys(USER) == (chained(b"m\xfftalk", bytes(spelled(USER))),)
    assert named_key("m", b"k", None, None) == (xxh3_64_intdigest(b"m\xffheaderk"),)
    assert named_key("m", None, "k", None) == (xxh3_64_intdigest(b"m\xffbodyk"),)
    assert named_key(None, None, None, b"k") == (xxh3_64_intdigest(b"\xfe\xffsessionk"),)
    block = b"x" * BLOCK_BYTES
    begin = b'\xfe\xffblocks"', b'"s"'
    after_each = chained(*begin, block), chained(*begin, block, block)
    assert prompted("x" * 2 * BLOCK_BYTES, None, "s") == after_each


# How much of the prompt each key covers


def test_each_key_covers_all_up_to_its_message() -> None:
    head, first, second = spelled(LONG), spelled(USER), spelled(ANSWER)
    chain = code.talk_keys("m", NO_JSON, NO_JSON, head, [first, second])
    ends = [len(head), len(head) + len(first), len(head) + len(first) + len(second)]
    assert chain.shares == tuple(end / ends[-1] for end in ends)


def test_a_short_head_has_no_key_and_counts_all_the_same() -> None:
    head, message = spelled(SHORT), spelled(USER)
    assert code.talk_keys("m", NO_JSON, NO_JSON, NO_JSON, [head, message, message]).shares == (
        (len(head) + len(message)) / (len(head) + 2 * len(message)),
        1.0,
    )


def test_of_a_long_talk_the_first_and_the_last_shares_are_kept() -> None:
    chain = code.talk_keys("m", NO_JSON, NO_JSON, NO_JSON, [spelled(each) for each in turns(100)])
    assert len(chain.shares) == len(chain.keys) == FIRST_KEYS + LAST_KEYS
    assert chain.shares == tuple(sorted(chain.shares))
    assert chain.shares[FIRST_KEYS - 1] < 0.03 < 0.6 < chain.shares[FIRST_KEYS]
    assert chain.shares[-1] == 1.0


def test_of_a_prompt_each_key_covers_its_blocks() -> None:
    size = 4 * BLOCK_BYTES + 10
    chain = code.block_keys("m", NO_JSON, Raw(b'"' + b"x" * size + b'"'))
    assert chain.shares == tuple(n * BLOCK_BYTES / size for n in (1, 2, 4))
    assert code.block_keys("m", NO_JSON, Raw(b'"x"')).shares == (1.0,)


def test_how_much_a_named_key_covers_is_a_guess() -> None:
    assert code.named_key("m", b"k", None, None).shares == (NAMED_SHARE,)
    assert code.named_key("m", None, None, None).shares == ()
