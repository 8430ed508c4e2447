"""One event, one line."""

import logging

import pytest

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
