"""What a version of vLLM said through the plugin, against what it was made to do."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ullage_sidecar.core.reading import Hello, Reading

LEAST_ARRIVED: Final = 0.99
"""Of the steps made."""
OF_A_STEP: Final = tuple(n for n in Reading._fields if n not in ("sender", "seq", "at_s"))


@dataclass(frozen=True, slots=True)
class Done:
    """What the server was started with, and did."""

    version: str
    total_blocks: int
    block_size: int
    max_num_seqs: int
    models: tuple[str, ...]
    answers: int
    """Of status 200."""
    asked: int
    at_once: int
    prompt_tokens: int
    generated_tokens: int
    log: str


def steps(readings: Sequence[Reading]) -> tuple[int, int]:
    """How many steps arrived, and how many were made."""
    numbers = {reading.seq for reading in readings}
    return len(numbers), max(numbers, default=0)


def faults(done: Done, said: Sequence[Hello | Reading]) -> Iterator[str]:
    """Everything that is not as it should be."""
    hellos = [each for each in said if isinstance(each, Hello)]
    readings = sorted((each for each in said if isinstance(each, Reading)), key=lambda r: r.seq)
    if done.answers != done.asked:
        yield f"{done.answers} of {done.asked} requests were answered"
    if not hellos:
        yield "it said nothing of itself"
    else:
        yield from _of_itself(done, hellos[-1])
    if not readings:
        yield "it told of no step"
    else:
        yield from _of_its_steps(done, readings)
    ours = [line for line in done.log.splitlines() if "Ullage:" in line]
    if len(ours) != 1:
        yield f"{len(ours)} lines of the plugin in its log, wanted 1: {ours[1:2]}"


def _of_itself(done: Done, hello: Hello) -> Iterator[str]:
    for name in ("total_blocks", "block_size", "max_num_seqs", "models"):
        if (told := getattr(hello, name)) != (wanted := getattr(done, name)):
            yield f"{name} is {told}, wanted {wanted}"
    if (hello.vllm_version or "").partition("+")[0] != done.version:
        yield f"vllm_version is {hello.vllm_version}, wanted {done.version}"
    for name in ("max_num_batched_tokens", "max_model_len"):
        if not getattr(hello, name):
            yield f"{name} is unknown"


def _of_its_steps(done: Done, readings: Sequence[Reading]) -> Iterator[str]:
    for name in OF_A_STEP:
        if any(getattr(reading, name) is None for reading in readings):
            yield f"{name} is unknown"
    arrived, made = steps(readings)
    if arrived < LEAST_ARRIVED * made:
        yield f"{arrived} of {made} steps arrived"
    most_running = max(reading.running or 0 for reading in readings)
    most_waiting = max(reading.waiting or 0 for reading in readings)
    if most_running != done.max_num_seqs:
        yield f"{most_running} ran at once, wanted {done.max_num_seqs}"
    if not 0 < most_waiting <= done.at_once - done.max_num_seqs:
        yield f"{most_waiting} waited, wanted 1 to {done.at_once - done.max_num_seqs}"
    if not any(reading.kv_usage for reading in readings):
        yield "no block was ever in use"
    last = readings[-1]
    end = (last.running, last.waiting, last.kv_usage)
    if end != (0, 0, 0.0):
        yield f"running, waiting and blocks in use ended as {end}"
    for name in ("prompt_tokens", "generated_tokens"):
        if (told := getattr(last, name)) != (wanted := getattr(done, name)):
            yield f"{name} is {told}, wanted {wanted}"
