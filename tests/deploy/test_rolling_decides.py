"""When the rolling upgrade goes on, waits, refuses and stops; hosts and routers are on paper."""

from dataclasses import replace
from itertools import pairwise

import pytest

from rolling.seen import Page, PageError, Seen, not_back, not_taken_over, page_of
from rolling.upgrade import PATIENCE_S, Refused, Stop, What
from rolling_world import HOSTS, RESTART, ROUTERS, START, STOP, World, seen


def test_hosts_are_upgraded_one_by_one_in_order() -> None:
    world = World()
    upgrade = world.upgrade()
    upgrade.go()
    assert world.told == [f"{host} {what}" for host in HOSTS for what in (STOP, START)]
    assert (upgrade.done, upgrade.left, upgrade.at) == (list(HOSTS), [], "")


def test_the_next_host_is_begun_with_once_the_last_one_serves_in_full() -> None:
    world = World()
    world.upgrade().go()
    times_s = [world.began_s[host] for host in HOSTS]
    assert all(b - a >= 40.0 for a, b in pairwise(times_s))
    waits = [said for said in world.said if said.startswith("gpu-01: waiting")]
    assert [said.split(" is ")[1].split()[0] for said in waits] == [
        "starting",
        "warming",
        "ramping",
    ]


@pytest.mark.parametrize("now", ["down", "warming", "ramping", "draining", "silent", "left out"])
@pytest.mark.parametrize("what", What)
def test_nothing_is_begun_while_another_host_does_not_serve(now: str, what: What) -> None:
    world = World()
    world.replicas["gpu-03"] = seen("gpu-03", now=now, say="for a reason")
    with pytest.raises(Refused, match=f"gpu-03/a is {now}: for a reason .says r-[12]"):
        world.upgrade(what).go()
    assert world.told == []


@pytest.mark.parametrize("now", ["full", "slow"])
def test_one_that_is_busy_or_slow_serves(now: str) -> None:
    world = World()
    world.replicas["gpu-03"] = seen("gpu-03", now=now)
    world.upgrade(What.SIDECARS).go()
    assert len(world.told) == len(HOSTS)


def test_one_whose_sidecar_nobody_hears_does_not_serve_by_its_old_word() -> None:
    assert seen("gpu-01", now="silent").trouble
    assert seen("gpu-01", state=None).trouble


def test_a_passing_moment_is_waited_out() -> None:
    world = World()
    world.began_s["gpu-03"] = world.clock_s - 40.0 + PATIENCE_S / 2.0  # It ramps yet.
    world.upgrade(What.REPLICAS, "gpu-01").go()
    assert world.told


def test_a_router_that_gives_no_answer_is_named_and_nothing_is_begun() -> None:
    world = World(silent={"r-2"})
    with pytest.raises(Refused, match=r"no word from the router: refused .says r-2"):
        world.upgrade().go()
    assert world.told == []


def test_an_unknown_host_is_refused() -> None:
    with pytest.raises(Refused, match="no replica of gpu-77 is known"):
        World().upgrade(What.REPLICAS, "gpu-77").go()
    with pytest.raises(Refused, match="no replica of gpu-77 is known"):
        World().upgrade(What.SIDECARS, "gpu-77").go()


def test_the_only_host_is_not_taken_out_of_service() -> None:
    world = World({"gpu-01": seen("gpu-01")})
    with pytest.raises(Refused, match="no other host serves what gpu-01 serves"):
        world.upgrade(What.REPLICAS, "gpu-01").go()
    world.upgrade(What.SIDECARS, "gpu-01").go()
    assert world.told == [f"gpu-01 {RESTART}"]


def test_the_only_host_of_a_model_is_not_taken_out_of_service() -> None:
    world = World()
    world.replicas["gpu-01"] = seen("gpu-01", models=frozenset({"m", "rare"}))
    with pytest.raises(Refused, match="no other host serves rare"):
        world.upgrade(What.REPLICAS, "gpu-01").go()


@pytest.mark.parametrize(("command", "told"), [(STOP, 3), (START, 4)])
def test_a_command_that_fails_is_the_last_one(command: str, told: int) -> None:
    world = World(fails={("gpu-02", command): "exit status 255"})
    upgrade = world.upgrade()
    with pytest.raises(Stop, match=f"gpu-02: {command}: exit status 255"):
        upgrade.go()
    assert len(world.told) == told
    assert (upgrade.done, upgrade.at, upgrade.left) == (["gpu-01"], "gpu-02", ["gpu-02", "gpu-03"])


def test_one_that_never_comes_back_ends_it() -> None:
    world = World(never_ready={"gpu-02"})
    upgrade = world.upgrade()
    with pytest.raises(Stop, match="gpu-02 not back within 100 s: gpu-02/a is starting"):
        upgrade.go()
    assert world.told[-1] == f"gpu-02 {START}"
    assert (upgrade.done, upgrade.at) == (["gpu-01"], "gpu-02")


