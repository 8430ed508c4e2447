"""One event, one line: as text, as JSON, for journald; and never a flood of them."""

import json
import logging
import os

import pytest
from aiohttp.http_exceptions import BadHttpMessage, InvalidHeader

from ullage_shared import log
from ullage_shared.log import OF_ALL, OF_ONE, SELDOM_S, Bounded, Seldom, configure, line


def test_fields_are_key_value_and_quoted_where_they_must_be():
    text = line("state", engine="a", score=0.5, why='says "no"', none="", path="a=b")
    assert text == r'state engine=a score=0.5 why="says \"no\"" none="" path="a=b"'


def test_what_is_none_is_no_field():
    assert line("state", engine=None, why=0) == "state why=0"


def test_nothing_breaks_a_line():
    assert "\n" not in line("malformed", why="first\nsecond")


@pytest.fixture
def root():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = handlers, level


@pytest.fixture
def said(root, capfd):
    """What stands on standard error by now."""

    def lines():
        for handler in root.handlers:
            handler.flush()
        return capfd.readouterr().err.splitlines()

    return lines


def trouble():
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("aiohttp.server").exception("Error handling request")


def test_a_line_has_its_time_its_level_its_event_and_its_fields(root, said):
    configure("info")
    root.warning(line("state", engine="a"))
    (text,) = said()
    when, rest = text.split(" ", 1)
    assert rest == "level=WARNING state engine=a"
    assert len(when) == len("ts=2026-01-31T12:00:00.000Z")


def test_below_its_level_nothing_is_said(root, said):
    configure("warning")
    root.info(line("state"))
    assert said() == []


def test_a_workers_lines_carry_its_number(root, said):
    configure("info", worker=2)
    root.info(line("stopped"))
    assert said()[0].endswith(" level=INFO worker=2 stopped")


def test_as_json_numbers_are_numbers_and_all_else_is_text(root, said):
    configure("info", "json", worker=1)
    values = {"text": 'a "b"\n', "count": 3, "share": 0.5, "odd": float("nan"), "on": True}
    root.error(line("event", why=ValueError("no"), **values))
    (text,) = said()
    told = json.loads(text)
    assert told.pop("ts").endswith("Z")
    assert told == {"level": "ERROR", "worker": 1, "event": "event", "why": "no"} | values | {
        "odd": "nan"
    }


def test_under_journald_a_line_has_its_priority_and_no_time(root, said, monkeypatch):
    there = os.fstat(2)
    monkeypatch.setenv("JOURNAL_STREAM", f"{there.st_dev}:{there.st_ino}")
    configure("debug")
    for level in (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR):
        root.log(level, line("event"))
    assert said() == [
        "<7>level=DEBUG event",
        "<6>level=INFO event",
        "<4>level=WARNING event",
        "<3>level=ERROR event",
    ]


@pytest.mark.parametrize("named", ["", "1:2", "nonsense"])
def test_another_file_than_journalds_is_not_journald(named, monkeypatch):
    monkeypatch.setenv("JOURNAL_STREAM", named)
    assert not log.under_journald(2)
    assert not log.under_journald(-1)


@pytest.mark.parametrize("form", log.FORMATS)
def test_what_libraries_log_is_one_line_with_its_traceback(root, said, form):
    configure("info", form)
    trouble()
    (text,) = said()
    for part in ("message", "aiohttp.server", "Error handling request", "ZeroDivisionError"):
        assert part in text


def test_what_a_library_logs_wrongly_is_told_without_its_arguments(root, said):
    configure("info", "text")
    logging.getLogger("aiohttp.server").error("of %d and %d", "one")
    (text,) = said()
    assert 'text="of %d and %d"' in text


def test_seldom_lets_one_through_per_interval_and_says_how_many_it_kept_back():
    seldom = Seldom()
    allowed = [
        (seldom.allows(100.0 + later_s), seldom.kept_back)
        for later_s in (0.0, 1.0, 2.0, SELDOM_S, SELDOM_S + 1.0, 2 * SELDOM_S, 4 * SELDOM_S)
    ]
    assert [kept_back for allows, kept_back in allowed if allows] == [None, 2, 1, None]


def test_of_one_event_about_one_peer_few_lines_pass_and_of_another_peer_still():
    bounded = Bounded()
    for _ in range(OF_ONE):
        assert bounded.allowed(line("left", replica="a"), 0.0) == "left replica=a"
    assert bounded.allowed(line("left", replica="a"), SELDOM_S / 2) is None
    assert bounded.allowed(line("joined", replica="a"), SELDOM_S / 2) == "joined replica=a"
    assert bounded.allowed(line("left", replica="b"), SELDOM_S / 2) == "left replica=b kept_back=1"
    assert bounded.allowed(line("left", replica="a"), SELDOM_S) == "left replica=a"


def test_of_one_event_so_many_pass_whoever_they_are_about():
    bounded = Bounded()
    passed = [bounded.allowed(line("left", replica=n), 0.0) for n in range(OF_ALL + 50)]
    assert [said is not None for said in passed] == [True] * OF_ALL + [False] * 50
    told = bounded.allowed(line("left", replica="last", kept_back=3), SELDOM_S)
    assert told == "left replica=last kept_back=53"


def test_what_is_kept_of_peers_does_not_grow_without_end():
    bounded = Bounded()
    for n in range(10 * OF_ALL):
        bounded.allowed(line("left", replica=n), 0.0)
    assert len(bounded._lines) <= OF_ALL + 1


def test_a_flood_is_bounded_wherever_it_comes_from(root, said):
    configure("info")
    for _ in range(1000):
        root.info(line("left", replica="a"))
        logging.getLogger("asyncio").error("trouble")
    assert len(said()) == 2 * OF_ONE


def test_a_flood_of_what_is_no_http_is_one_line_and_repeats_nothing_of_it(root, said):
    configure("info")
    server = logging.getLogger("aiohttp.server")
    for error in (BadHttpMessage("Invalid: Bearer secret"), InvalidHeader("secret")):
        for _ in range(50):
            server.error("Error handling request from %s", "127.0.0.1", exc_info=error)
    (text,) = said()
    assert text.endswith("level=WARNING not_http why=BadHttpMessage")
