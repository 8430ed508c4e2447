"""Configuration errors are one line in an operator's words."""

from typing import Annotated

import msgspec
import pytest
from msgspec import Meta

from ullage_shared.config import ConfigError, Key, keys, load


class Inner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    span_s: Annotated[float, Meta(gt=0.0, description="Seconds smoothed over.")] = 5.0


class Outer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: Annotated[str, Meta(description="Who.")]
    window: Inner = Inner()
    ports: Annotated[tuple[int, ...], Meta(description="Where.")] = ()


def written(tmp_path, text):
    path = tmp_path / "x.toml"
    path.write_text(text)
    return path


def test_file_flags_and_defaults_in_that_order_of_weakness(tmp_path):
    path = written(tmp_path, "name = 'file'\nports = [1]")
    assert load(Outer, path, {"name": "flag"}) == Outer(name="flag", ports=(1,))


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "name: is missing (x.toml)"),
        ("name = 5", "name = 5: wanted a string (x.toml)"),
        ("name = 'a'\nnam = 1", "nam: no such key, did you mean name? (x.toml)"),
        (
            "name = 'a'\n[window]\nspan = 1",
            "window.span: no such key, did you mean window.span_s? (x.toml)",
        ),
        (
            "name = 'a'\nspan_s = 1",
            "span_s: no such key, did you mean window.span_s? (x.toml)",
        ),
        ("name = 'a'\nother = 1", "other: no such key (x.toml)"),
        ("name = 'a'\n[window]\nspan_s = -1", "window.span_s = -1: wanted a number > 0.0 (x.toml)"),
        ("name = 'a'\nports = [1, 'b']", "ports[1] = 'b': wanted a whole number (x.toml)"),
    ],
)
def test_a_fault_names_key_value_wanted_and_file(tmp_path, text, complaint):
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        load(Outer, path, {})
    assert str(refused.value).replace(str(path), "x.toml") == complaint


EVERY_FAULT = """
nam = 1
ports = [1, 'b', 2, -0.5]
windows = [{}]

[window]
span_s = 'long'
"a.b" = 1
"""


def test_every_fault_is_told_and_each_once(tmp_path):
    with pytest.raises(ConfigError) as refused:
        load(Outer, written(tmp_path, EVERY_FAULT), {"ports": [1, "b", 2, -0.5]})
    assert sorted(fault.rpartition(" (")[0] for fault in refused.value.faults) == [
        "nam: no such key, did you mean name?",
        "name: is missing",
        "ports[1] = 'b': wanted a whole number",
        "ports[3] = -0.5: wanted a whole number",
        "window.a.b: no such key",
        "window.span_s = 'long': wanted a number",
        "windows: no such key, did you mean window?",
    ]
    assert str(refused.value) == "; ".join(refused.value.faults)


@pytest.mark.parametrize(
    "text", ["window = 5", "name = []", "ports = 'x'", "window = [1, 2]", "ports = [[], {}]"]
)
def test_looking_for_faults_comes_to_an_end(tmp_path, text):
    with pytest.raises(ConfigError):
        load(Outer, written(tmp_path, text), {})


def test_what_is_wrong_is_not_changed_for_whoever_gave_it():
    flags = {"name": "a", "ports": ["x"]}
    with pytest.raises(ConfigError):
        load(Outer, None, flags)
    assert flags == {"name": "a", "ports": ["x"]}


def test_a_fault_repeats_no_password():
    with pytest.raises(ConfigError) as refused:
        load(Outer, None, {"name": ["http://me:secret@host:1"]})
    assert "secret" not in str(refused.value)


def test_a_fault_of_a_flag_names_the_flag(tmp_path):
    with pytest.raises(ConfigError) as refused:
        load(Outer, written(tmp_path, ""), {"name": 3})
    assert str(refused.value) == "name = 3: wanted a string (--name)"


def test_a_fault_without_a_file_is_one_of_the_defaults():
    with pytest.raises(ConfigError, match=r"name: is missing \(defaults\)"):
        load(Outer, None, {})


@pytest.mark.parametrize("text", ["name = ", "a = 1\na = 2"])
def test_what_is_no_toml_is_said_so(tmp_path, text):
    with pytest.raises(ConfigError, match="not TOML"):
        load(Outer, written(tmp_path, text), {})


def test_a_file_that_is_not_text_is_said_so(tmp_path):
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not TOML"):
        load(Outer, path, {})


def test_keys_are_listed_flat_with_default_and_description():
    assert list(keys(Outer)) == [
        Key("name", None, "Who."),
        Key("window.span_s", 5.0, "Seconds smoothed over."),
        Key("ports", (), "Where."),
    ]
