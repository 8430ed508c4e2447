"""Addresses as operators write them."""

import pytest

from ullage_shared.address import (
    Address,
    AddressError,
    parse_base_url,
    parse_listen,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        (":8080", Address("0.0.0.0", 8080)),
        ("[::]:8080", Address("::", 8080)),
        ("localhost:0", Address("localhost", 0)),
    ],
)
def test_places_to_listen_at(text, address):
    assert parse_listen(text) == address


@pytest.mark.parametrize(
    "text", ["", "8080", "host", "host:", "host:x", "host:70000", "a:1/b", "u@h:1", "[::1:1"]
)
def test_what_is_no_place_to_listen_at_is_repeated_in_the_error(text):
    with pytest.raises(AddressError) as refused:
        parse_listen(text)
    assert repr(text) in str(refused.value)
    assert "wanted" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "url", "address"),
    [
        ("http://gpu-03:8000", "http://gpu-03:8000", Address("gpu-03", 8000)),
        ("HTTP://GPU-03:8000/", "http://gpu-03:8000", Address("gpu-03", 8000)),
        ("http://gpu-03", "http://gpu-03:80", Address("gpu-03", 80)),
        ("http://[::1]:8000", "http://[::1]:8000", Address("::1", 8000)),
        ("https://gpu-03", "https://gpu-03:443", Address("gpu-03", 443, tls=True)),
        ("HTTPS://gpu-03:8443", "https://gpu-03:8443", Address("gpu-03", 8443, tls=True)),
    ],
)
def test_a_base_url_has_one_normal_form(text, url, address):
    assert parse_base_url(text) == (url, address)
    assert parse_base_url(url) == (url, address)


@pytest.mark.parametrize(
    "text",
    [
        "", "gpu:8000", "ftp://gpu:8000", "http://", "http://:1", "http://g:8000/v1",
        "http://g#x", "http://g:99999", "http://[::1",
        "http://a..b:80", "http://.:80", "http://" + "x" * 64,
    ],
)  # fmt: skip
def test_what_is_no_base_url_is_repeated_in_the_error(text):
    with pytest.raises(AddressError) as refused:
        parse_base_url(text)
    assert repr(text) in str(refused.value)
    assert "wanted" in str(refused.value)


def test_an_address_is_written_as_in_a_url():
    assert str(Address("::1", 80)) == "[::1]:80"
    assert str(Address("a", 80)) == "a:80"


@pytest.mark.parametrize("secret", ["u:p", "u", "u:p@ss", "u:p/w", "u:p w"])
def test_a_password_in_a_url_is_not_repeated_in_the_error(secret):
    with pytest.raises(AddressError) as refused:
        parse_base_url(f"http://{secret}@g:1")
    assert secret not in str(refused.value)
    assert "…@g:1'" in str(refused.value)


def test_a_key_in_a_url_is_not_repeated_in_the_error():
    with pytest.raises(AddressError) as refused:
        parse_base_url("http://g:1/?secret")
    assert str(refused.value).startswith("'http://g:1/?…': wanted ")
