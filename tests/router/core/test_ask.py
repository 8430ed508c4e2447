import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ullage_router.core.ask import model_of


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "m"}',
        b' \r\n\t{"messages": [{"model": "not this"}], "model": "m"}',
        b'{"model": "m", "seed": 99999999999999999999999999, "new_field": {"a": [1, null]}}',
        b'{"model": "\\u006d"}',
    ],
)
def test_the_model_is_found(body: bytes) -> None:
    assert model_of(body) == "m"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b"[]",
        b"{}",
        b'"model"',
        b'{"model": 5}',
        b'{"model": null}',
        b'{"model": ["m"]}',
        b'{"prompt": "model"}',
        b'{"model": "m"',
        b'{"model": "m"} trailing',
        b'{"model": "\xff"}',
        b"\xef\xbb\xbf{}",
        b"--boundary\r\nContent-Disposition: form-data\r\n\r\n",
        b"\x00\x01\x02",
    ],
)
def test_a_body_that_names_no_model_names_none(body: bytes) -> None:
    assert model_of(body) is None


@pytest.mark.parametrize("opening", [b"[", b'{"a":'])
def test_a_bottomless_body_names_none(opening: bytes) -> None:
    assert model_of(b'{"model": "m", "deep": ' + opening * 100_000) is None


def test_a_huge_prompt_hides_no_model() -> None:
    """Report 25: long prompts."""
    body = b'{"prompt": "' + b"x" * 20_000_000 + b'", "model": "m"}'
    assert model_of(body) == "m"


@settings(deadline=None, max_examples=150)
@given(st.one_of(st.binary(), st.binary().map(lambda rest: b'{"model": ' + rest)))
def test_rubbish_never_raises(body: bytes) -> None:
    assert model_of(body) is None or isinstance(model_of(body), str)
