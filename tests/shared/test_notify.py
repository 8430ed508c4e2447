"""systemd is told how the process stands; where it is not, or cannot be, nothing happens."""

import asyncio
import os

import pytest

from manager import Manager
from ullage_shared.notify import Notifier

PID = 4711


@pytest.fixture(params=["path", "abstract"])
def manager(request, tmp_path):
    abstract = f"@ullage-test-{os.getpid()}"
    made = Manager(abstract if request.param == "abstract" else str(tmp_path / "notify"))
    yield made
    made.close()


def test_a_life_is_told_turn_by_turn(manager):
    it = Notifier(manager.address)
    it.ready("clients at 127.0.0.1:8080")
    it.reloading(12.3456789)
    it.reloaded("")
    it.stopping(35.0)
    assert manager.heard() == [
        "READY=1\nSTATUS=clients at 127.0.0.1:8080",
        "RELOADING=1\nMONOTONIC_USEC=12345679",
        "READY=1\nSTATUS=clients at 127.0.0.1:8080",
        "STOPPING=1\nEXTEND_TIMEOUT_USEC=35000000\nSTATUS=stopping, within 35 s",
    ]


def test_a_refused_reload_is_in_the_status_until_one_is_taken_over(manager):
    it = Notifier(manager.address)
    it.ready("well")
    it.reloaded("limits.stop_grace_s = -1: wanted more")
    it.reloaded("")
    _, refused, taken = manager.heard()
    assert refused == "READY=1\nSTATUS=reload refused: limits.stop_grace_s = -1: wanted more"
    assert taken == "READY=1\nSTATUS=well"


def test_a_reload_before_it_serves_does_not_make_it_ready(manager):
    it = Notifier(manager.address)
    it.reloading(1.0)
    it.reloaded("")
    assert manager.heard() == []


def test_a_reload_after_it_was_told_to_stop_does_not_make_it_ready_again(manager):
    it = Notifier(manager.address)
    it.ready("well")
    it.stopping(1.0)
    manager.heard()
    it.reloading(1.0)
    it.reloaded("it is stopping")
    assert manager.heard() == []


def test_no_text_can_tell_more_than_a_status(manager):
    Notifier(manager.address).ready("a\nMAINPID=1\r\nSTOPPING=1")
    assert manager.heard() == ["READY=1\nSTATUS=a MAINPID=1 STOPPING=1"]


async def test_signs_of_life_come_from_the_event_loop_at_half_the_watchdogs_time(manager):
    living = asyncio.ensure_future(Notifier(manager.address, watchdog_s=0.04).keep_alive())
    await asyncio.sleep(0.0)
    assert manager.heard() == ["WATCHDOG=1"]
    async with asyncio.timeout(5.0):
        while not (heard := manager.heard()):  # noqa: ASYNC110 -- the manager is no part of the loop
            await asyncio.sleep(0.005)
    assert set(heard) == {"WATCHDOG=1"}
    living.cancel()


async def test_without_a_watchdog_there_are_no_signs_of_life(manager):
    await Notifier(manager.address).keep_alive()
    assert manager.heard() == []


def test_without_a_socket_nobody_is_told():
    it = Notifier.of({"WATCHDOG_USEC": "1000000"}, PID)
    assert it.watchdog_s is None
    it.ready("well")


@pytest.mark.parametrize(
    ("said", "watchdog_s"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "15000000"}, 15.0),
        ({"WATCHDOG_USEC": "15000000", "WATCHDOG_PID": str(PID)}, 15.0),
        ({"WATCHDOG_USEC": "15000000", "WATCHDOG_PID": "1"}, None),
    ],
)
def test_the_watchdog_is_systemds_and_only_for_whom_it_names(said, watchdog_s):
    assert Notifier.of({"NOTIFY_SOCKET": "/n", **said}, PID).watchdog_s == watchdog_s


@pytest.mark.parametrize("nonsense", ["0", "-1", "soon", "1.5"])
def test_a_watchdog_of_nonsense_is_named_and_none(nonsense, caplog):
    it = Notifier.of({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": nonsense}, PID)
    assert it.watchdog_s is None
    assert f"WATCHDOG_USEC = {nonsense!r}: wanted a whole number above 0" in caplog.messages[0]


@pytest.mark.parametrize("address", ["{}/nobody", "{}/" + "x" * 200, "vsock:2:1"])
def test_where_systemd_cannot_be_told_it_is_one_line_and_the_process_lives(
    address, tmp_path, caplog
):
    it = Notifier(address.format(tmp_path))
    it.ready("well")
    it.stopping(1.0)
    (said,) = caplog.messages
    assert said.startswith("systemd_not_told why=")


def test_a_manager_that_takes_nothing_is_not_waited_for(manager, caplog):
    it = Notifier(manager.address)
    sent = 0
    while not caplog.messages:
        it._say("WATCHDOG=1", patience_s=0.0)
        sent += 1
        assert sent < 10_000
    assert len(manager.heard()) == sent - 1
