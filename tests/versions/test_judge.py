"""What counts as wrong of a version's readings."""

from dataclasses import replace

import pytest

from ullage_sidecar.core.reading import Hello, Reading
from versions.judge import Done, faults

DONE = Done(
    version="0.20.2",
    total_blocks=256,
    block_size=32,
    max_num_seqs=8,
    models=("tiny",),
    answers=48,
    asked=48,
    at_once=12,
    prompt_tokens=300,
    generated_tokens=1920,
    log="INFO Ullage: engine 0 of 'x' is to report to /s\nINFO: 200 OK\n",
)
HELLO = Hello(
    1,
    "x",
    "boot",
    11,
    100.0,
    models=("tiny",),
    total_blocks=256,
    block_size=32,
    max_num_seqs=8,
    max_num_batched_tokens=4096,
    max_model_len=4096,
    vllm_version="0.20.2+cpu",
)
BUSY = Reading(1, 1, 100.0, 8, 4, 0.5, 300, 8, 0, 300, 0)
LAST = Reading(1, 2, 101.0, 0, 0, 0.0, 300, 1920, 0, 300, 0)


def test_a_version_that_tells_everything_has_no_fault():
    assert list(faults(DONE, [HELLO, BUSY, LAST, LAST])) == []


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ([BUSY, LAST], "it said nothing of itself"),
        ([HELLO], "it told of no step"),
        ([replace(HELLO, total_blocks=512), BUSY, LAST], "total_blocks is 512, wanted 256"),
        ([replace(HELLO, max_model_len=None), BUSY, LAST], "max_model_len is unknown"),
        ([HELLO, BUSY._replace(kv_usage=None), LAST], "kv_usage is unknown"),
        ([HELLO, BUSY._replace(running=7), LAST], "7 ran at once, wanted 8"),
        ([HELLO, BUSY._replace(waiting=5), LAST], "5 waited, wanted 1 to 4"),
        ([HELLO, BUSY, LAST._replace(generated_tokens=9)], "generated_tokens is 9, wanted 1920"),
        ([HELLO, BUSY, LAST._replace(seq=200)], "2 of 200 steps arrived"),
        (
            [HELLO, BUSY, LAST._replace(waiting=1)],
            "running, waiting and blocks in use ended as (0, 1, 0.0)",
        ),
    ],
)
def test_what_it_told_wrong_is_named(said, fault):
    assert fault in list(faults(DONE, said))


def test_a_warning_in_its_log_is_shown():
    log = DONE.log + "WARNING Ullage: vLLM's stats.kv_cache_usage is not there\n"
    (fault,) = faults(replace(DONE, log=log), [HELLO, BUSY, LAST])
    assert "kv_cache_usage is not there" in fault


def test_a_refused_request_is_counted():
    assert "47 of 48 requests were answered" in list(
        faults(replace(DONE, answers=47), [HELLO, BUSY, LAST])
    )
