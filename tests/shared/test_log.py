"""One event, one line."""

import logging

import pytest
from aiohttp.http_exceptions import BadHttpMessage

from ullage_shared.log import SELDOM_S, Seldom, configure, line


def test_fields_are_key_value_and_quoted_where_they_must_be():
    text = line("state", engine="a", score=0.5, why='says "no"', none="", path="a=b")
    assert text == r'state engine=a score=0.5 why="says \"no\"" none="" path="a=b"'


def test_nothing_breaks_a_line():
    assert "\n" not in line("malformed", why="first\nsecond")


@pytest.fixture
def root():
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:], root.level = handlers, level


def test_even_a_traceback_is_one_line(root, capsys):
    configure("info")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        root.exception("trouble")
    assert capsys.readouterr().err.count("\n") == 1


def test_seldom_lets_one_through_per_interval():
    seldom = Seldom()
    allowed = [seldom.allows(100.0 + later_s) for later_s in (0.0, 1.0, SELDOM_S, SELDOM_S + 1.0)]
    assert allowed == [True, False, True, False]


def test_a_flood_of_what_is_no_http_is_one_line_and_no_traceback(root, capsys):
    configure("info")
    server = logging.getLogger("aiohttp.server")
    error = BadHttpMessage("Invalid character in header:\n\n    b'" + "x" * 10_000)
    for _ in range(50):
        server.error("Error handling request from %s", "127.0.0.1", exc_info=error)
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith('level=WARNING not_http why="400, message: Invalid character in header')
    assert len(said) < 250


def test_a_fault_of_our_own_keeps_its_traceback(root, capsys):
    configure("info")
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("aiohttp.server").exception("Error handling request")
    assert "ZeroDivisionError" in capsys.readouterr().err
