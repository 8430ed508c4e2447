"""Asking a router's admin port: an answer of any status, or one line that says what to do."""

import argparse
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from ullage_router import admin_client
from ullage_router.admin_client import AdminError, admin_flag, fetch
from ullage_shared.address import Address


@contextlib.contextmanager
def peer(answer: bytes | None) -> Iterator[tuple[Address, list[bytes]]]:
    """Somebody at a port who says `answer` to whoever asks and hangs up; None: who says nothing."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    heard.append(connection.recv(65536))
                    if answer is None:
                        connection.recv(1)  # Until the client leaves.
                    else:
                        connection.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        yield Address("127.0.0.1", listener.getsockname()[1]), heard
        listener.shutdown(socket.SHUT_RDWR)
        serving.join()


def answer(status: str, body: bytes) -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def test_a_page_is_got() -> None:
    with peer(answer("200 OK", b"{}")) as (admin, heard):
        assert fetch(admin, "/replicas") == (200, b"{}")
    assert heard[0].startswith(b"GET /replicas HTTP/1.1\r\n")


def test_a_body_is_sent_with_its_headers() -> None:
    with peer(answer("200 OK", b"{}")) as (admin, heard):
        assert fetch(admin, "/explain", b'{"a":1}', [("X-Session-Id", "me")]) == (200, b"{}")
    assert heard[0].startswith(b"POST /explain HTTP/1.1\r\n")
    assert b"\r\nX-Session-Id: me\r\n" in heard[0]


def test_a_refusal_is_an_answer() -> None:
    with peer(answer("503 Service Unavailable", b"no")) as (admin, _):
        assert fetch(admin, "/healthz") == (503, b"no")


def test_nobody_there_is_said_with_the_address_and_what_to_do() -> None:
    with peer(b"") as (admin, _):
        pass
    with pytest.raises(AdminError) as told:
        fetch(admin, "/status")
    assert str(told.value) == (
        f"no router answers at {admin}: Connection refused; is it running, and is that its "
        "`admin`? See --admin"
    )


def test_a_name_that_nobody_has_is_said() -> None:
    with pytest.raises(AdminError, match=r"^no router answers at nobody\.invalid:1: [^\n]+$"):
        fetch(Address("nobody.invalid", 1), "/status")


def test_who_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "WITHIN_S", 0.05)
    with (
        peer(None) as (admin, _),
        pytest.raises(AdminError, match=r"gives no answer within 0\.05 s: it hangs"),
    ):
        fetch(admin, "/status")


@pytest.mark.parametrize(
    "said",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x1b]0;owned\x07\x1b[2J\r\n",
        b"",
        answer("200 OK", b"{}")[:-1],
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnonsense\r\n",
        b"\x15\x03\x01\x00\x02\x02\x50" * 10_000,
    ],
    ids=["ssh", "escapes", "nothing", "cut", "bad-chunk", "tls"],
)
def test_who_speaks_no_http_is_no_router(said: bytes) -> None:
    with peer(said) as (admin, _), pytest.raises(AdminError) as told:
        fetch(admin, "/status")
    assert str(told.value).startswith(f"what answers at {admin} is no router's `admin`: ")
    assert str(told.value).isprintable()


def test_an_answer_without_end_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_client, "MOST_BYTES", 4)
    with (
        peer(answer("200 OK", b"12345")) as (admin, _),
        pytest.raises(AdminError, match="is larger than 4 bytes"),
    ):
        fetch(admin, "/status")


def test_the_flag_names_the_routers_usual_place() -> None:
    parser = argparse.ArgumentParser()
    admin_flag(parser)
    assert parser.parse_args([]).admin == Address("127.0.0.1", 9401)
    assert parser.parse_args(["--admin", "[::1]:7"]).admin == Address("::1", 7)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("gpu-01", "wanted host:port"),
        ("http://gpu-01:9401", "wanted host:port"),
        ("gpu-01:0", "wanted the port that the router listens on"),
    ],
)
def test_an_address_that_is_none_is_refused(
    given: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    admin_flag(parser)
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--admin", given])
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
