"""The owner of the state: datagrams and probes in, documents out."""

import logging
from dataclasses import replace
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ullage_shared.snapshot import State, decode
from ullage_sidecar.channel import MAGIC, encode_hello, encode_step
from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.core.engine import Drain
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.reading import SCRAPE, Hello
from ullage_sidecar.node import BATCH_BYTES, MAX_RANKS, Node
from ullage_sidecar.publisher import RENDER_EVERY_S

CONFIG = Config(
    node="gpu-03",
    engine=(EngineEntry(name="b", url="http://b:1"), EngineEntry(name="a", url="http://a:1")),
)
T = 1000.0
HELLO = Hello(1, "b", "boot-1", 11, started_s=T - 500.0, total_blocks=101, max_num_seqs=8)


def datagram(kind, body):
    return MAGIC + bytes((kind, 0)) + (8 + len(body)).to_bytes(2, "little") + body


def step(sender, seq, at_s, running=2, waiting=0, kv_usage=0.5):
    return encode_step(sender, seq, at_s, (running, waiting, kv_usage, 0, 0, 0, 0, 0))


@pytest.fixture
def node():
    """Both servers answer; nothing has been heard yet."""
    node = Node(CONFIG, T - 10.0)
    for name in ("a", "b"):
        node.probed(name, Probe(None), T - 10.0)
    return node


def published(node, now_s):
    return node.published(now_s, 1.7e9)


def ids(node, now_s):
    return [replica.id for replica in published(node, now_s).replicas]


def test_engines_are_listed_as_configured(node):
    assert ids(node, T) == ["gpu-03/b", "gpu-03/a"]


def test_a_reading_reaches_the_snapshot_of_its_engine(node):
    node.hear(encode_hello(HELLO), T)
    node.hear(step(1, 5, T), T)
    document, faults = decode(published(node, T).body)
    assert faults == ()
    assert document.replicas[0].free_blocks == 50
    assert document.replicas[0].capacity_score == pytest.approx(0.5 * 0.5 + 0.3 * 0.75 + 0.2)
    assert document.replicas[1].capacity_score is None


@pytest.mark.parametrize(
    "garbage",
    [
        b"hello",
        MAGIC,
        datagram(7, b""),
        datagram(1, b"short"),
        datagram(0, b"{"),
        datagram(0, b"[]"),
        datagram(0, b"[" * 16_000),
        encode_hello(replace(HELLO, engine_index=3, data_parallel_size=2)),
        encode_hello(replace(HELLO, engine_index=1, data_parallel_size=4, first_rank=2)),
        encode_hello(replace(HELLO, engine_index=5000, data_parallel_size=10_000)),
        encode_hello(replace(HELLO, boot_id="")),
        encode_hello(replace(HELLO, models=("\ud800",))),
        encode_hello(replace(HELLO, total_blocks=2**70)),
        step(1, 1, float("nan")),
        step(1, 1, T, kv_usage=1.5),
        step(1, 1, T, running=-1),
        step(1, 1, T, running=float("inf")),
    ],
)
def test_garbage_is_counted_and_changes_nothing(node, garbage):
    before = published(node, T).replicas
    node.hear(garbage, T)
    assert published(node, T + 1.0).seq == T * 1000
    assert node.strays.malformed == 1
    assert [replica.seq for replica in before] == [T * 1000] * 2


@given(st.binary(max_size=200), st.integers(0, 2) | st.none())
def test_no_datagram_raises(tail, kind):
    node = Node(CONFIG, T)
    node.hear(tail if kind is None else datagram(kind, tail), T)
    assert decode(published(node, T).body)[1] == ()


def test_a_flood_of_garbage_is_a_line_every_ten_seconds(node, caplog):
    for number in range(200):
        node.hear(b"garbage", T + number / 10.0)
    published(node, T + 20.0)
    assert len([line for line in caplog.messages if line.startswith("malformed")]) == 2


def test_a_name_that_is_not_configured_is_turned_away_with_advice(node, caplog):
    node.hear(encode_hello(replace(HELLO, name="c")), T)
    published(node, T)
    assert node.strays.unmatched == 1
    assert "engine=c" in caplog.text
    assert "configured=b,a" in caplog.text
    assert "ULLAGE_ENGINE" in caplog.text


