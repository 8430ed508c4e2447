"""Who may send requests, and what goes on to replicas of what they sent."""

from hashlib import sha256
from pathlib import Path

import pytest

from data_plane import data_plane
from raw_client import request
from scripted_backend import Backend, answering, response
from ullage_router.http.access import NOTED, Access, made, read
from ullage_router.http.errors import NO_KEY, WRONG_KEY
from ullage_router.http.message import Request
from ullage_router.http.request import RequestReader
from ullage_shared.config import ConfigError

KEY, OTHER = b"ullage-abc", b"ullage-xyz"
KEYED = Access([sha256(KEY).digest(), sha256(OTHER).digest()])
REPLACING = Access([sha256(KEY).digest()], b"of-the-replica")
AUTHORIZED = (b"Authorization", b"Bearer " + KEY)
WELL = response(b"well")


def taken(*lines: bytes, target: bytes = b"/v1/models", access: Access = KEYED) -> RequestReader:
    reader = RequestReader(
        b"192.0.2.1", max_head_bytes=4096, max_headers=9, max_body_bytes=99, noted=NOTED
    )
    reader.access = access
    head = [b"GET " + target + b" HTTP/1.1", b"Host: a", *lines]
    reader.done = reader.feed(b"\r\n".join(head) + b"\r\n\r\n")  # type: ignore[attr-defined]
    return reader


def passed(*lines: bytes, access: Access) -> Request:
    (whole,) = taken(*lines, access=access).done  # type: ignore[attr-defined]
    assert isinstance(whole, Request)
    return whole


# Who may


@pytest.mark.parametrize("key", [KEY, OTHER])
@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER   "])
def test_a_key_of_the_file_opens(scheme: bytes, key: bytes) -> None:
    assert taken(b"authorization: " + scheme + key).refusal is None


@pytest.mark.parametrize(
    "said",
    [
        b"Bearer " + KEY[:-1],
        b"Bearer " + KEY + b"d",
        b"Bearer " + KEY.upper(),
        b"Bearer",
        b"Bearer ",
        b"",
        KEY,
        b"Basic " + KEY,
        b"Bearer " + KEY + b" " + KEY,
        b"Bearer " + KEY + b", Bearer " + KEY,
        b"Bearer " + sha256(KEY).hexdigest().encode(),
        b"Bearer \xff\xfe",
    ],
)
def test_nothing_else_does(said: bytes) -> None:
    assert taken(b"Authorization: " + said).refusal is WRONG_KEY


def test_without_a_key_or_with_two_nobody_may() -> None:
    assert taken().refusal is NO_KEY
    line = b"Authorization: Bearer " + KEY
    assert taken(line, line).refusal is WRONG_KEY


def test_a_file_without_keys_lets_nobody_in() -> None:
    assert taken(b"Authorization: Bearer " + KEY, access=Access([])).refusal is WRONG_KEY


@pytest.mark.parametrize("path", [b"/health", b"/ping", b"/health?x=1", b"http://a/health"])
def test_health_wants_no_key(path: bytes) -> None:
    assert taken(target=path).refusal is None


@pytest.mark.parametrize(
    "path", [b"/health/", b"//health", b"/Health", b"/v1/../health", b"/%68ealth", b"/healthz"]
)
def test_nothing_that_only_looks_like_health_goes_without(path: bytes) -> None:
    assert taken(target=path).refusal is NO_KEY


# What goes on


def test_what_clients_send_goes_on_where_the_router_has_no_key_of_its_own() -> None:
    line = b"authorization: Bearer " + KEY
    assert passed(line, b"x: 1", access=KEYED).fields.kept == [line, b"x: 1"]


def test_the_routers_own_key_goes_in_its_place() -> None:
    kept = passed(b"authorization: Bearer " + KEY, b"x: 1", access=REPLACING).fields.kept
    assert kept == [b"x: 1", b"Authorization: Bearer of-the-replica"]
    for_all = Access(None, b"of-the-replica")
    assert passed(b"x: 1", access=for_all).fields.kept == kept


def test_a_wish_for_another_protocol_is_judged_by_what_the_client_sent() -> None:
    """Its head is read twice."""
    lines = (b"Authorization: Bearer " + KEY, b"Connection: upgrade", b"Upgrade: h2c")
    kept = passed(*lines, access=REPLACING).fields.kept
    assert kept == [b"Authorization: Bearer of-the-replica"]


def test_nobody_who_prints_it_sees_a_key() -> None:
    assert repr(REPLACING) == "Access()"


# The files


def test_files_are_read(tmp_path: Path) -> None:
    keys, replica = tmp_path / "keys", tmp_path / "replica"
    key, line = made("team-a")
    keys.write_text(f"# ours\n\n{line}  # until May\n")
    replica.write_text("of-the-replica\n")
    access = read(str(keys), str(replica))
    assert access == Access([sha256(key.encode()).digest()], b"of-the-replica")
    assert access.replica_headers == {"Authorization": "Bearer of-the-replica"}
    assert read("", "") == Access()
    assert read("", "").idle


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ullage-abc\n", "line 1: wanted a name and the 64 hexadecimal digits of a SHA-256"),
        ("\na 12\n", "line 2: wanted a name and the 64 hexadecimal digits of a SHA-256"),
        (f"{'ab' * 32}\n", "line 1: wanted a name and the 64 hexadecimal digits of a SHA-256"),
    ],
)
def test_a_line_that_is_none_is_refused_by_its_number_and_not_shown(
    tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read(str(file), "")
    assert str(refused.value) == f"access.keys = {str(file)!r}: {why}"


@pytest.mark.parametrize("text", ["", " \n", "two words", "two\nlines\n", "umlaut-ä"])
def test_a_replicas_key_is_one_word(tmp_path: Path, text: str) -> None:
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(ConfigError, match="wanted one line, an API key without spaces") as refused:
        read("", str(file))
    assert "access.replica_key" in str(refused.value)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"access\.keys = .*: cannot be read: No such file"):
        read(str(tmp_path / "none"), "")


def test_each_new_key_is_another_and_its_line_does_not_show_it() -> None:
    (one, line), (other, _) = made("a"), made("a")
    assert one != other
    assert len(one) > 40
    assert one not in line


# In the data plane


async def test_a_client_without_a_key_gets_401_at_its_head_and_no_replica_hears_of_it() -> None:
    async with Backend(answering(WELL)) as backend, data_plane(backend.url) as plane:
        plane.proxy.admit(REPLACING)
        client = await plane.client()
        await client.send(request(body=b"x" * 50)[:-50])  # Its body does not come.
        answer = await client.answer()
        assert (answer.status, backend.requests) == (401, [])
        assert b'"code":"invalid_api_key"' in answer.body
        answer = await (await plane.client()).ask(request(headers=[AUTHORIZED]))
        assert answer.body == b"well"
        (asked,) = backend.requests
        assert asked.all(b"authorization") == [b"Bearer of-the-replica"]


async def test_who_may_changes_for_connections_that_are_open() -> None:
    async with Backend(answering(WELL)) as backend, data_plane(backend.url) as plane:
        client = await plane.client()
        assert (await client.ask(request())).status == 200
        plane.proxy.admit(KEYED)
        assert (await client.ask(request(headers=[AUTHORIZED]))).status == 200
        assert (await client.ask(request())).status == 401
        plane.proxy.admit(Access())
        assert plane.proxy.access is None
        assert (await (await plane.client()).ask(request())).status == 200
