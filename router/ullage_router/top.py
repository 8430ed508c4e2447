"""`ullage-router top`: a running router's replicas in a terminal, live; or once, for scripts.

Exit status: 0 it was shown; 1 no router answers there, or one that has no `/status`; 2 wrong
usage. Whether the replicas are well is not in it: see `/healthz`.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson

from ullage_router.admin_client import AdminError, admin_flag, fetch
from ullage_router.looks import Looks, Since
from ullage_router.screen import Screen
from ullage_router.top_table import LEAST_WIDTH, ORDERS, Line, View, rows_of, table
from ullage_router.top_view import head, problems
from ullage_shared import start
from ullage_shared.address import Address
from ullage_shared.plain import plain

_WINDOW_S: Final = 10.0
_OK: Final = 200
_NOT_FOUND: Final = 404
_MARKS: Final = "█▓▒/·"
_ASCII_MARKS: Final = "#=-/."
_KEYS: Final = "q quit, p problems only, s sort, arrows scroll"


def main(argv: Sequence[str] | None = None) -> int:
    """Carry it out. Returns the exit status."""
    options = parser().parse_args(argv)
    try:
        if options.json:
            sys.stdout.write(orjson.dumps(look(options.admin), option=_INDENTED).decode())
        elif options.once or not _can_be_live():
            once(options.admin, options.interval)
        else:
            live(options.admin, options.interval)
        sys.stdout.flush()
    except AdminError as error:
        return _fault(str(error))
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__} {error}"
        return _fault(f"what answers at {options.admin} is another version: {why}")
    except OSError as error:
        return 0 if start.unread(error) else _fault(f"standard output: {error.strerror}")
    except KeyboardInterrupt:
        return 130
    return 0


def _fault(why: str) -> int:
    sys.stderr.write(f"ullage-router top: {plain(why)}\n")
    return 1


_INDENTED: Final = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def parser() -> argparse.ArgumentParser:
    """The command line."""
    flags = argparse.ArgumentParser(
        prog="ullage-router top",
        description="Shows a running router's replicas: score, traffic, first bytes, and why one "
        "gets nothing. Live in a terminal; else, or with --once, one table.",
        epilog="exit status: 0 it was shown, 1 no router answers there, 2 wrong usage",
        allow_abbrev=False,
    )
    admin_flag(flags)
    flags.add_argument(
        "--once",
        action="store_true",
        help="look twice, an interval apart, and print one table",
    )
    flags.add_argument(
        "--interval",
        type=_seconds,
        default=1.0,
        metavar="S",
        help="seconds from look to look, 0.1 to 60; default: 1",
    )
    flags.add_argument("--json", action="store_true", help="print /status, once")
    return flags


def look(admin: Address) -> dict[str, Any]:
    """`/status`. Raises `AdminError`."""
    status, body = fetch(admin, "/status")
    try:
        page = orjson.loads(body)
    except ValueError:
        page = None
    if status == _OK and isinstance(page, dict) and "replicas" in page:
        return page
    if status not in (_OK, _NOT_FOUND):
        why = _message(page)
        raise AdminError(f"{admin} answered {status}{why and f': {why}'}")
    raise AdminError(
        f"what answers at {admin} has no /status (it said {status}): a router of this "
        "version has; see --admin"
    )


def _message(page: object) -> str:
    """What a refusal says in words; empty: nothing."""
    error = page.get("error") if isinstance(page, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""


def once(admin: Address, apart_s: float, pause: Callable[[float], object] = time.sleep) -> None:
    """Print the table. Raises `AdminError`."""
    looks = Looks(_WINDOW_S)
    looks.take(look(admin), time.monotonic())
    pause(apart_s)
    since = looks.take(look(admin), time.monotonic())
    for part in table(rows_of(since, View(order=1)), None):
        sys.stdout.write("".join(f"{plain(line.text)}\n" for line in part))
    for line in problems(since):
        sys.stderr.write(f"{plain(line.text)}\n")


def live(admin: Address, interval_s: float) -> None:
    """Show it until somebody has seen enough. Raises `AdminError` if there is nothing to show."""
    looks, view, lost = Looks(_WINDOW_S), View(), ""
    since = looks.take(look(admin), time.monotonic())
    heard = time.strftime("%H:%M:%S")
    due_s = time.monotonic() + interval_s
    with Screen(colour=not os.environ.get("NO_COLOR")) as screen:
        while True:
            shown = f"NO ANSWER since {heard}: {lost}" if lost else ""
            view = _drawn(screen, since, admin, view, shown)
            key = screen.key(due_s - time.monotonic())
            if key == "q":
                return
            view = after(view, key, screen.size[1])
            if time.monotonic() < due_s:
                continue
            try:
                since, lost = looks.take(look(admin), time.monotonic()), ""
                heard = time.strftime("%H:%M:%S")
            except AdminError as error:
                lost = plain(str(error))
            due_s = max(due_s + interval_s, time.monotonic())


def after(view: View, key: str, height: int) -> View:
    """What is wanted after a key."""
    if key == "p":
        return view._replace(only_troubled=not view.only_troubled, skip=0)
    if key == "s":
        return view._replace(order=(view.order + 1) % len(ORDERS), skip=0)
    by = {
        "up": -1,
        "down": 1,
        "page up": -height // 2,
        "page down": height // 2,
        "home": -view.skip,
    }
    return view._replace(skip=max(0, view.skip + by.get(key, 0)))


def _drawn(screen: Screen, since: Since, admin: Address, view: View, lost: str) -> View:
    """Draw it; returns the view, scrolled no further than there are rows."""
    width, height = screen.size
    lines = [Line(lost, "bad")] if lost else []
    lines += [*head(since, admin, time.strftime("%H:%M:%S")), *problems(since)]
    lines = lines[: max(1, height // 2 - 1)]
    rows = rows_of(since, view)
    marks = _MARKS if screen.utf8 else _ASCII_MARKS
    parts = table(rows, max(LEAST_WIDTH, width), marks)
    room = max(1, height - len(lines) - 2)
    view = view._replace(skip=min(view.skip, max(0, len(rows) - 1)))
    shown = 0
    body: list[Line] = []
    for part in parts[1 + view.skip :]:
        if len(body) + len(part) > room:
            break
        body += part
        shown += 1
    which = f"{view.skip + 1 if shown else 0}-{view.skip + shown} of {len(rows)}"
    order = ORDERS[view.order][0]
    foot = Line(f"{which} by {order}{', problems only' if view.only_troubled else ''}  {_KEYS}")
    screen.draw([*lines, *parts[0], *body], foot)
    return view


def _can_be_live() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 60.0:
        raise argparse.ArgumentTypeError(f"{text!r}: wanted 0.1 to 60 seconds")
    return seconds
