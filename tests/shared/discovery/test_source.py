"""What an operator may write as a source of servers."""

import pytest

from ullage_shared.address import AddressError
from ullage_shared.discovery.source import Kind, Source, parse_source, url_of


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("HTTP://GPU-01:9400/", (Kind.URL, "http://gpu-01:9400")),
        ("https://gpu-01", (Kind.URL, "https://gpu-01:443")),
        ("http://[::1]:9400", (Kind.URL, "http://[::1]:9400")),
        ("file:/etc/ullage/s.yml", (Kind.FILE, "/etc/ullage/s.yml")),
        ("file:///etc/ullage/s.json", (Kind.FILE, "/etc/ullage/s.json")),
        ("file:/etc/ullage/*.yaml", (Kind.FILE, "/etc/ullage/*.yaml")),
        ("dns+http://Sidecars.Example:9400", (Kind.DNS, "sidecars.example", "http", 9400)),
        ("dns+https://sidecars", (Kind.DNS, "sidecars", "https", 443)),
        ("srv+http://_ullage._tcp.example", (Kind.SRV, "_ullage._tcp.example", "http", 80)),
        ("srv+https://_ullage._tcp.example", (Kind.SRV, "_ullage._tcp.example", "https", 443)),
    ],
)
def test_each_form_says_how_and_where_to_look(text: str, source: tuple[object, ...]) -> None:
    kind, where, *more = source
    read = parse_source(text)
    assert (read.text, read.kind, read.where) == (text, kind, where)
    if kind is Kind.DNS:
        assert [read.scheme, read.port] == more
    if kind is Kind.SRV:
        assert (read.scheme, read.port) == (more[0], 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "wanted http://host:port, file:/path.yml, dns"),
        ("gpu-01:9400", "wanted http://host:port, file:"),
        ("ftp://gpu-01", "wanted http://host:port or https"),
        ("ftp+http://gpu-01", "wanted http://host:port, file:"),
        ("consul+http://x:1", "wanted http://host:port, file:"),
        ("http://gpu-01:9400/v1", "and nothing behind it"),
        ("file:sidecars.yml", "wanted file:/"),
        ("file:/etc/ullage/sidecars.toml", "at its end"),
        ("file:", "wanted file:/"),
        ("dns+ftp://name", "wanted http://host:port"),
        ("dns+http://", "wanted http://host:port"),
        ("dns+http://10.0.0.1:9400", "wanted a name to look up, not an address"),
        ("dns+http://[::1]:9400", "wanted a name to look up, not an address"),
        ("dns+http://name:99999", "Port out of range"),
        ("srv+http://_ullage._tcp.example:9400", "wanted no port"),
        ("srv+http://_ullage._tcp.example/path", "nothing behind it"),
    ],
)
def test_anything_else_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(AddressError) as refused:
        parse_source(text)
    assert said in str(refused.value)
    assert repr(text) in str(refused.value)


def test_no_password_is_told_of_what_is_refused() -> None:
    with pytest.raises(AddressError) as refused:
        parse_source("dns+http://me:secret@name:1")
    assert "secret" not in str(refused.value)


def test_what_a_source_names_becomes_a_url_in_normal_form() -> None:
    assert url_of("http", "GPU-01", 9400) == "http://gpu-01:9400"
    assert url_of("https", "2001:db8::1", 443) == "https://[2001:db8::1]:443"
    with pytest.raises(AddressError):
        url_of("http", "a..b", 80)


def test_sources_are_values() -> None:
    assert parse_source("http://a:1") == Source("http://a:1", Kind.URL, "http://a:1")
