import gc
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ullage_sidecar.channel import Sender
from ullage_sidecar.core.reading import Hello

Listen = Callable[[], Any]
Eventually = Callable[..., bool]


def scheduler_stats(running: int = 1) -> SimpleNamespace:
    return SimpleNamespace(
        num_running_reqs=running,
        num_waiting_reqs=0,
        num_skipped_waiting_reqs=0,
        kv_cache_usage=0.5,
        prefix_cache_stats=SimpleNamespace(queries=0, hits=0),
    )


def hearts() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ullage"]


@pytest.fixture(autouse=True)
def _no_heart_outlives_its_logger(eventually: Eventually) -> Any:
    yield
    gc.collect()
    assert eventually(lambda: not hearts())


# --- when it does nothing ---


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("setting", ["", None])
@pytest.mark.parametrize("default", ["/nowhere/readings.sock", "/" + "x" * 5000])
def test_it_is_inert_unless_a_sidecar_is_expected(
    setting: str | None,
    default: str,
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(plugin, "DEFAULT_SOCKET", default)
    if setting is None:
        monkeypatch.delenv("ULLAGE_SOCKET")
    else:
        monkeypatch.setenv("ULLAGE_SOCKET", setting)
    before = open_files()

    logger = plugin.UllageStatLogger(vllm_config, 0)
    logger.log_engine_initialized()
    logger.record(scheduler_stats(), None, mm_cache_stats=None, engine_idx=0)

    assert not hearts()
    assert open_files() == before
    assert "off" in caplog.text


def test_a_default_socket_that_exists_switches_it_on(
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    socket_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listen: Listen,
) -> None:
    monkeypatch.delenv("ULLAGE_SOCKET")
    monkeypatch.setattr(plugin, "DEFAULT_SOCKET", str(socket_path))
    listener = listen()

    logger = plugin.UllageStatLogger(vllm_config, 0)

    assert listener.hello().sender
    del logger


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("ULLAGE_SOCKET", "/" + "x" * 107, "ULLAGE_SOCKET of 108 bytes, wanted at most 107"),
        ("ULLAGE_ENGINE", "x" * 201, "ULLAGE_ENGINE of 201 characters, wanted at most 200"),
    ],
)
def test_a_setting_that_cannot_work_is_named_and_leaves_it_inert(
    variable: str,
    value: str,
    said: str,
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(variable, value)

    logger = plugin.UllageStatLogger(vllm_config, 0)
    logger.record(scheduler_stats(), None)

    assert caplog.messages == [f"Ullage: no readings: {said}"]
    assert not hearts()


# --- who it says it is ---


def test_hello_comes_at_once_and_says_who_and_how_big(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen
) -> None:
    listener = listen()

    logger = plugin.UllageStatLogger(vllm_config, 0)

    hello = listener.next()
    assert hello == Hello(
        sender=hello.sender,
        name="gpu-03",
        boot_id=hello.boot_id,
        pid=os.getpid(),
        started_s=hello.started_s,
        engine_index=0,
        data_parallel_size=1,
        models=("tiny", "small"),
        total_blocks=256,
        block_size=32,
        max_num_seqs=8,
        max_num_batched_tokens=2048,
        max_model_len=4096,
        vllm_version="0.32.0",
        dropped=0,
        said_s=hello.said_s,
    )
    assert hello.started_s <= hello.said_s <= monotonic()
    del logger


def test_a_heartbeat_that_found_no_room_comes_soon(
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    listen: Listen,
    monkeypatch: pytest.MonkeyPatch,
    eventually: Eventually,
) -> None:
    monkeypatch.setattr(plugin, "HEARTBEAT_S", 60.0)
    monkeypatch.setattr(plugin, "RETRY_S", 0.02)
    room = []
    offer = Sender.offer
    monkeypatch.setattr(Sender, "offer", lambda *given: offer(*given) if room else False)
    listener = listen()

    logger = plugin.UllageStatLogger(vllm_config, 0)

    assert listener.hears_nothing_for(0.1)
    room.append(True)
    assert listener.hello().name == "gpu-03"
    del logger


@pytest.mark.parametrize(
    ("names", "models"), [("tiny", ("tiny",)), (("a", "b"), ("a", "b")), (None, ()), (5, ())]
)
def test_a_model_may_have_one_name_or_several(
    names: object,
    models: tuple[str, ...],
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    listen: Listen,
) -> None:
    vllm_config.model_config.served_model_name = names
    listener = listen()

    logger = plugin.UllageStatLogger(vllm_config, 0)

    assert listener.hello().models == models
    del logger


def test_two_loggers_are_two_senders_of_one_start(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen
) -> None:
    listener = listen()

    loggers = [plugin.UllageStatLogger(vllm_config, index) for index in (0, 1)]

    heard = {(hello := listener.hello()).engine_index: hello for _ in range(6)}
    assert heard[0].sender != heard[1].sender
    assert heard[0].boot_id == heard[1].boot_id
    del loggers


def test_api_processes_of_one_server_name_the_start_of_their_parent(
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    listen: Listen,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vllm_config.parallel_config._api_process_count = 2
    parent = SimpleNamespace(pid=os.getppid())
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: parent)
    listener = listen()

    logger = plugin.UllageStatLogger(vllm_config, 0)

    hello = listener.hello()
    assert f"-{os.getppid()}-" in hello.boot_id
    assert hello.pid == os.getpid()
    del logger


OFFLINE = {"data_parallel_rank_local": 1}
EXTERNAL = {"data_parallel_external_lb": True, "data_parallel_size_local": 1}
HYBRID = {"data_parallel_hybrid_lb": True, "data_parallel_size_local": 2}


@pytest.mark.parametrize("vllm_is_old", [False, True], ids=["now", "before-0.20"])
@pytest.mark.parametrize(
    ("balancing", "rank", "sum_now", "sum_before_0_20"),
    [
        ({}, 0, 800, 800),
        (EXTERNAL, 0, 100, 800),
        (EXTERNAL, 3, 100, 100),
        (HYBRID, 0, 200, 800),
        (HYBRID, 2, 200, 200),
        (OFFLINE, 1, 100, 100),
    ],
    ids=["internal", "external", "external-3", "hybrid", "hybrid-2", "offline"],
)
def test_blocks_are_of_one_engine_out_of_eight_of_100_blocks(
    balancing: dict[str, object],
    rank: int,
    sum_now: int,
    sum_before_0_20: int,
    vllm_is_old: bool,
    plugin: ModuleType,
    fake_vllm: ModuleType,
    vllm_config: SimpleNamespace,
    listen: Listen,
) -> None:
    vars(vllm_config.parallel_config).update(
        data_parallel_size=8, data_parallel_size_local=8, data_parallel_rank=rank
    )
    vars(vllm_config.parallel_config).update(balancing)
    vllm_config.cache_config.num_gpu_blocks = sum_before_0_20 if vllm_is_old else sum_now
    if vllm_is_old:
        del fake_vllm.v1.engine.EngineCoreReadyResponse
    listener = listen()

    logger = plugin.UllageStatLogger(vllm_config, rank)

    hello = listener.hello()
    assert (hello.total_blocks, hello.engine_index, hello.data_parallel_size) == (100, rank, 8)
    assert (hello.first_rank, hello.ranks_here) == (
        rank,
        balancing.get("data_parallel_size_local", 1 if balancing else None),
    )
    del logger


def test_blocks_that_vllm_learns_late_are_told_late(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen, eventually: Eventually
) -> None:
    vllm_config.cache_config.num_gpu_blocks = None
    listener = listen()
    logger = plugin.UllageStatLogger(vllm_config, 0)
    assert listener.hello().total_blocks is None

    vllm_config.cache_config.num_gpu_blocks = 256

    assert eventually(lambda: listener.hello().total_blocks == 256)
    del logger


def test_a_config_with_nothing_in_it_is_an_engine_of_unknown_size(
    plugin: ModuleType, listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    listener = listen()

    logger = plugin.UllageStatLogger(object(), 3)

    for _ in range(3):
        hello = listener.hello()
    assert (hello.engine_index, hello.data_parallel_size, hello.models) == (3, 1, ())
    assert (hello.total_blocks, hello.max_num_seqs, hello.max_model_len) == (None, None, None)
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(warned) == len(set(warned)) > 5
    del logger


@pytest.mark.parametrize("value", [-1, "256", 2.5, [1]])
def test_a_size_that_makes_no_sense_is_unknown(
    value: object, plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen
) -> None:
    vllm_config.cache_config.num_gpu_blocks = value
    vllm_config.scheduler_config.max_num_seqs = value
    listener = listen()

    logger = plugin.UllageStatLogger(vllm_config, 0)

    hello = listener.hello()
    assert (hello.total_blocks, hello.max_num_seqs, hello.block_size) == (None, None, 32)
    del logger


# --- how it speaks ---


def test_a_hello_tells_of_the_steps_whose_stats_went_elsewhere(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen, eventually: Eventually
) -> None:
    listener = listen()
    logger = plugin.UllageStatLogger(vllm_config, 0)
    tokens = SimpleNamespace(num_prompt_tokens=3, num_generation_tokens=1, num_preempted_reqs=0)
    for _ in range(3):
        logger.record(None, tokens, mm_cache_stats=None, engine_idx=0)
    logger.record(None, None)

    assert eventually(lambda: listener.hello().unstepped == 3)


def test_tokens_without_a_step_are_told_with_the_next_heartbeat(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen, eventually: Eventually
) -> None:
    listener = listen()
    logger = plugin.UllageStatLogger(vllm_config, 0)
    tokens = SimpleNamespace(num_prompt_tokens=3, num_generation_tokens=1, num_preempted_reqs=0)
    logger.record(scheduler_stats(running=7), tokens)
    logger.record(None, tokens)

    assert eventually(lambda: listener.reading().prompt_tokens == 6)
    assert (listener.reading().seq, listener.reading().running) == (1, 7)


def test_each_step_is_sent_and_one_without_scheduler_stats_is_not_a_step(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen
) -> None:
    listener = listen()
    logger = plugin.UllageStatLogger(vllm_config, 0)
    sender = listener.hello().sender

    logger.record(scheduler_stats(running=7), None, mm_cache_stats=None, engine_idx=0)
    logger.record(None, SimpleNamespace(num_prompt_tokens=3), mm_cache_stats=None, engine_idx=0)
    logger.record(None, None)
    logger.record(scheduler_stats(running=8), None)

    readings = [listener.reading() for _ in range(8)]
    assert {reading.sender for reading in readings} == {sender}
    assert {reading.seq: reading.running for reading in readings} == {1: 7, 2: 8}


def test_the_last_step_is_repeated_as_it_was_while_nothing_happens(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen
) -> None:
    listener = listen()
    logger = plugin.UllageStatLogger(vllm_config, 0)
    logger.record(scheduler_stats(), None)

    first, *repeats = (listener.reading() for _ in range(4))

    assert repeats == [first] * 3


def test_a_listener_that_comes_late_or_again_hears_who_and_how_it_stands(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen, eventually: Eventually
) -> None:
    logger = plugin.UllageStatLogger(vllm_config, 0)
    logger.record(scheduler_stats(running=7), None)
    for _ in range(2):
        listener = listen()
        assert listener.hello().name == "gpu-03"
        assert listener.reading().running == 7
        listener.close()
        assert eventually(lambda: not logger._sender.send(b"is nobody there?"))


def test_what_nobody_took_is_counted_and_told(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen
) -> None:
    logger = plugin.UllageStatLogger(vllm_config, 0)
    for _ in range(5):
        logger.record(scheduler_stats(), None)

    assert listen().hello().dropped == 5
    del logger


def test_a_listener_that_does_not_read_costs_steps_and_nothing_else(
    plugin: ModuleType, vllm_config: SimpleNamespace, listen: Listen
) -> None:
    listener = listen()
    logger = plugin.UllageStatLogger(vllm_config, 0)
    listener.hello()
    for _ in range(10_000):
        logger.record(scheduler_stats(), None)

    logger.record(scheduler_stats(running=9), None)

    while listener.reading().running != 9:
        pass
    assert listener.hello().dropped > 9_000


# --- how it dies, and what it survives ---


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
