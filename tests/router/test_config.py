"""What operators may write, and what they are told when it is wrong: key, value, wanted, origin."""

from pathlib import Path

import pytest

from ullage_router.__main__ import main
from ullage_router.cli import configure, parser
from ullage_router.config import Config, Limits, Policy
from ullage_shared.config import ConfigError, keys

REPLICA = "http://gpu-01:8000"
FILE = f"""
listen = "[::]:8080"
replicas = ["{REPLICA}"]
sidecars = ["http://gpu-01:9400", "http://[::1]:9400"]
poll_interval_s = 0.25

[choose]
floor = 0.2
exponent = 1.5

[limits]
max_body_bytes = 1000
"""


def configured(*arguments: str) -> Config:
    return configure(parser().parse_args(arguments))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "router.toml"


def test_a_file_is_read_and_the_rest_is_default(file: Path) -> None:
    file.write_text(FILE)
    config = configured("--config", str(file))
    assert config == Config(
        listen="[::]:8080",
        replicas=(REPLICA,),
        sidecars=("http://gpu-01:9400", "http://[::1]:9400"),
        poll_interval_s=0.25,
        choose=Policy(floor=0.2, exponent=1.5),
        limits=Limits(max_body_bytes=1000),
    )


def test_flags_alone_are_enough() -> None:
    config = configured("--replica", REPLICA, "--replica", "http://b:1", "--sidecar", "http://s:1")
    assert config.replicas == (REPLICA, "http://b:1")
    assert config.sidecars == ("http://s:1",)
    assert config.choose == Policy()


def test_a_flag_beats_the_same_key_in_the_file(file: Path) -> None:
    file.write_text(FILE)
    config = configured("--config", str(file), "--listen", "127.0.0.1:1", "--replica", "http://b:1")
    assert (config.listen, config.replicas) == ("127.0.0.1:1", ("http://b:1",))
    assert config.sidecars == ("http://gpu-01:9400", "http://[::1]:9400")


WRONG = {
    "poll_interval_s = -1": ("poll_interval_s", "-1", "number >= 0.02"),
    "poll_interval_s = 'x'": ("poll_interval_s", "'x'", "number"),
    "poll_interval_s = nan": ("poll_interval_s", "nan", "number"),
    "[choose]\nfloor = 1.0": ("choose.floor", "1.0", "number < 1.0"),
    "[choose]\nexponent = 17": ("choose.exponent", "17", "number <= 16.0"),
    "[choose]\nexponent = 'fast'": ("choose.exponent", "'fast'", "wanted a number or auto"),
    "[choose]\nway = 'fastest'": ("choose.way", "'fastest'", "weighted or highest or"),
    "[affinity]\nsession_header = 'a b'": ("affinity.session_header", "'a b'"),
    "[affinity]\nstay_above = 0.1": ("affinity.stay_above", "0.1", "no less than choose.floor"),
    "[choose]\nforget_after_s = 3": ("choose.forget_after_s", "3.0", "more than choose.stale"),
    "poll_interval_s = 3": ("choose.stale_after_s", "3.0", "more than poll_interval_s = 3.0"),
    "[queue]\nmax_wait_s = 2.1": ("queue.max_wait_s", "2.1", "number <= 2.0"),
    "[choose]\nstale_after_s = 0": ("choose.stale_after_s", "0", "number > 0.0"),
    "[breaker]\nset_aside_s = -0.5": ("breaker.set_aside_s", "-0.5", "number >= 0.0"),
    "[limits]\nmax_head_bytes = 10": ("limits.max_head_bytes", "10", "whole number >= 1024"),
    "[limits]\nmax_body_bytes = 1.5": ("limits.max_body_bytes", "1.5", "whole number"),
    "[limits]\nidle_upstream_s = 'long'": ("limits.idle_upstream_s", "'long'", "number"),
    "workers = 0": ("workers", "0", "whole number >= 1"),
    "workers = 257": ("workers", "257", "whole number <= 256"),
    "workers = 'many'": ("workers", "'many'", "wanted a whole number or auto"),
    "workers = 1.5": ("workers", "1.5"),
    "replicas = 'http://a:1'": ("replicas", "'http://a:1'", "list"),
    "replicas = [5]": ("replicas[0]", "5", "string"),
    "listen = 8080": ("listen", "8080", "string"),
    "listen = 'nonsense'": ("listen", "'nonsense'", "host:port"),
    "listen = 'host:99999'": ("listen", "'host:99999'", "host:port"),
    "admin = '127.0.0.1'": ("admin", "'127.0.0.1'", "host:port"),
    "replicas = ['gpu-01:8000']": ("replicas", "'gpu-01:8000'", "http://host:port"),
    "replicas = ['ftp://gpu-01:8000']": ("replicas", "'ftp://gpu-01:8000'", "http://host:port"),
    "replicas = ['http://gpu-01:8000/v1']": (
        "replicas",
        "'http://gpu-01:8000/v1'",
        "http://host:port",
    ),
    "sidecars = ['http://gpu-01:x']": ("sidecars", "'http://gpu-01:x'", "http://host:port"),
}


