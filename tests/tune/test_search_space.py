"""What is searched is what can be configured, and what is printed is what was measured."""

import tomllib
from random import Random

import pytest

from ullage_router.config import Config as RouterConfig
from ullage_router.config import at_odds
from ullage_router.core.policy import Policy, Way
from ullage_shared.config import keys, load
from ullage_shared.snapshot import LONG_FROM_TOKENS, SHORT_UP_TO_TOKENS, RequestClass
from ullage_sidecar.config import Config as SidecarConfig
from ullage_sidecar.config import read
from ullage_sidecar.core.settings import Settings
from ullage_tune.ours import Ours
from ullage_tune.search.setting import Setting, toml
from ullage_tune.search.space import OWN, PARTS, ROOM, WEIGHTS, Space, classes_in

ALL = tuple(RequestClass)
ENGINE = {"engine": [{"url": "http://gpu-03:8000"}]}


def points(space, number, seed=1):
    dice = Random(seed)
    return [{n: dice.randrange(size) for n, size in space.sizes.items()} for _ in range(number)]


@pytest.mark.parametrize("way", Way)
def test_the_default_is_a_point_and_differs_in_nothing_but_the_way(way):
    space = Space(way, ALL)
    tables = {} if way is Policy().way else {"choose": {"way": way.value}}
    assert space.setting(space.default) == Setting({}, tables)
    assert all(0 <= space.default[name] < size for name, size in space.sizes.items())
    assert space.default.keys() == space.sizes.keys()


@pytest.mark.parametrize("way", Way)
def test_every_searched_key_is_a_key_of_the_configuration_with_its_default_among_the_values(way):
    there = {key.name: key.default for key in (*keys(SidecarConfig), *keys(RouterConfig))}
    space = Space(way, ALL)
    for name, value in space.values(space.default).items():
        assert value == there[name]


@pytest.mark.parametrize("way", Way)
def test_every_value_is_accepted_by_the_real_readers_and_reads_back_the_same(way, tmp_path):
    space = Space(way, ALL)
    sidecar_file, router_file = tmp_path / "sidecar.toml", tmp_path / "router.toml"
    tried = [*points(space, 60), space.default]
    for name, size in space.sizes.items():
        tried += [{**space.default, name: index} for index in range(size)]
    for point in tried:
        setting = space.setting(point)
        sidecar_file.write_text(toml(setting.sidecar))
        router_file.write_text(toml(setting.router))
        sidecar = read(sidecar_file, ENGINE)  # Which refuses weights that do not sum to 1.
        router = load(RouterConfig, router_file, {})
        assert list(at_odds(router)) == []
        assert router.choose.way is way
        for key, value in space.values(point).items():
            found = router if key.startswith("choose.") else sidecar
            for part in key.split("."):
                found = getattr(found, part)
            assert found == value
        policy = setting.policy()
        assert policy.rules.choose == router.choose
        for table in ("score", "window", "penalty", "depletion"):
            default = getattr(Settings(), table)
            assert policy.sidecar.get(table, default) == getattr(sidecar, table)


def test_only_what_differs_is_told_and_of_weights_all_three_which_belong_together():
    space = Space(Way.WEIGHTED, [RequestClass.SHORT])
    way = dict(space.setting(space.default).router)
    point = {**space.default, "window.span_s": 0, "score.short.free_weight": 5}
    setting = space.setting(point)
    assert tomllib.loads(toml(setting.sidecar)) == {
        "window": {"span_s": 0.1},
        "score": {
            "short": {"free_weight": 0.25, "running_weight": 0.5, "waiting_weight": 0.25},
        },
    }
    assert setting.router == way
    exponent = space.setting({**space.default, "choose.exponent": 0})
    assert exponent == Setting({}, {"choose": {**way.get("choose", {}), "exponent": 0.5}})
    assert toml({}) == ""


def test_the_default_setting_is_what_ships():
    assert Setting({}, {}).policy() == Ours()


def test_weights_reach_every_corner_of_the_simplex_and_never_leave_it():
    space = Space(Way.WEIGHTED, [RequestClass.MIXED])
    seen = set()
    for free in range(PARTS + 1):
        for share in range(PARTS + 1):
            point = {**space.default, "score.free_weight": free, "score.running_weight": share}
            values = space.values(point)
            weights = tuple(values[f"score.{weight}"] for weight in WEIGHTS)
            assert sum(weights) == pytest.approx(1.0, abs=1e-12)
            assert min(weights) >= 0.0
            seen.add(tuple(round(PARTS * weight) for weight in weights))
    assert seen == {(a, b, PARTS - a - b) for a in range(PARTS + 1) for b in range(PARTS + 1 - a)}


@pytest.mark.parametrize(
    ("way", "own", "weights"),
    [
        (Way.WEIGHTED, "choose.exponent", True),
        (Way.HIGHEST, None, True),
        (Way.LEAST_WAIT, "choose.temperature", False),
        (Way.LEAST_IN_FLIGHT, None, False),
        (Way.TWO_CHOICES, None, False),
        (Way.ROUND_ROBIN, None, False),
    ],
)
def test_only_what_matters_for_the_way_is_searched(way, own, weights):
    names = set(Space(way, [RequestClass.LONG]).sizes)
    expected = {ladder.key for ladder in ROOM} | ({own} if own else set())
    if weights:
        expected |= {"score.long.free_weight", "score.long.running_weight"}
    assert names == expected


def test_values_are_written_once_each_and_numbers_ascend():
    for ladder in (*ROOM, *OWN.values()):
        assert len(set(ladder.values)) == len(ladder.values)
        if isinstance(ladder.values[0], float):
            assert list(ladder.values) == sorted(ladder.values)


def test_a_class_matters_from_one_request_in_a_hundred_on():
    short, mixed, long = SHORT_UP_TO_TOKENS, SHORT_UP_TO_TOKENS + 1, LONG_FROM_TOKENS
    assert classes_in([short] * 99 + [long]) == (RequestClass.SHORT, RequestClass.LONG)
    assert classes_in([short] * 100 + [long]) == (RequestClass.SHORT,)
    assert classes_in([mixed]) == (RequestClass.MIXED,)
    assert classes_in([]) == ()
