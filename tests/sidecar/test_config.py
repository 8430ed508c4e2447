"""Nonsense is refused in one line that names file or flag, key, value, and what was wanted."""

import pytest

from ullage_shared.config import ConfigError
from ullage_sidecar.config import EngineEntry, engine_flags, read
from ullage_sidecar.core.penalty import Form
from ullage_sidecar.core.smoothing import Smoothing

ENGINE = '[[engine]]\nurl = "http://gpu-03:8000"\n'


def written(tmp_path, text):
    path = tmp_path / "sidecar.toml"
    path.write_text(text)
    return path


def test_one_engine_is_all_that_must_be_said(tmp_path):
    config = read(written(tmp_path, ENGINE), {})
    assert config.engine == (EngineEntry(name="vllm", url="http://gpu-03:8000"),)
    assert config.listen == "0.0.0.0:9400"
    assert config.agent_listen == ""
    assert config.node


def test_every_table_is_read(tmp_path):
    text = """
        node = "gpu-03"
        socket = "/tmp/readings.sock"
        listen = "[::1]:9400"
        [score]
        free_weight = 0.2
        running_weight = 0.5
        waiting_weight = 0.3
        max_waiting = 20
        [score.short]
        free_weight = 0.1
        running_weight = 0.6
        waiting_weight = 0.3
        [score.long]
        free_weight = 0.7
        running_weight = 0.1
        [window]
        span_s = 2
        smoothing = "quantile"
        quantile = 0.5
        [penalty]
        form = "halve"
        threshold = 4
        floor = 0.1
        [depletion]
        slope_s = 10
        ahead_s = 1
        [warm_up]
        zero_until_s = 0
        ramp_until_s = 0
        ramp_factor = 1
        [health]
        interval_s = 0.5
        timeout_s = 0.5
        signs_of_life_s = 5
        hung_after_s = 60
        [[engine]]
        name = "a"
        url = "http://127.0.0.1:8000"
        [[engine]]
        name = "b"
        url = "HTTP://LocalHost:8001/"
    """
    config = read(written(tmp_path, text), {})
    assert config.score.max_waiting == 20.0
    short, long = config.score.short, config.score.long
    assert (short.free_weight, short.running_weight, short.waiting_weight) == (0.1, 0.6, 0.3)
    assert (long.free_weight, long.running_weight, long.waiting_weight) == (0.7, 0.1, 0.2)
    assert config.window.smoothing is Smoothing.QUANTILE
    assert config.penalty.form is Form.HALVE
    assert config.health.hung_after_s == 60.0
    assert [entry.url for entry in config.engine] == [
        "http://127.0.0.1:8000",
        "http://localhost:8001",
    ]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "engine = []: wanted at least one [[engine]], or --engine [NAME=]URL"),
        ("[[engine]]\nname = 'a'", "engine[0].url: is missing"),
        (
            "[[engine]]\nurl = 'http://g:1'\n[[engine]]\nname = 'b'\nurl = 'http://G:1/'",
            "engine[1].url = 'http://g:1': wanted a URL that no other engine has",
        ),
        ("[[engine]]\nurl = 'gpu:8000'", "engine[0].url = 'gpu:8000': wanted http://host:port"),
        ("[[engine]]\nurl = 'ftp://g'", "engine[0].url = 'ftp://g': wanted http://host:port"),
        (
            "[[engine]]\nurl = 'http://g/v1'",
            "engine[0].url = 'http://g/v1': wanted http://host:port and nothing behind it",
        ),
        (ENGINE * 2, "engine[1].name = 'vllm': wanted a name that no other engine has"),
        (ENGINE + "name = 'a/b'", "engine[0].name = 'a/b': wanted a string matching"),
        (ENGINE + "port = 1", "engine[0].port: no such key"),
        (ENGINE + "max_num_seqs = -1", "engine[0].max_num_seqs = -1: wanted a whole number >= 0"),
        ("[scrape]\nwhen = 'often'\n" + ENGINE, "scrape.when = 'often': wanted auto or never"),
        ("[scrape]\ninterval_s = 9\n" + ENGINE, "scrape.interval_s = 9: wanted a number <= 2.0"),
        ("[scores]\n" + ENGINE, "scores: no such key"),
        ("[score]\nweight = 1\n" + ENGINE, "score.weight: no such key"),
        (
            "[score]\nfree_weight = 0.6\n" + ENGINE,
            "score.free_weight + score.running_weight + score.waiting_weight = 1.1: "
            "wanted a sum of 1",
        ),
        (
            "[score.short]\nrunning_weight = 0.6\n" + ENGINE,
            "score.short.free_weight + score.short.running_weight + score.short.waiting_weight "
            "= 1.1: wanted a sum of 1",
        ),
        (
            "[score.long]\nfree_weight = 0.5\n" + ENGINE,
            "score.long.free_weight + score.long.running_weight + score.long.waiting_weight "
            "= 0.85: wanted a sum of 1",
        ),
        (
            "[score.long]\nfree_weight = -0.5\n" + ENGINE,
            "score.long.free_weight = -0.5: wanted a number >= 0",
        ),
        ("[score.short]\nmax_waiting = 1\n" + ENGINE, "score.short.max_waiting: no such key"),
        ("[score.huge]\n" + ENGINE, "score.huge: no such key"),
        ("[score]\nfree_weight = 1.5\n" + ENGINE, "score.free_weight = 1.5: wanted a number <= 1"),
        ("[score]\nfree_weight = nan\n" + ENGINE, "score.free_weight = nan: wanted a number >= 0"),
        ("[score]\nmax_waiting = inf\n" + ENGINE, "score.max_waiting = inf: wanted a number <="),
        ("[score]\nmax_waiting = 0\n" + ENGINE, "score.max_waiting = 0: wanted a number > 0"),
        ("[window]\nspan_s = -1.0\n" + ENGINE, "window.span_s = -1.0: wanted a number > 0"),
        ("[window]\nspan_s = '5s'\n" + ENGINE, "window.span_s = '5s': wanted a number"),
        ("[window]\nsmoothing = 'max'\n" + ENGINE, "window.smoothing = 'max'"),
        ("[penalty]\nform = 'third'\n" + ENGINE, "penalty.form = 'third'"),
        (
            "[warm_up]\nramp_until_s = 10.0\n" + ENGINE,
            "warm_up.ramp_until_s = 10.0: wanted warm_up.zero_until_s = 30.0 or more",
        ),
        (
            "[scrape]\ninterval_s = 2.0\n[health]\nsigns_of_life_s = 2.4\n" + ENGINE,
            "health.signs_of_life_s = 2.4: wanted scrape.interval_s + 0.5 = 2.5 or more, "
            'or scrape.when = "never"',
        ),
        ("[health]\ninterval_s = 0.0\n" + ENGINE, "health.interval_s = 0.0: wanted a number >="),
        ("listen = '9400'\n" + ENGINE, "listen = '9400': wanted host:port"),
        ("listen = 'a:99999'\n" + ENGINE, "listen = 'a:99999': "),
        ("agent_listen = '9401'\n" + ENGINE, "agent_listen = '9401': wanted host:port"),
        ("listen = ''\n" + ENGINE, "listen = '': wanted host:port"),
        ("node = ''\n" + ENGINE, "node = '': wanted a string matching"),
        ("socket = ''\n" + ENGINE, "socket = '': wanted a path of 1 to 99 bytes"),
        (f"socket = '/{'x' * 99}'\n" + ENGINE, "wanted a path of 1 to 99 bytes"),
        ("score = 3\n" + ENGINE, "score = 3: "),
        ("[score", "not TOML"),
    ],
)
def test_nonsense_is_refused_by_name(tmp_path, text, complaint):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        read(path, {})
    assert complaint in str(refused.value)
    assert str(path) in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "tables",
    [
        "[scrape]\ninterval_s = 2.0\n[health]\nsigns_of_life_s = 2.5\n",
        "[health]\nsigns_of_life_s = 1.5\n",
        "[scrape]\nwhen = 'never'\ninterval_s = 2.0\n[health]\nsigns_of_life_s = 1.5\n",
    ],
)
def test_silence_may_be_noticed_as_soon_as_a_late_page_is_no_silence(tmp_path, tables):
    """Else the score of a scraped engine would be unknown before each page."""
    assert read(written(tmp_path, tables + ENGINE), {}).engine


def test_flags_win_over_the_file_and_are_blamed_for_themselves(tmp_path):
    path = written(tmp_path, ENGINE)
    flags = {"engine": engine_flags(["a=http://x:1"]), "node": "n"}
    config = read(path, flags)
    assert config.engine == (EngineEntry(name="a", url="http://x:1"),)
    with pytest.raises(ConfigError, match=r"engine\[0\].url = 'x': .*\(--engine\)"):
        read(path, {"engine": engine_flags(["x"])})
    with pytest.raises(ConfigError, match=r"listen = 'x': .*\(--listen\)"):
        read(path, {"listen": "x"})


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        read(tmp_path / "none.toml", {})


def test_engine_flags_may_carry_a_name():
    assert engine_flags(["a=http://x:1", "http://y:2"]) == [
        {"name": "a", "url": "http://x:1"},
        {"url": "http://y:2"},
    ]