def test_a_reading_before_its_hello_is_counted_and_comes_again(node):
    node.hear(step(1, 5, T), T)
    assert published(node, T).replicas[0].running is None
    assert node.strays.early == 1
    node.hear(encode_hello(HELLO), T + 0.5)
    node.hear(step(1, 5, T), T + 0.5)
    assert published(node, T + 0.5).replicas[0].running == 2


def test_the_ranks_of_a_server_take_the_place_of_the_server(node):
    rank_1 = replace(HELLO, engine_index=1, data_parallel_size=2)
    node.hear(encode_hello(rank_1), T)
    assert ids(node, T) == ["gpu-03/b:1", "gpu-03/a"]
    node.hear(encode_hello(replace(rank_1, sender=2, engine_index=0)), T)
    assert ids(node, T + 1.0) == ["gpu-03/b:0", "gpu-03/b:1", "gpu-03/a"]
    states = [replica.state for replica in published(node, T + 1.0).replicas]
    assert states == [State.SERVING] * 3  # each knows at once that /health answered


def test_ranks_of_a_larger_past_are_forgotten(node):
    for rank in (0, 1):
        hello = replace(HELLO, sender=rank, engine_index=rank, data_parallel_size=2)
        node.hear(encode_hello(hello), T)
    reborn = replace(HELLO, sender=9, boot_id="boot-2", started_s=T + 1.0)
    node.hear(encode_hello(reborn), T + 2.0)
    assert ids(node, T + 2.0) == ["gpu-03/b", "gpu-03/a"]
    node.hear(step(1, 5, T + 2.0), T + 2.0)
    published(node, T + 3.0)
    assert node.strays.early == 1


def test_a_probe_concerns_every_engine_of_its_server_and_no_other(node):
    for rank in (0, 1):
        hello = replace(HELLO, sender=rank, engine_index=rank, data_parallel_size=2)
        node.hear(encode_hello(hello), T)
    node.probed("b", Probe("Connection refused", gone=True), T)
    states = [replica.state for replica in published(node, T).replicas]
    assert states == [State.DOWN, State.DOWN, State.SERVING]
    assert (node.probes["b"].asked, node.probes["b"].failed) == (2, 1)


def test_a_rank_that_is_gone_may_still_speak(node):
    """An elastic server that shrinks: its last rank's logger beats once more."""
    ranks = [replace(HELLO, sender=n + 1, engine_index=n, data_parallel_size=4) for n in range(4)]
    for hello in ranks:
        node.hear(encode_hello(hello), T)
    node.hear(encode_hello(replace(ranks[0], data_parallel_size=1)), T + 1.0)
    node.hear(step(4, 1, T + 1.0), T + 1.0)
    assert ids(node, T + 1.0) == ["gpu-03/b", "gpu-03/a"]
    assert node.strays.early == 1
    node.hear(encode_hello(ranks[3]), T + 1.5)
    node.hear(encode_hello(replace(ranks[0], data_parallel_size=1)), T + 2.0)
    assert ids(node, T + 2.0) == ["gpu-03/b", "gpu-03/a"]


def test_a_lone_rank_that_died_and_comes_back_is_the_only_one(node):
    """Of a server with external balancing: there is no rank 0."""
    rank_3 = replace(HELLO, engine_index=3, data_parallel_size=4, first_rank=3, ranks_here=1)
    node.hear(encode_hello(rank_3), T)
    node.probed("b", Probe("Connection refused", gone=True), T + 1.0)
    node.probed("b", Probe(None), T + 2.0)
    node.probed("b", Probe(None), T + 9.0)
    assert ids(node, T + 9.0) == ["gpu-03/b", "gpu-03/a"]
    node.hear(encode_hello(replace(rank_3, boot_id="boot-2", started_s=T + 9.0)), T + 10.0)
    assert ids(node, T + 10.0) == ["gpu-03/b:3", "gpu-03/a"]


