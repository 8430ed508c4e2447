"""Who the plugin says it is."""

import multiprocessing
import os
from time import monotonic
from types import ModuleType, SimpleNamespace

import pytest

from plugin_pieces import Eventually, Listen
from ullage_sidecar.channel import Sender
from ullage_sidecar.core.reading import Hello


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
