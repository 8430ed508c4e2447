"""Words for peers that do not answer."""

import socket
import ssl

import pytest

from ullage_shared.peer import why_unreachable


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
