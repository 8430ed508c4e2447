"""The readings' socket: who may have it, how it is left behind, and when it is looked at."""

import asyncio
import os
import resource
import shutil
import socket
import stat

import pytest

from ullage_sidecar.channel import MAX_DATAGRAM_BYTES, encode_hello, encode_step
from ullage_sidecar.core.reading import Hello
from ullage_sidecar.sources import plugin
from ullage_sidecar.sources.plugin import (
    CHUNK_BYTES,
    LONG_REST_S,
    QUIET_S,
    REST_S,
    ListenError,
    readings,
)


def step(seq):
    return encode_step(1, seq, 1.0, (1, 0, 0.5, 0, 0, 0, 0, 0))


def awaited():
    return True


HELLO = encode_hello(Hello(1, "vllm", "boot", 2, 3.0, models=("m" * 12_000,)))


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "readings.sock"


async def test_datagrams_arrive_in_order_and_whole(path, sender_to, until):
    heard = []
    with readings(path, heard.append, awaited):
        sender = sender_to(path)
        sent = [step(number) for number in range(200)] + [HELLO] * 5
        for each in sent:
            assert sender.send(each)
        await until(lambda: sum(map(len, heard)) == sum(map(len, sent)))
    assert b"".join(heard) == b"".join(sent)
    assert len(heard) < 100  # several at a time
    for chunk in heard:
        assert plugin.whole(chunk) == len(chunk)


async def test_each_sender_is_heard_by_itself(path, sender_to, until):
    """A datagram that has come in part does not hold up, or spoil, another sender's."""
    heard = []
    with readings(path, heard.append, awaited):
        one, other = sender_to(path), sender_to(path)
        one.send(HELLO[:100])
        other.send(step(1))
        await until(lambda: heard == [step(1)])
        one.send(HELLO[100:])
        await until(lambda: heard == [step(1), HELLO])


async def test_what_is_no_datagram_is_handed_on_once_and_its_sender_has_to_call_again(
    path, sender_to, until
):
    heard = []
    with readings(path, heard.append, awaited):
        sender = sender_to(path)
        sender.send(b"GET / HTTP/1.1")
        await until(lambda: heard)
        await until(lambda: not sender.send(step(1)))
        assert heard == [b"GET / HTTP/1.1"]
        assert sender.connect()
        sender.send(step(2))
        await until(lambda: heard[-1] == step(2))


async def test_a_datagram_longer_than_allowed_is_none(path, sender_to, until):
    heard = []
    with readings(path, heard.append, awaited):
        sender = sender_to(path)
        sender.send(HELLO[:6] + (MAX_DATAGRAM_BYTES + 1).to_bytes(2, "little"))
        await until(lambda: heard)
        await until(lambda: not sender.send(step(1)))