@pytest.mark.parametrize(("text", "told"), WRONG.items(), ids=WRONG.keys())
def test_nonsense_is_refused_by_key_value_wish_and_origin(
    text: str, told: tuple[str, str, str], file: Path
) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as error:
        configured("--config", str(file))
    message = str(error.value)
    for part in (*told, str(file)):
        assert part in message
    assert message.startswith(told[0])
    assert "\n" not in message


FLAGS = {
    ("--listen", "nonsense"): ("listen", "'nonsense'", "host:port", "--listen"),
    ("--admin", "nonsense"): ("admin", "'nonsense'", "host:port", "--admin"),
    ("--workers", "0"): ("workers", "0", "whole number >= 1", "--workers"),
    ("--workers", "-2"): ("workers", "-2", "whole number >= 1", "--workers"),
    ("--workers", "all"): ("workers", "'all'", "--workers"),
    ("--replica", "nonsense"): ("replicas", "'nonsense'", "http://host:port", "--replica"),
    ("--sidecar", "nonsense"): ("sidecars", "'nonsense'", "http://host:port", "--sidecar"),
}


@pytest.mark.parametrize(("flags", "told"), FLAGS.items(), ids=["=".join(f) for f in FLAGS])
def test_a_flag_with_nonsense_is_named_though_there_is_a_file(
    flags: tuple[str, str], told: tuple[str, ...], file: Path
) -> None:
    file.write_text(FILE)
    with pytest.raises(ConfigError) as error:
        configured("--config", str(file), *flags)
    for part in told:
        assert part in str(error.value)
    assert str(file) not in str(error.value)


@pytest.mark.parametrize("text", ["poll_intervall_s = 1", "[choose]\nflor = 1", "[limit]\nx = 1"])
def test_a_key_that_nothing_reads_is_refused(text: str, file: Path) -> None:
    """SMG's lesson: no flag that silently does nothing."""
    file.write_text(text)
    with pytest.raises(ConfigError, match="no such key"):
        configured("--config", str(file), "--replica", REPLICA)


def test_nobody_to_route_to_is_refused(file: Path) -> None:
    with pytest.raises(ConfigError, match="replicas, sidecars: at least one"):
        configured()
    file.write_text("")
    with pytest.raises(ConfigError, match=r"router\.toml"):
        configured("--config", str(file))


@pytest.mark.parametrize(
    ("content", "told"),
    [(None, "cannot be read"), (b"= nonsense", "not TOML"), (b"\xff\xfe", "not TOML")],
)
def test_a_file_that_cannot_be_used_is_named(content: bytes | None, told: str, file: Path) -> None:
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ConfigError, match=told) as error:
        configured("--config", str(file))
    assert str(file) in str(error.value)


def test_a_wrong_configuration_is_exit_status_2_and_a_line_for_each_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--listen", "nonsense", "--admin", "none"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["ullage-router"] * 3
    assert [line.split()[1] for line in said] == ["listen", "admin", "replicas,"]


def test_all_that_does_not_go_together_is_told_at_once(file: Path) -> None:
    file.write_text("poll_interval_s = 3\nlisten = 'x'\n[affinity]\nstay_above = 0.1")
    with pytest.raises(ConfigError) as error:
        configured("--config", str(file))
    keys_told = [fault.split()[0].rstrip(",") for fault in error.value.faults]
    assert keys_told == ["listen", "choose.stale_after_s", "affinity.stay_above", "replicas"]


def test_every_key_says_what_it_is() -> None:
    described = {key.name: key.description for key in keys(Config)}
    assert all(len(text) > 20 for text in described.values())
    timed = [n for n in described if n.endswith("_s") and not n.endswith("_per_s")]
    assert all("in seconds" in described[name] for name in timed)
