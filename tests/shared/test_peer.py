"""What peers may send, and words for those that do not answer."""

import contextlib
import socket
import ssl

import pytest

from ullage_shared import peer
from ullage_shared.peer import TooLargeError, lines, why_unreachable


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 9)"), "Connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (OSError("no route"), "no route"),
        (OSError(), "OSError"),
        (
            ssl.SSLError(1, "WRONG_VERSION_NUMBER"),
            "no TLS with it: wrong version number",
        ),
        (
            ssl.SSLCertVerificationError(1, "certificate verify failed"),
            "its certificate is not accepted: certificate verify failed",
        ),
    ],
)
def test_a_failed_connection_is_told_in_the_systems_words(error, words):
    assert why_unreachable(error) == words


class Body:
    """A body that comes in these pieces."""

    def __init__(self, *pieces):
        self.pieces = pieces

    async def iter_any(self):
        for piece in self.pieces:
            yield piece


@pytest.mark.parametrize(
    ("pieces", "whole"),
    [
        ((), []),
        ((b"no end",), []),
        ((b"\n",), [[b""]]),
        ((b"a\n",), [[b"a"]]),
        ((b"a\nb\n\n",), [[b"a", b"b", b""]]),
        ((b"a", b"b\nc", b"d\ne"), [[b"ab"], [b"cd"]]),
        ((b"a\nb", b"\n"), [[b"a"], [b"b"]]),
        ((b"a", b"\n", b"\n"), [[b"a"], [b""]]),
    ],
)
async def test_lines_are_handed_on_whole_and_all_that_have_come_together(pieces, whole):
    assert [some async for some in lines(Body(*pieces))] == whole


@pytest.mark.parametrize(
    ("pieces", "fits"),
    [
        ((b"x" * 10, b"\n"), True),
        ((b"x" * 11, b"\n"), False),
        ((b"a\n" + b"x" * 11,), False),
        ((b"x" * 6, b"x" * 5, b"\n"), False),
        ((b"123456789\n", b"123456789\n"), True),
    ],
)
async def test_a_line_is_no_larger_than_a_body_may_be(pieces, fits, monkeypatch):
    monkeypatch.setattr(peer, "MOST_BYTES", 10)
    with contextlib.nullcontext() if fits else pytest.raises(TooLargeError, match="than 10 bytes"):
        assert [some async for some in lines(Body(*pieces))]
