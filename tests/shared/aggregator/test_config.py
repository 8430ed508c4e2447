"""The aggregator's configuration, and what a reload may change of it."""

from pathlib import Path

import pytest

from certificates import Authority
from guarded import issued, token_file
from ullage_shared.aggregator.__main__ import main
from ullage_shared.aggregator.config import Access, Config, Tls, changes, read
from ullage_shared.config import ConfigError

S = "http://gpu-01:9400"


def test_a_file_is_read_and_flags_are_laid_over_it(tmp_path: Path) -> None:
    file = tmp_path / "aggregator.toml"
    file.write_text(f'node = "agg-01"\nsidecars = ["{S}"]\nreport_interval_s = 2.0\n')
    assert read(file, {"node": "other"}) == Config(
        node="other", sidecars=(S,), report_interval_s=2.0
    )


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({}, "sidecars = []: wanted at least one"),
        ({"sidecars": ("nonsense",)}, "sidecars = 'nonsense': wanted http://host:port, file:"),
        ({"sidecars": (S,), "listen": "x"}, "listen = 'x': wanted host:port"),
        ({"sidecars": (S,), "report_interval_s": 0.0}, "report_interval_s = 0.0: wanted"),
        ({"sidecars": (S,), "node": "a b"}, "node = 'a b': wanted"),
    ],
)
def test_nonsense_is_refused_by_name(flags: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match="wanted") as refused:
        read(None, flags)
    assert named in str(refused.value)


def test_a_reload_may_change_whom_it_hears_and_how_often() -> None:
    old, new = Config(sidecars=(S,), node="n"), Config(poll_interval_s=1.0, node="n")
    assert changes(old, new) == ("sidecars", "poll_interval_s")
    assert changes(old, old) == ()
    for other in (
        Config(listen=":1", node="n"),
        Config(node="m"),
        Config(report_interval_s=9.0, node="n"),
        Config(tls=Tls(certificate="x"), node="n"),
        Config(tls=Tls(client_ca="x"), node="n"),
        Config(access=Access(token="x"), node="n"),
    ):
        with pytest.raises(ConfigError, match="cannot change while it runs"):
            changes(Config(node="n"), other)
    one, another = (Config(access=Access(token=file), node="n") for file in "ab")
    assert changes(one, another) == ("access.token",)
    assert changes(old, Config(sidecars=(S,), tls=Tls(ca="x"), node="n")) == ("tls.ca",)


def test_what_check_prints_is_a_file_that_is_in_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--print"]) == 0
    file = tmp_path / "aggregator.toml"
    file.write_text(capsys.readouterr().out)
    assert main(["check", str(file)]) == 0
    assert "file:/etc/ullage/sidecars.yml" in capsys.readouterr().out
    assert main(["check"]) == 2


def test_check_reads_all_files_and_says_all_that_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tls, token = issued(Authority(), tmp_path / "issued"), token_file(tmp_path)
    file = tmp_path / "aggregator.toml"
    text = (
        f"sidecars = ['{S}']\n[access]\ntoken = '%s'\nsidecar_token = '%s'\n[tls]\n"
        f"certificate = '{tls.certificate}'\nkey = '{tls.key}'\nca = '%s'\n"
    )
    file.write_text(text % (token, token, tls.certificate))
    assert main(["check", str(file)]) == 0
    assert "0.0.0.0:9402 (TLS, with a token)" in capsys.readouterr().out
    file.write_text(text % (f"{token}-none", f"{token}-none", token))
    assert main(["check", str(file)]) == 2
    told = capsys.readouterr().err.splitlines()
    keys = ["access.token", "tls.ca", "access.sidecar_token"]
    assert [line.split()[2] for line in told] == keys
