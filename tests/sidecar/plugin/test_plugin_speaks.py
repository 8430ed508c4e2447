"""How the plugin speaks."""

from types import ModuleType, SimpleNamespace

from plugin_pieces import Eventually, Listen, scheduler_stats


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
