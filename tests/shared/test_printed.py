"""What is printed is a file that means the same."""

import re

import msgspec
import pytest

import ullage_router.config
import ullage_sidecar.config
from ullage_router.core.policy import Policy
from ullage_shared.config import keys, load
from ullage_shared.printed import changed, printed, toml
from ullage_sidecar.config import EngineEntry

ROUTER = ullage_router.config.Config
SIDECAR = ullage_sidecar.config.Config
ODD = 'say "ü" \\ \x7f\t\n😀'
ENGINES = (
    EngineEntry(url="http://a:1"),
    EngineEntry(url="http://b:1", name="b", api_key_file=ODD, max_num_seqs=7),
)
CONFIGS = [
    ROUTER(),
    ROUTER(
        replicas=("http://a:1", ODD),
        workers="auto",
        name_why=True,
        choose=Policy(floor=1e-7, exponent="auto"),
    ),
    SIDECAR(node="n"),
    SIDECAR(node="n", engine=ENGINES, socket="/x"),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_read_again_it_is_the_same_and_so_with_all_defaults_written_out(config, tmp_path):
    file = tmp_path / "x.toml"
    text = printed(config)
    for written in (text, re.sub(r"^#(\w+ = )", r"\1", text, flags=re.M)):
        file.write_text(written)
        assert load(type(config), file, {}) == config


@pytest.mark.parametrize("config", CONFIGS[:2] + CONFIGS[3:])
def test_every_key_is_there_and_says_what_it_means(config):
    text = " ".join(printed(config).replace("\n# ", " ").split())
    for key in keys(type(config)):
        assert " ".join(key.description.split()) in text


def test_a_key_with_its_default_is_a_comment_and_of_another_the_default_is_told():
    text = printed(ROUTER(choose=Policy(floor=0.2)))
    assert "\n# default: 0.15\nfloor = 0.2\n" in text
    assert "\n#temperature = 1.0\n" in text


def test_what_differs_from_the_defaults_is_told_with_them():
    config = ROUTER(sidecars=("http://s:1",), choose=Policy(floor=0.2))
    assert list(changed(config)) == [
        ("sidecars", ("http://s:1",), ()),
        ("choose.floor", 0.2, 0.15),
    ]
    assert list(changed(EngineEntry(url="http://a:1"))) == [("url", "http://a:1", msgspec.UNSET)]


def test_values_are_written_as_toml_has_them():
    assert [toml(v) for v in (True, 1, 0.5, "a", ("a", "b"), ())] == [
        "true", "1", "0.5", '"a"', '["a", "b"]', "[]",
    ]  # fmt: skip
