"""Asking a running router's admin port for a page, for commands that people run.

Rule: whatever goes wrong is one line for the operator: which address, what happened, what to do.
"""

import argparse
import http.client
from collections.abc import Iterable
from typing import Final

from ullage_router.config import Config
from ullage_shared.address import Address, AddressError, parse_listen
from ullage_shared.peer import why_unreachable
from ullage_shared.plain import plain

WITHIN_S: Final = 5.0
MOST_BYTES: Final = 256 * 1024 * 1024
"""Of an answer. A thousand replicas take about one."""


class AdminError(Exception):
    """No page was to be had. One line says where, why, and what to do."""


def admin_flag(parser: argparse.ArgumentParser) -> None:
    """Give a command the flag that says which router it is about, as an `Address` in `admin`."""
    usual = Config().admin
    parser.add_argument(
        "--admin",
        type=_address,
        default=parse_listen(usual),
        metavar="HOST:PORT",
        help=f"the router's `admin` address; default: {usual}",
    )


def fetch(
    admin: Address,
    path: str,
    body: bytes | None = None,
    headers: Iterable[tuple[str, str]] = (),
) -> tuple[int, bytes]:
    """Get the page at `path`, or send `body` there by POST: the answer's status, and its body.

    Any status is an answer. Raises `AdminError` when there is none, within `WITHIN_S` for each of
    connecting, sending and every piece that is read.
    """
    connection = http.client.HTTPConnection(admin.host, admin.port, timeout=WITHIN_S)
    try:
        connection.request("GET" if body is None else "POST", path, body, dict(headers))
        answer = connection.getresponse()
        content = answer.read(MOST_BYTES + 1)
        if len(content) <= MOST_BYTES and answer.length:
            raise http.client.IncompleteRead(content, answer.length)
    except TimeoutError as error:
        why = f"the router at {admin} gives no answer within {WITHIN_S:g} s"
        raise AdminError(f"{why}: it hangs, or something on the way does") from error
    except (http.client.HTTPException, ValueError) as error:  # Some of these are `OSError`s, too.
        why = f"what answers at {admin} is no router's `admin`: {_brief(error)}"
        raise AdminError(f"{why}; see --admin") from error
    except OSError as error:
        why = f"no router answers at {admin}: {why_unreachable(error)}"
        raise AdminError(f"{why}; is it running, and is that its `admin`? See --admin") from error
    finally:
        connection.close()
    if len(content) > MOST_BYTES:
        raise AdminError(f"{path} at {admin} is larger than {MOST_BYTES} bytes; see --admin")
    return answer.status, content


def _brief(error: Exception) -> str:
    return plain(" ".join(f"{type(error).__name__} {error}".split())[:160])


def _address(text: str) -> Address:
    try:
        admin = parse_listen(text)
    except AddressError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if not admin.port:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted the port that the router listens on")
    return admin