def test_it_can_be_begun_again_where_it_stopped() -> None:
    world = World(fails={("gpu-02", START): "exit status 1"})
    first = world.upgrade()
    with pytest.raises(Stop):
        first.go()
    world.fails.clear()
    again = world.upgrade(What.REPLICAS, *first.left)
    again.go()
    assert again.done == ["gpu-02", "gpu-03"]
    assert world.told.count(f"gpu-01 {START}") == 1


def test_a_server_that_was_not_started_anew_is_not_taken_for_upgraded() -> None:
    world = World(ignores={"gpu-01"})
    with pytest.raises(Stop, match="gpu-01/a has not started anew"):
        world.upgrade().go()


def test_a_router_that_was_not_started_anew_is_not_taken_for_upgraded() -> None:
    world = World(ignores={"r-1"})
    with pytest.raises(Stop, match=r"it has run for .* s, and was not started anew"):
        world.upgrade(What.ROUTERS).go()
    assert world.told == [f"r-1 {RESTART}"]


def test_the_only_router_is_restarted_if_all_that_it_knows_serve() -> None:
    world = World()
    world.upgrade(What.ROUTERS, "r-1").go()
    alone = replace(world.upgrade(What.ROUTERS, "r-1"), routers={"r-1": ROUTERS["r-1"]})
    alone.go()
    world.replicas["gpu-03"] = seen("gpu-03", now="down", state="down")
    with pytest.raises(Refused, match="gpu-03/a is down"):
        alone.go()
    assert world.told == [f"r-1 {RESTART}"] * 2


def test_a_router_that_is_down_can_be_upgraded() -> None:
    world = World(silent={"r-2"})
    run = world.run

    def run_and_hear(host: str, command: str, within_s: float) -> str:
        world.silent.clear()
        return run(host, command, within_s)

    world.run = run_and_hear  # type: ignore[method-assign]
    world.upgrade(What.ROUTERS, "r-2").go()
    assert world.told == [f"r-2 {RESTART}"]


def test_a_host_that_goes_down_meanwhile_stops_it_before_the_next() -> None:
    world = World()
    upgrade = world.upgrade()

    def go_down(text: str) -> None:
        if "gpu-01: serves again" in text:
            world.replicas["gpu-03"] = seen("gpu-03", now="down", state="down")

    world.say = go_down  # type: ignore[method-assign]
    with pytest.raises(Refused, match="gpu-02 is not begun with: gpu-03/a is down"):
        upgrade.go()
    assert (upgrade.done, upgrade.at) == (["gpu-01"], "")


def page(*replicas: Seen, uptime_s: float = 1.0) -> Page:
    return Page("0.1.0", uptime_s, False, replicas)


@pytest.mark.parametrize(("age_s", "back"), [(2.9, True), (3.0, True), (3.1, False), (None, False)])
def test_what_was_said_before_the_commands_ended_is_not_believed(
    age_s: float | None, back: bool
) -> None:
    found = not_back(page(seen("gpu-01", age_s=age_s)), "gpu-01", 3.0, frozenset())
    assert found == ([] if back else ["gpu-01/a has not been heard of since"])


def test_all_replicas_of_a_host_must_be_back() -> None:
    two = seen("gpu-01"), seen("gpu-01", id="gpu-01/b", now="down", state="down")
    assert not_back(page(*two), "gpu-01", 3.0, frozenset()) == ["gpu-01/b is down"]
    assert not_back(page(), "gpu-01", 3.0, frozenset()) == ["no replica of gpu-01 is known"]


def test_a_new_router_must_know_all_that_the_old_one_knew() -> None:
    urls = frozenset({"http://gpu-01:8000", "http://gpu-02:8000"})
    assert not_taken_over(page(seen("gpu-01"), seen("gpu-02")), 5.0, urls) == []
    assert not_taken_over(page(seen("gpu-01")), 5.0, urls) == [
        "it does not know http://gpu-02:8000"
    ]


def test_a_host_goes_by_its_nodes_name_or_by_that_in_its_urls() -> None:
    row = seen("gpu-01", id="node-1/a")
    assert row.is_at("gpu-01")
    assert row.is_at("node-1")
    assert not row.is_at("a")
    unnamed = replace(row, id="10.0.0.1:8000", url="http://10.0.0.1:8000")
    assert unnamed.is_at("10.0.0.1")
    assert not unnamed.is_at("10.0.0.1:8000")


@pytest.mark.parametrize("document", [None, [], "x", {"replicas": 3}, {"replicas": [{"id": "a"}]}])
def test_what_is_no_routers_page_is_told_apart(document: object) -> None:
    with pytest.raises(PageError, match="this is no page of a router"):
        page_of(document)
