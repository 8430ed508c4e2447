"""The readings' socket: who may have it, and how it is left behind."""

import os
import shutil
import socket
import stat

import pytest

from ullage_sidecar.channel import MAX_DATAGRAM_BYTES
from ullage_sidecar.sources.plugin import DRAIN_AT_ONCE, ListenError, readings


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run" / "readings.sock"


async def test_datagrams_arrive_in_order(path, sender_to, until):
    heard = []
    with readings(path, heard.append):
        sender = sender_to(path)
        for number in range(5):
            assert sender.send(b"%d" % number)
        await until(lambda: len(heard) == 5)
    assert heard == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_datagram_longer_than_allowed_arrives_as_too_long(path, sender_to, until):
    heard = []
    with readings(path, heard.append):
        sender = sender_to(path)
        sender.send(b"x" * (MAX_DATAGRAM_BYTES + 500))
        await until(lambda: heard)
    assert len(heard[0]) == MAX_DATAGRAM_BYTES + 1


async def test_a_flood_does_not_keep_the_loop_from_other_work(path, sender_to, until):
    heard, sender = 0, None

    def hear(_):
        """Answer each datagram with another: the queue is never empty."""
        nonlocal heard
        heard += 1
        sender.send(b"x")

    with readings(path, hear):
        sender = sender_to(path)
        sender.send(b"x")
        await until(lambda: heard > 3 * DRAIN_AT_ONCE)


async def test_the_file_is_for_user_and_group_and_gone_at_the_end(path):
    with readings(path, lambda _: None):
        mode = path.stat().st_mode
        assert stat.S_ISSOCK(mode)
        assert stat.S_IMODE(mode) == 0o660
    assert not path.exists()


async def test_a_file_left_by_a_dead_sidecar_is_replaced(path, sender_to, until):
    path.parent.mkdir()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(os.fspath(path))
    heard = []
    with readings(path, heard.append):
        sender = sender_to(path)
        sender.send(b"x")
        await until(lambda: heard)


async def test_a_living_sidecars_socket_is_not_taken(path):
    with readings(path, lambda _: None):
        with (
            pytest.raises(ListenError, match="another sidecar listens there"),
            readings(path, lambda _: None),
        ):
            pass
        assert path.exists()


async def test_a_file_that_is_no_socket_is_left_alone(path):
    path.parent.mkdir()
    path.write_text("precious")
    with (
        pytest.raises(ListenError, match="something else is there"),
        readings(path, lambda _: None),
    ):
        pass
    assert path.read_text() == "precious"


async def test_a_directory_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    place = tmp_path / "file" / "readings.sock"
    with pytest.raises(ListenError, match=r"file/readings\.sock"), readings(place, lambda _: None):
        pass


async def test_a_successors_socket_is_not_removed(path):
    with readings(path, lambda _: None):
        path.unlink()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as successor:
            successor.bind(os.fspath(path))
    assert path.exists()


async def test_a_file_that_was_deleted_is_made_anew_and_found_by_old_and_new(
    path, sender_to, until, caplog
):
    heard = []
    with readings(path, heard.append) as found:
        old = sender_to(path)
        assert found.mend()
        old.send(b"0")
        shutil.rmtree(path.parent)
        old.send(b"1")
        assert found.mend()
        assert heard[-1] == b"1"
        assert not old.send(b"lost")
        assert old.connect()
        new = sender_to(path)
        old.send(b"2")
        new.send(b"3")
        await until(lambda: len(heard) == 4)
        assert found.mend()
    assert len([line for line in caplog.messages if line.startswith("socket_bound_anew")]) == 1
    assert not path.exists()


async def test_a_place_that_another_sidecar_has_taken_is_left_to_it_and_said_once(
    path, sender_to, until, caplog
):
    heard = []
    with readings(path, heard.append) as found:
        old = sender_to(path)
        path.unlink()
        with readings(path, lambda _: None) as successor:
            assert not found.mend()
            assert not found.mend()
            assert successor.mend()
            old.send(b"still heard")
            await until(lambda: heard)
        assert found.mend()
    lost = [line for line in caplog.messages if line.startswith("socket_lost")]
    assert len(lost) == 1
    assert "another sidecar listens there" in lost[0]