async def test_a_flood_does_not_keep_the_loop_from_other_work(path, sender_to, until):
    heard, sender = 0, None

    def hear(datagrams):
        """Answer each with another: there is always more."""
        nonlocal heard
        heard += len(datagrams)
        sender.send(datagrams[: CHUNK_BYTES // 2])

    with readings(path, hear, awaited):
        sender = sender_to(path)
        sender.send(step(1) * 100)
        await until(lambda: heard > 100_000)


async def test_the_connection_of_a_sender_that_goes_is_let_go(path, sender_to, until):
    def open_files():
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 (a count)

    with readings(path, lambda _: None, awaited):
        before = open_files()
        senders = [sender_to(path) for _ in range(5)]
        await until(lambda: open_files() == before + 10)
        for sender in senders:
            sender.close()
        await until(lambda: open_files() == before)


async def test_beyond_so_many_connections_callers_are_turned_away_and_others_heard(
    path, sender_to, until, monkeypatch
):
    monkeypatch.setattr(plugin, "MAX_CONNECTIONS", 2)
    heard = []
    with readings(path, heard.append, awaited):
        first, second = sender_to(path), sender_to(path)
        first.send(step(1))
        second.send(step(2))
        await until(lambda: len(heard) == 2)
        third = sender_to(path)
        await until(lambda: not third.send(step(3)))
        second.close()
        first.send(step(4))
        await until(lambda: heard[-1] == step(4))
        await until(lambda: third.connect() and third.send(step(5)) and heard[-1].endswith(step(5)))


async def test_where_no_more_files_may_be_opened_those_who_speak_are_heard(
    path, sender_to, until, monkeypatch, caplog
):
    monkeypatch.setattr(plugin, "ACCEPT_AGAIN_S", 0.05)
    heard = []
    with readings(path, heard.append, awaited):
        first = sender_to(path)
        first.send(step(1))
        await until(lambda: heard)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        spare = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        resource.setrlimit(resource.RLIMIT_NOFILE, (spare.fileno() + 1, limits[1]))
        try:
            spare.connect(os.fspath(path))
            spare.send(step(2))
            await until(lambda: "accept" in caplog.text)
            first.send(step(3))
            await until(lambda: heard[-1] == step(3))
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await until(lambda: heard[-1] == step(2))
        spare.close()
    assert len(caplog.messages) < 20


async def test_who_asks_has_taken_in_what_nobody_waits_for(path, sender_to, until):
    heard = []
    with readings(path, heard.append, lambda: False) as found:
        sender = sender_to(path)
        sender.send(step(0))
        await until(lambda: heard == [step(0)])
        sender.send(step(1))
        await until(lambda: heard == [step(0), step(1)])
        sender.send(step(2))
        await asyncio.sleep(2 * REST_S)
        assert len(heard) == 2
        found.look()
        assert heard[2:] == [step(2)]


class Looks:
    """Counts how often the connections are looked at."""

    def __init__(self, monkeypatch):
        self.number = 0
        look = plugin._Ear.look

        def counted(ear):
            self.number += 1
            return look(ear)

        monkeypatch.setattr(plugin._Ear, "look", counted)


async def test_hearts_that_beat_wake_it_and_nothing_else_does(path, sender_to, monkeypatch):
    looks = Looks(monkeypatch)
    with readings(path, lambda _: None, awaited):
        sender = sender_to(path)
        sender.send(HELLO)
        await asyncio.sleep(5 * REST_S)
        before = looks.number
        for _ in range(3):
            sender.send(HELLO + step(1))
            await asyncio.sleep(2 * REST_S)
        assert looks.number - before == 3
        await asyncio.sleep(5 * REST_S)
        assert looks.number - before == 3


async def test_many_who_call_at_once_are_all_taken_in_at_one_look(path, sender_to, until):
    """A sidecar that restarts is called by every API process of its node."""
    heard = []
    with readings(path, heard.append, lambda: False) as found:
        senders = [sender_to(path) for _ in range(300)]
        for number, sender in enumerate(senders):
            assert sender.send(step(number))
        found.look()
        found.look()
        assert len(heard) == 300


async def test_a_steady_engine_wakes_nobody_and_one_that_rests_lets_it_sleep(
    path, sender_to, monkeypatch, until
):
    """Steps further apart than a rest: a look may find nothing, and is no reason to sleep."""
    wakes, heard = [], []
    woken = plugin._Ear._woken
    monkeypatch.setattr(plugin._Ear, "_woken", lambda ear: (wakes.append(1), woken(ear)))
    with readings(path, heard.append, awaited):
        sender = sender_to(path)
        for number in range(12):
            sender.send(step(number))
            await asyncio.sleep(2 * REST_S)
        assert len(wakes) <= 4  # a call, the first two steps; one more on a busy machine
        await asyncio.sleep(2 * QUIET_S)
        before = len(wakes)
        sender.send(step(12))
        await until(lambda: heard[-1] == step(12))
        assert len(wakes) == before + 1


@pytest.mark.parametrize(("is_awaited", "rest_s"), [(True, REST_S), (False, LONG_REST_S)])
async def test_while_steps_come_fast_it_looks_by_the_clock(
    is_awaited, rest_s, path, sender_to, monkeypatch, until
):
    looks, heard = Looks(monkeypatch), []
    with readings(path, heard.append, lambda: is_awaited):
        sender = sender_to(path)
        began_s = asyncio.get_running_loop().time()
        for number in range(200):
            sender.send(step(number))
            await asyncio.sleep(0.001)
        took_s = asyncio.get_running_loop().time() - began_s
        assert looks.number <= took_s / rest_s + 5
        await until(lambda: sum(map(len, heard)) == 200 * len(step(1)))


async def test_the_file_is_for_user_and_group_and_gone_at_the_end(path):
    with readings(path, lambda _: None, awaited):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o660
    assert not path.exists()


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
async def test_a_file_left_by_a_dead_sidecar_is_replaced(kind, path, sender_to, until):
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, kind) as dead:
        dead.bind(os.fspath(path))
    heard = []
    with readings(path, heard.append, awaited):
        sender = sender_to(path)
        sender.send(step(1))
        await until(lambda: heard)


async def test_a_living_sidecars_socket_is_not_taken(path):
    with readings(path, lambda _: None, awaited):
        with (
            pytest.raises(ListenError, match="another sidecar listens there"),
            readings(path, lambda _: None, awaited),
        ):
            pass
        assert path.exists()


async def test_a_sidecar_that_is_stopped_still_owns_its_socket(path):
    """It takes no calls, but it is there."""
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stopped:
        stopped.bind(os.fspath(path))
        stopped.listen(0)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.connect(os.fspath(path))  # All that fits in its queue.
            with (
                pytest.raises(ListenError, match="another sidecar listens there"),
                readings(path, lambda _: None, awaited),
            ):
                pass


async def test_a_file_that_is_no_socket_is_left_alone(path):
    path.parent.mkdir()
    path.write_text("precious")
    with (
        pytest.raises(ListenError, match="something else is there"),
        readings(path, lambda _: None, awaited),
    ):
        pass
    assert path.read_text() == "precious"


async def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "readings.sock"
    with (
        pytest.raises(ListenError, match=r"file/readings\.sock"),
        readings(place, lambda _: None, awaited),
    ):
        pass


async def test_a_successors_socket_is_not_removed(path):
    with readings(path, lambda _: None, awaited):
        path.unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as successor:
            successor.bind(os.fspath(path))
    assert path.exists()


async def test_a_file_that_was_deleted_is_made_anew_and_those_who_are_connected_stay_so(
    path, sender_to, until, caplog
):
    heard = []
    with readings(path, heard.append, awaited) as found:
        old = sender_to(path)
        assert found.mend()
        old.send(step(0))
        late = sender_to(path)
        shutil.rmtree(path.parent)
        assert found.mend()
        new = sender_to(path)
        for number, each in enumerate((old, late, new), start=1):
            assert each.send(step(number))
        await until(lambda: len(b"".join(heard)) == 4 * len(step(0)))
        assert found.mend()
    assert len([line for line in caplog.messages if line.startswith("socket_bound_anew")]) == 1
    assert not path.exists()


async def test_a_place_that_another_sidecar_has_taken_is_left_to_it_and_said_once(
    path, sender_to, until, caplog
):
    heard = []
    with readings(path, heard.append, awaited) as found:
        old = sender_to(path)
        path.unlink()
        with readings(path, lambda _: None, awaited) as successor:
            assert not found.mend()
            assert not found.mend()
            assert successor.mend()
            old.send(step(1))
            await until(lambda: heard)
        assert found.mend()
    lost = [line for line in caplog.messages if line.startswith("socket_lost")]
    assert len(lost) == 1
    assert "another sidecar listens there" in lost[0]
