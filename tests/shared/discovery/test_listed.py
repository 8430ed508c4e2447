"""Lists of servers in Prometheus' file_sd form."""

import json

import pytest

from ullage_shared.discovery.listed import Found, ListError, listed


def read(groups: object) -> Found:
    """The same in both forms."""
    text = json.dumps(groups).encode()
    found = listed(text, yaml=False)
    assert listed(text, yaml=True) == found, "JSON is YAML"
    return found


def test_targets_of_all_groups_are_listed_once_and_in_order() -> None:
    found = read(
        [{"targets": ["B:1", "a:2"], "labels": {"rack": "r1"}}, {"targets": ["a:2", "c:3"]}]
    )
    assert found == Found(("http://b:1", "http://a:2", "http://c:3"))


def test_yaml_is_read_as_people_write_it() -> None:
    text = b"# ours\n- targets:\n  - gpu-01:9400\n  - 'https://gpu-02:9400'\n"
    assert listed(text, yaml=True).urls == ("http://gpu-01:9400", "https://gpu-02:9400")


def test_the_scheme_is_the_groups() -> None:
    groups = [{"targets": ["a:1"], "labels": {"__scheme__": "https"}}, {"targets": ["b:1"]}]
    assert read(groups).urls == ("https://a:1", "http://b:1")


def test_a_target_that_is_none_is_refused_by_name_and_costs_no_other() -> None:
    found = read([{"targets": ["a:1", "b/metrics", "c:port", "d:4"]}])
    assert found.urls == ("http://a:1", "http://d:4")
    assert [entry.partition(": ")[0] for entry in found.refused] == [
        "[0].targets[1]",
        "[0].targets[2]",
    ]
    assert "'http://b/metrics'" in found.refused[0]


@pytest.mark.parametrize("empty", [[], [{"targets": []}], [{"targets": [], "labels": {}}]])
def test_a_list_that_is_empty_means_it(empty: object) -> None:
    assert read(empty) == Found((), meant=True)


def test_a_list_of_bad_targets_alone_does_not_mean_that_there_is_nobody() -> None:
    assert not read([{"targets": ["a/b"]}]).meant


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"null",
        b"{}",
        b'{"targets": ["a:1"]}',
        b'["a:1"]',
        b'[{"targets": "a:1"}]',
        b'[{"target": ["a:1"]}]',
        b'[{"targets": [1]}]',
        b'[{"targets": ["a:1"], "labels": ["x"]}]',
        b'[{"targets": ["a:1"]',
        b"\xff\xfe",
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("yaml", [False, True])
def test_what_is_no_such_list_is_refused_whole(text: bytes, yaml: bool) -> None:
    with pytest.raises(ListError):
        listed(text, yaml=yaml)


def test_yaml_makes_nothing_but_plain_values() -> None:
    with pytest.raises(ListError):
        listed(b"!!python/object/apply:os.getcwd []", yaml=True)
