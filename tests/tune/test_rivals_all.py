"""What every rival must do, whatever happens."""

from importlib import import_module
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fake_cluster import BlindCluster, FakeCluster, request
from ullage_tune.policy import Gauges
from ullage_tune.rivals import RIVALS

PROMPTS = st.lists(st.integers(0, 3), min_size=1, max_size=4)
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("request"), PROMPTS, st.integers(1, 400)),
        st.tuples(st.sampled_from(["first", "end"]), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("scrape"), st.integers(0, 20), st.integers(0, 10)),
        st.tuples(st.sampled_from(["join", "leave"]), st.integers(0, 9), st.just(0)),
        st.tuples(st.just("time"), st.floats(-5.0, 90.0), st.just(0)),
    ),
    max_size=60,
)
TOLD = {"omniscient", "dynamo", "llm_d_precise"}
"""Those that may ask what is cached, or more."""


class Play:
    """Plays events, and keeps the choices; each must be one of those present."""

    def __init__(self, name: str, seed: int) -> None:
        self.cluster = FakeCluster(2) if name in TOLD else BlindCluster(2)
        self.policy = RIVALS[name](self.cluster, Random(seed))
        self.there: list = []
        self.now_s = 0.0
        self.choices: list = []

    def request(self, texts: list[int], tokens: int) -> None:
        new = request(*texts, tokens=tokens)
        replica = self.policy.choose(new, self.now_s)
        assert replica in self.cluster.present()
        self.choices.append(replica)
        self.policy.sent(new, replica, self.now_s)
        self.there.append((new, replica))

    def first(self, which: int, _: int) -> None:
        if self.there:
            self.policy.first_token(*self.there[which % len(self.there)], self.now_s)

    def end(self, which: int, _: int) -> None:
        if self.there:
            self.policy.finished(*self.there.pop(which % len(self.there)), self.now_s)

    def scrape(self, running: int, waiting: int) -> None:
        for replica in self.cluster.present():
            self.policy.scraped(replica, Gauges(running, waiting, waiting / 10), self.now_s)

    def join(self, *_: int) -> None:
        self.cluster.there = [*self.cluster.there, max(self.cluster.there) + 1]

    def leave(self, which: int, _: int) -> None:
        if len(self.cluster.there) == 1:
            return
        gone = self.cluster.there[which % len(self.cluster.there)]
        self.cluster.there = [replica for replica in self.cluster.there if replica != gone]
        for broken in [broken for broken in self.there if broken[1] == gone]:
            self.there.remove(broken)
            self.policy.finished(*broken, self.now_s)

    def time(self, passed_s: float, _: int) -> None:
        self.now_s += passed_s


def played(name: str, events: list, seed: int) -> list[int]:
    play = Play(name, seed)
    for what, *arguments in events:
        getattr(play, what)(*arguments)
    return play.choices


@pytest.mark.parametrize("name", RIVALS)
@settings(max_examples=40, deadline=None)
@given(events=EVENTS, seed=st.integers(0, 3))
def test_the_choice_is_always_present_and_the_same_for_the_same_seed(name, events, seed):
    assert played(name, events, seed) == played(name, events, seed)


@pytest.mark.parametrize("name", RIVALS)
def test_the_only_one_present_has_every_request(name):
    cluster = FakeCluster(1) if name in TOLD else BlindCluster(1)
    policy = RIVALS[name](cluster, Random(1))
    policy.scraped(0, Gauges(256, 99, 1.0), 0.0)
    for _ in range(30):
        what = request(1, 2)
        assert policy.choose(what, 0.0) == 0
        policy.sent(what, 0, 0.0)


@pytest.mark.parametrize("name", RIVALS)
def test_a_burst_of_new_prompts_over_idle_replicas_is_spread(name):
    cluster = FakeCluster(8) if name in TOLD else BlindCluster(8)
    policy = RIVALS[name](cluster, Random(1))
    choices = []
    for text in range(64):
        what = request(text)
        replica = policy.choose(what, 0.0)
        policy.sent(what, replica, 0.0)
        cluster.pending[replica] = cluster.pending.get(replica, 0) + what.prompt_tokens
        choices.append(replica)
    assert len(set(choices)) == 8
    assert max(map(choices.count, choices)) <= 24


@pytest.mark.parametrize("name", RIVALS)
def test_every_module_names_its_source(name):
    words = import_module(RIVALS[name].__module__).__doc__
    assert words is not None
    assert name == "omniscient" or "Source" in words