def test_what_ranks_cost_grows_as_their_number():
    def quickest_s(size):
        node, told_s = Node(CONFIG, T), []
        ranks = [replace(HELLO, sender=n, engine_index=n, data_parallel_size=size,
                         source=SCRAPE) for n in range(size)]  # fmt: skip
        for second in range(4):
            begun_s = process_time()
            for hello in ranks:
                node.told(hello, T + second)
            told_s.append(process_time() - begun_s)
        return min(told_s)

    assert quickest_s(MAX_RANKS) < 14 * quickest_s(MAX_RANKS // 8)


def test_two_servers_of_one_name_are_named_and_the_younger_is_heard(node, caplog):
    young = replace(HELLO, sender=2, boot_id="boot-2", pid=22, started_s=T)
    for second in range(3):
        node.hear(encode_hello(HELLO), T + second)
        node.hear(encode_hello(young), T + second + 0.5)
        published(node, T + second + 0.6)
    assert node.strays.rival == 2
    (warning,) = [m for m in caplog.messages if m.startswith("two_servers_of_one_name")]
    assert "heard_pid=22 ignored_pid=11" in warning
    assert "ULLAGE_ENGINE" in warning


def test_what_is_folded_late_counts_as_of_its_arrival(node):
    """Silence is measured from when the hello came, not from when it was looked at."""
    node.hear(encode_hello(HELLO), T)
    node.hear(step(1, 5, T), T)
    assert "silent" not in published(node, T + 2.9).replicas[0].reason
    assert "silent" in published(node, T + 3.1).replicas[0].reason


def test_a_probe_does_not_overtake_what_was_heard_before_it(node):
    """A new boot has not answered yet; the answer that comes after it is its own."""
    node.hear(encode_hello(HELLO), T)
    node.probed("b", Probe(None), T + 0.1)
    assert published(node, T + 0.2).replicas[0].state is State.SERVING
    node.hear(encode_hello(replace(HELLO, boot_id="boot-2", started_s=T + 1.0)), T + 1.0)
    node.probed("b", Probe(None), T + 1.1)
    assert published(node, T + 1.2).replicas[0].state is State.WARMING


def test_a_flood_is_folded_even_when_nobody_looks(node):
    garbage = datagram(7, b"")
    for number in range(BATCH_BYTES // len(garbage)):
        assert node.strays.malformed == 0
        node.hear(garbage, T + number / 1000.0)
    assert node.strays.malformed == BATCH_BYTES // len(garbage)


def test_what_lies_unheard_is_heard_before_anybody_looks_unless_somebody_waits_for_it(node):
    unheard = [encode_hello(HELLO) + step(1, 5, T), step(1, 6, T, running=4)]

    def fetch():
        while unheard:
            node.hear(unheard.pop(0), T)

    node.fetch = fetch
    assert published(node, T).replicas[0].running == 4
    unheard.append(step(1, 7, T + 1.0, running=6))
    node.tell = lambda: None
    assert published(node, T + 1.0).replicas[0].running == 4
    node.tell = None
    assert published(node, T + 2.0).replicas[0].running == 6


def test_what_is_heard_in_one_piece_is_what_is_heard_in_several(node):
    steps = [step(1, seq, T, running=seq) for seq in range(5, 9)]
    spoilt = [encode_hello(HELLO), *steps[:2], step(1, 7, float("nan")), datagram(7, b""), *steps]
    node.hear(b"".join(spoilt), T)
    assert published(node, T).replicas[0].running == 8
    assert node.strays.malformed == 2
    other = Node(CONFIG, T - 10.0)
    for each in spoilt:
        other.hear(each, T)
    assert other.published(T, 1.7e9).replicas[0].running == 8


def test_the_document_is_rendered_at_most_every_20_ms(node):
    first = published(node, T)
    node.hear(encode_hello(HELLO), T)
    assert published(node, T + 0.9 * RENDER_EVERY_S) is first
    assert published(node, T + 1.1 * RENDER_EVERY_S) is not first
    assert node.publisher.renders == 2


def test_the_documents_number_changes_only_with_its_content(node):
    node.hear(encode_hello(HELLO), T)
    node.hear(step(1, 5, T), T)
    numbers = [published(node, T + seconds).seq for seconds in (0.0, 1.0, 2.0)]
    node.hear(encode_hello(HELLO), T + 2.5)
    numbers.append(published(node, T + 2.5).seq)
    node.hear(step(1, 6, T + 3.0, running=4), T + 3.0)
    numbers += [published(node, T + seconds).seq for seconds in (3.1, 4.0)]
    assert numbers == [T * 1000] * 4 + [T * 1000 + 3100, T * 1000 + 4000]


def test_a_restarted_sidecar_publishes_higher_numbers(node):
    before = published(node, T).seq
    restarted = Node(CONFIG, T + 0.002)
    assert published(restarted, T + 0.002).seq > before


def test_a_restarted_sidecar_scores_an_old_idle_engine_after_one_heartbeat():
    restarted = Node(CONFIG, T)
    restarted.probed("b", Probe(None), T)
    restarted.hear(encode_hello(HELLO), T + 0.4)
    restarted.hear(step(1, 900, T - 7200.0, running=0, kv_usage=0.0), T + 0.4)
    replica = published(restarted, T + 0.4).replicas[0]
    assert (replica.state, replica.capacity_score) == (State.SERVING, 1.0)


def test_each_change_of_state_is_one_line(node, caplog):
    caplog.set_level(logging.INFO)
    published(node, T)
    for seconds in (1.0, 2.0):
        node.probed("a", Probe("Connection refused", gone=True), T + seconds)
        published(node, T + seconds)
    lines = [line for line in caplog.messages if "engine=a" in line]
    assert len(lines) == 2
    assert lines[1].startswith("state engine=a was=serving now=down why=")


# Drains


def states(node, now_s):
    return [replica.state.value for replica in published(node, now_s).replicas]


def test_a_drain_is_published_at_once(node):
    node.hear(encode_hello(HELLO), T)
    node.hear(step(1, 5, T), T)
    before = published(node, T)
    node.drain("b", T)
    after = published(node, T)
    assert (after.replicas[0].state, after.replicas[0].capacity_score) == (State.DRAINING, 0.0)
    assert after.replicas[0].reason == "drained by its operator"
    assert after.seq > before.seq
    assert states(node, T)[1] == "serving"
    node.undrain("b", T)
    assert states(node, T) == ["serving", "serving"]


def test_without_a_name_all_are_drained_and_an_unknown_name_is_an_error(node):
    node.drain(None, T)
    assert states(node, T) == ["draining", "draining"]
    node.undrain(None, T)
    assert states(node, T) == ["serving", "serving"]
    for command in (node.drain, node.undrain):
        with pytest.raises(KeyError, match="c"):
            command("c", T)
    assert node.drains == {}


def test_all_ranks_of_a_server_are_drained_and_one_that_speaks_later_too(node):
    ranks = [replace(HELLO, sender=n, engine_index=n, data_parallel_size=3) for n in range(3)]
    for hello in ranks[:2]:
        node.hear(encode_hello(hello), T)
    node.drain("b", T)
    node.hear(encode_hello(ranks[2]), T + 1.0)
    assert states(node, T + 1.0) == ["draining"] * 3 + ["serving"]
    assert {key: drain.boot_id for key, drain in node.drains.items()} == {
        ("b", rank): "boot-1" for rank in range(3)
    }


def test_another_node_goes_on_with_the_drains_of_the_first(node):
    """A restarted sidecar."""
    ranks = [replace(HELLO, sender=n, engine_index=n, data_parallel_size=2) for n in range(2)]
    for hello in ranks:
        node.hear(encode_hello(hello), T)
    node.drain(None, T)
    for boot_id, started_s, expected in (
        ("boot-1", HELLO.started_s, ["draining"] * 3),
        ("boot-2", T + 4.0, [*["warming"] * 2, "draining"]),
    ):
        second = Node(CONFIG, T + 5.0)
        odd = {("gone", 0): Drain(), ("b", -1): Drain(), ("b", MAX_RANKS): Drain()}
        second.resume({**node.drains, **odd}, T + 5.0)
        assert second.drains == node.drains
        for name in ("a", "b"):
            second.probed(name, Probe(None), T + 5.0)
        assert states(second, T + 5.0)[-1] == "draining"
        for hello in ranks:
            told = replace(hello, boot_id=boot_id, started_s=started_s)
            second.hear(encode_hello(told), T + 6.0)
        second.probed("b", Probe(None), T + 6.0)
        assert states(second, T + 6.0) == expected


@pytest.mark.parametrize("first", [0, 1, 2])
def test_a_server_that_starts_anew_with_more_ranks_is_wanted_whichever_speaks_first(node, first):
    """Also where another sidecar goes on with the drain."""
    for rank in range(2):
        rank_of_two = replace(HELLO, sender=rank, engine_index=rank, data_parallel_size=2)
        node.hear(encode_hello(rank_of_two), T)
    node.drain("b", T)
    second = Node(CONFIG, T + 1.0)
    second.resume(node.drains, T + 1.0)
    for each in (node, second):
        for rank in (first, *({0, 1, 2} - {first})):
            hello = replace(
                HELLO, sender=9 + rank, boot_id="boot-2", engine_index=rank, data_parallel_size=3,
                started_s=T + 1.0,
            )  # fmt: skip
            each.hear(encode_hello(hello), T + 2.0)
        published(each, T + 2.0)
        assert each.drains == {}


def test_a_drain_lasts_though_sidecars_die_before_they_have_heard_all_ranks(node):
    ranks = [replace(HELLO, sender=n, engine_index=n, data_parallel_size=2) for n in range(2)]
    for hello in ranks:
        node.hear(encode_hello(hello), T)
    node.drain("b", T)
    drains = node.drains
    for heard in ((1,), (0, 1)):
        anew = Node(CONFIG, T + 1.0)
        anew.resume(drains, T + 1.0)
        for rank in heard:
            anew.hear(encode_hello(ranks[rank]), T + 2.0)
        published(anew, T + 2.0)
        drains = anew.drains
    assert {key: drain.boot_id for key, drain in drains.items()} == {
        ("b", rank): "boot-1" for rank in range(2)
    }


def test_who_wants_to_be_told_is_told_of_all_that_comes_in(node):
    told = []
    node.tell = lambda: told.append(len(told))
    node.hear(encode_hello(HELLO), T)
    node.probed("b", Probe(None), T)
    node.drain("b", T)
    node.undrain("b", T)
    node.told(replace(HELLO, source=SCRAPE), T)
    node.unread("b", "status 404", T)
    published(node, T)
    assert len(told) == 6
    node.tell = None
    node.hear(step(1, 5, T), T)


def test_a_step_that_changes_nothing_of_what_is_shown_is_not_told(node):
    node.hear(encode_hello(HELLO) + step(1, 5, T), T)
    told = []
    node.tell, node.shown = lambda: told.append(len(told)), published(node, T)

    def is_told(datagrams):
        number = len(told)
        node.hear(datagrams, T + 1.0)
        return len(told) > number

    assert not is_told(step(1, 6, T + 1.0, kv_usage=0.51))
    assert not is_told(step(1, 7, T + 1.0) + step(1, 8, T + 1.0, kv_usage=0.51))
    assert not node.moved(node.shown)
    assert is_told(step(1, 9, T + 1.0, running=3) + step(1, 10, T + 1.0))
    assert is_told(encode_hello(HELLO))
    assert is_told(step(2, 1, T + 1.0))  # Nobody knows whose it is.
    assert is_told(b"garbage")
    node.shown = None
    assert is_told(step(1, 11, T + 1.0))


def test_a_node_has_moved_once_an_engine_has_or_there_is_another(node):
    node.hear(encode_hello(HELLO), T)
    node.hear(step(1, 5, T), T)
    document = published(node, T)
    assert not node.moved(document)
    node.hear(step(1, 6, T + 1.0, running=3), T + 1.0)
    assert node.moved(document)
    document = published(node, T + 1.0)
    assert not node.moved(document)
    rank_1 = replace(HELLO, sender=9, engine_index=1, data_parallel_size=2)
    node.hear(encode_hello(rank_1), T + 2.0)
    assert node.moved(document)
    assert not node.moved(published(node, T + 2.0))


def test_what_was_rendered_a_moment_ago_does_not_hide_what_came_since(node):
    node.hear(encode_hello(HELLO), T)
    node.hear(step(1, 5, T), T)
    published(node, T)
    node.hear(step(1, 6, T + 0.001, running=3), T + 0.001)
    kept = published(node, T + RENDER_EVERY_S / 2.0)
    assert kept.at_s == T
    assert node.moved(kept)
