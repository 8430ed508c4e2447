"""How the plugin dies, and what it survives."""

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plugin_pieces import Eventually, Listen, hearts, scheduler_stats


class Poison:
    """Every attribute raises."""

    def __init__(self, make_error: Callable[[], Exception]) -> None:
        vars(self)["make_error"] = make_error

    def __getattr__(self, name: str) -> object:
        raise self.make_error()


class OfItsOwnError(Exception):
    pass


def not_utf8() -> UnicodeDecodeError:
    return UnicodeDecodeError("utf-8", b"", 0, 1, "")


ERRORS = st.sampled_from(
    [
        *(AssertionError, AttributeError, BufferError, KeyError, MemoryError, RecursionError),
        *(StopIteration, OfItsOwnError, not_utf8),
    ]
)
POISON = ERRORS.map(Poison)
ANYTHING = st.one_of(st.none(), st.integers(), st.floats(), st.text(), POISON)
ANY_STATS = ANYTHING | st.builds(
    SimpleNamespace,
    num_running_reqs=st.integers(0, 3),
    num_waiting_reqs=ANYTHING,
    kv_cache_usage=st.floats(0.0, 1.0),
    prefix_cache_stats=ANYTHING,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scheduler=ANY_STATS, iteration=ANY_STATS)
def test_no_stats_object_makes_record_raise(
    scheduler: object, iteration: object, plugin: ModuleType, vllm_config: SimpleNamespace
) -> None:
    logger = plugin.UllageStatLogger(vllm_config, 0)

    logger.record(scheduler, iteration, mm_cache_stats=None, engine_idx=0)


def test_trouble_of_one_kind_is_logged_once_and_the_next_step_is_sent(
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    listen: Listen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    listener = listen()
    logger = plugin.UllageStatLogger(vllm_config, 0)
    for _ in range(3):
        logger.record(Poison(OfItsOwnError), None)

    logger.record(scheduler_stats(running=7), None)

    assert listener.reading().running == 7
    assert [record.message for record in caplog.records if record.levelname == "WARNING"] == [
        "Ullage: a step was not reported: OfItsOwnError"
    ]


def test_the_heart_stops_when_vllm_lets_go_and_never_holds_up_an_exit(
    plugin: ModuleType, vllm_config: SimpleNamespace, eventually: Eventually
) -> None:
    logger = plugin.UllageStatLogger(vllm_config, 0)
    assert [heart.daemon for heart in hearts()] == [True]

    del logger

    assert eventually(lambda: not hearts())


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_says_nothing(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen
) -> None:
    listener = listen()
    logger = plugin.UllageStatLogger(vllm_config, 0)
    logger.record(scheduler_stats(running=1), None)
    child = os.fork()
    if child == 0:
        logger.record(scheduler_stats(running=2), None)
        os._exit(0)
    os.waitpid(child, 0)

    logger.record(scheduler_stats(running=3), None)

    heard = [listener.reading().running for _ in range(5)]
    assert 2 not in heard
    assert 3 in heard


def test_without_a_thread_to_spare_it_is_inert(
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    listen: Listen,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    listener = listen()

    logger = plugin.UllageStatLogger(vllm_config, 0)
    logger.record(scheduler_stats(), None)

    assert caplog.messages == ["Ullage: no readings, for want of a thread: can't start new thread"]
    assert listener.hears_nothing_for(0.1)


def test_a_socket_it_may_not_write_to_is_named_once(
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    socket_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    eventually: Eventually,
) -> None:
    def refuse(sender: Any) -> bool:
        sender.forbidden = True
        return False

    monkeypatch.setattr(plugin.Sender, "connect", refuse)
    logger = plugin.UllageStatLogger(vllm_config, 0)

    assert eventually(lambda: f"Ullage: may not write to {socket_path}" in caplog.messages)
    logger.tell()
    assert caplog.messages.count(f"Ullage: may not write to {socket_path}") == 1
