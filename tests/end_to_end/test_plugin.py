"""The plugin in real vLLM servers: what `vllm serve` says through it, and that it harms nobody.

The tests play the sidecar: they bind the socket and decode what comes. Two servers: one plain; one
whose stats objects are poisoned before the plugin sees them (by a second stat-logger plugin on
PYTHONPATH), started with --disable-log-stats. `test_ranks` has one with two engines and two API
processes.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from told_server import Answer, Ear, Told
from ullage_sidecar.core.reading import Hello, Reading
from vllm_cpu.serve import CpuServer, Replica

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(400)]

# A second plugin, for tests only: what ours is given is spoilt in a different way each time. vLLM's
# own objects stay as they are, for vLLM's own loggers read them as well.
POISONER = """
import copy, itertools
from ullage_sidecar.vllm_plugin import UllageStatLogger
from vllm.v1.metrics.loggers import StatLoggerBase

class Bystander(StatLoggerBase):
    def __init__(self, vllm_config, engine_index=0): pass
    def record(self, *args, **kwargs): pass
    def log_engine_initialized(self): pass

class Raising:
    def __getattr__(self, name): raise BufferError(name)

def without(name):
    def spoil(stats):
        delattr(stats, name)
        return stats
    return spoil

def with_(name, value):
    def spoil(stats):
        setattr(stats, name, value)
        return stats
    return spoil

POISONS = itertools.cycle([
    lambda stats: stats,
    without("kv_cache_usage"),
    without("num_waiting_reqs"),
    with_("num_running_reqs", "many"),
    with_("prefix_cache_stats", None),
    lambda stats: Raising(),
    lambda stats: 7,
])
record = UllageStatLogger.record

def poisoned(self, scheduler_stats, iteration_stats, *args, **kwargs):
    if scheduler_stats is not None:
        stats = copy.copy(scheduler_stats)
        # a field of a dataclass with a default is found on the class when it is not on the object
        stats.__class__ = type("SchedulerStats", (), {})
        scheduler_stats = next(POISONS)(stats)
    record(self, scheduler_stats, iteration_stats, *args, **kwargs)

UllageStatLogger.record = poisoned
"""


@pytest.fixture(scope="class")
def socket_directory(until_class_ends: ExitStack) -> Path:
    return Path(until_class_ends.enter_context(tempfile.TemporaryDirectory(prefix="ullage")))


@pytest.fixture(scope="class")
def told(
    vllm_venv: Path,
    tiny_model: Path,
    free_port: Callable[[], int],
    socket_directory: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Told]:
    """Make a server that reports to a socket of its own; not started."""

    def told(name: str, *flags: str, **environment: str) -> Told:
        path = socket_directory / f"{name}.sock"
        replica = Replica(
            vllm_venv,
            tiny_model,
            port=free_port(),
            flags=flags,
            environment={"ULLAGE_SOCKET": str(path), "ULLAGE_ENGINE": name, **environment},
        )
        log = tmp_path_factory.mktemp("vllm") / f"{name}.log"
        return Told(CpuServer(replica, log), path)

    return told


@pytest.fixture
def ear_of(request: pytest.FixtureRequest) -> Callable[[Told], Ear]:
    """Listen to a server until the test ends."""

    def ear_of(told: Told) -> Ear:
        ear = Ear(told.socket_path)
        request.addfinalizer(ear.close)
        return ear

    return ear_of


@dataclass(frozen=True, slots=True)
class Pair:
    plain: Told
    poisoned: Told
    first_heard: list[Hello | Reading]
    """What the plain server said by itself, before anybody asked anything of it."""
    started_s: tuple[float, float]


@pytest.fixture(scope="class")
def pair(
    told: Callable[..., Told], until_class_ends: ExitStack, tmp_path_factory: pytest.TempPathFactory
) -> Pair:
    extra = tmp_path_factory.mktemp("poisoner")
    (extra / "poisoner.py").write_text(POISONER)
    (extra / "poisoner-1.dist-info").mkdir()
    (extra / "poisoner-1.dist-info/METADATA").write_text("Name: poisoner\nVersion: 1\n")
    (extra / "poisoner-1.dist-info/entry_points.txt").write_text(
        "[vllm.stat_logger_plugins]\npoisoner = poisoner:Bystander\n"
    )
    plain = told("plain")
    poisoned = told("poisoned", "--disable-log-stats", PYTHONPATH=str(extra))
    ear = Ear(plain.socket_path)
    before_s = time.monotonic()
    try:
        for each in (plain, poisoned):
            until_class_ends.callback(each.server.stop)
            each.server.start()
        for each in (plain, poisoned):
            each.server.wait_ready()
        after_s = time.monotonic()
        ear.wait_for(ear.hellos, within_s=3.0)
    finally:
        ear.close()
    return Pair(plain, poisoned, ear.heard(), (before_s, after_s))


def numbered(readings: list[Reading]) -> set[tuple[int, int]]:
    return {(reading.sender, reading.seq) for reading in readings}


class TestOneEngine:
    def test_hello_is_right_against_the_flags(self, pair: Pair) -> None:
        plain = pair.plain
        hello = next(said for said in pair.first_heard if isinstance(said, Hello))

        model = json.loads(plain.get("/v1/models"))["data"][0]
        replica = plain.server.replica
        assert hello == Hello(
            sender=hello.sender,
            name="plain",
            boot_id=hello.boot_id,
            pid=plain.server.pid,
            started_s=hello.started_s,
            engine_index=0,
            data_parallel_size=1,
            ranks_here=hello.ranks_here,
            models=(model["id"],),
            total_blocks=replica.kv_blocks,
            block_size=replica.block_size,
            max_num_seqs=replica.max_seqs,
            max_num_batched_tokens=hello.max_num_batched_tokens,
            max_model_len=model["max_model_len"],
            vllm_version=json.loads(plain.get("/version"))["version"].partition("+")[0],
            dropped=0,
            said_s=hello.said_s,
        )
        assert hello.ranks_here in (None, 1)
        assert hello.said_s >= hello.started_s
        assert hello.max_num_batched_tokens
        assert pair.started_s[0] < hello.started_s < pair.started_s[1]
        assert plain.blocks_of_all_engines() == hello.total_blocks

    def test_a_server_that_never_had_a_request_says_nothing_of_its_load(self, pair: Pair) -> None:
        assert not [said for said in pair.first_heard if isinstance(said, Reading)]

    def test_it_prints_one_line_and_no_more(self, pair: Pair) -> None:
        log = pair.plain.server.log.read_text()

        assert log.count("Ullage:") == 1
        assert "Ullage: engine 0 of 'plain' is to report to" in log

    def test_under_load_99_of_100_steps_arrive_and_tokens_add_up(
        self, pair: Pair, ear_of: Callable[[Told], Ear]
    ) -> None:
        ear = ear_of(pair.plain)
        ear.wait_for(ear.hellos, within_s=2.0)
        before = pair.plain.metrics()["generation_tokens_total"]

        answers = pair.plain.load(requests=80, at_once=12, tokens=100)

        assert {answer.status for answer in answers} == {200}
        after = pair.plain.metrics()["generation_tokens_total"]
        last = ear.wait_for(
            lambda: [r for r in ear.readings() if r.running == 0 and r.generated_tokens == after],
            3.0,
        )[-1]
        first = min(reading.seq for reading in ear.readings())
        received = len({reading.seq for reading in ear.readings()})
        steps = last.seq - first + 1
        print(
            f"{received} of {steps} steps received; hello says {ear.hellos()[-1].dropped} dropped"
        )
        assert after - before == 8_000
        assert received / steps >= 0.99

    def test_at_rest_it_agrees_with_metrics(
        self, pair: Pair, ear_of: Callable[[Told], Ear]
    ) -> None:
        ear = ear_of(pair.plain)
        pair.plain.complete(tokens=8)

        scraped = pair.plain.metrics()
        reading = ear.wait_for(lambda: [r for r in ear.readings() if r.running == 0], within_s=2.0)[
            -1
        ]

        assert (reading.running, reading.waiting) == (0, 0)
        assert (scraped["num_requests_running"], scraped["num_requests_waiting"]) == (0, 0)
        assert reading.kv_usage == scraped["kv_cache_usage_perc"]
        assert reading.prompt_tokens == scraped["prompt_tokens_total"]
        assert reading.generated_tokens == scraped["generation_tokens_total"]
        assert reading.preemptions == scraped["num_preemptions_total"]
        assert reading.prefix_queries == scraped["prefix_cache_queries_total"]
        assert reading.prefix_hits == scraped["prefix_cache_hits_total"]

    def test_under_load_each_scrape_equals_a_reading_within_one_step_of_it(
        self, pair: Pair, ear_of: Callable[[Told], Ear]
    ) -> None:
        ear = ear_of(pair.plain)
        scrapes = []
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(pair.plain.load, requests=60, at_once=12, tokens=100)
            ear.wait_for(lambda: any(reading.waiting for reading in ear.readings()), within_s=10.0)
            while not load.done():
                before_s = time.monotonic()
                scrapes.append((before_s, pair.plain.metrics(), time.monotonic()))
                time.sleep(0.05)

        readings = sorted(set(ear.readings()), key=lambda reading: reading.seq)
        assert len(scrapes) >= 10
        assert max(scraped["num_requests_waiting"] for _, scraped, _ in scrapes) >= 3
        for before_s, scraped, after_s in scrapes:
            earlier = [index for index, r in enumerate(readings) if r.at_s < before_s]
            later = [index for index, r in enumerate(readings) if r.at_s > after_s]
            around = readings[earlier[-1] if earlier else 0 : later[0] + 1 if later else None]
            assert any(
                (reading.running, reading.waiting, reading.kv_usage)
                == (
                    scraped["num_requests_running"],
                    scraped["num_requests_waiting"],
                    scraped["kv_cache_usage_perc"],
                )
                for reading in around
            ), f"{scraped['num_requests_running']} running is none of {around}"

    def test_a_listener_killed_under_load_disturbs_nobody_and_another_learns_all_at_once(
        self, pair: Pair, ear_of: Callable[[Told], Ear]
    ) -> None:
        ear = Ear(pair.plain.socket_path)
        answers: list[Answer] = []
        with ThreadPoolExecutor(1) as pool:
            load = pool.submit(pair.plain.load, 80, at_once=8, tokens=100, answers=answers)
            ear.wait_for(lambda: len(answers) >= 32, within_s=60.0)
            ear.close()
            closed_s = time.monotonic()
            load.result()
        time.sleep(1.5)  # the engine is idle

        began_s = time.monotonic()
        second = ear_of(pair.plain)
        reading = second.wait_for(second.readings, within_s=1.5)[0]
        learnt_s = time.monotonic() - began_s

        with_listener = [a.took_s for a in answers if a.began_s + a.took_s < closed_s]
        without = [a.took_s for a in answers if a.began_s > closed_s]
        ratio = statistics.median(without) / statistics.median(with_listener)
        print(
            f"latency without ÷ with a listener {ratio:.3f}; a new one knew all in {learnt_s:.2f} s"
        )
        assert {answer.status for answer in answers} == {200}
        assert len(with_listener) >= 16
        assert len(without) >= 16
        assert ratio < 1.5  # what two busy cores make of equal halves
        assert (reading.running, reading.waiting, reading.kv_usage) == (0, 0, 0.0)
        assert reading.seq > max(earlier.seq for earlier in ear.readings())
        assert second.hellos()[0].dropped > 100

    def test_poisoned_stats_never_take_the_server_down(
        self, pair: Pair, ear_of: Callable[[Told], Ear]
    ) -> None:
        ear = ear_of(pair.poisoned)

        answers = pair.poisoned.load(requests=40, at_once=12, tokens=50)

        assert {answer.status for answer in answers} == {200}
        assert pair.poisoned.server.is_healthy()
        readings = ear.readings()
        for name in ("running", "waiting", "kv_usage"):
            values = {getattr(reading, name) for reading in readings}
            assert None in values
            assert values - {None}
        log = pair.poisoned.server.log.read_text()
        assert log.count("kv_cache_usage is not there") == 1
        assert log.count("a step was not reported: BufferError") == 1
        assert log.count("Ullage:") < 12

    def test_readings_come_with_log_stats_disabled(
        self, pair: Pair, ear_of: Callable[[Told], Ear]
    ) -> None:
        assert "--disable-log-stats" in pair.poisoned.server.replica.flags
        ear = ear_of(pair.poisoned)
        pair.poisoned.complete(tokens=50)

        assert ear.wait_for(ear.readings, within_s=2.0)

    def test_two_starts_of_a_server_have_two_boot_ids(
        self, pair: Pair, ear_of: Callable[[Told], Ear]
    ) -> None:
        ear = ear_of(pair.poisoned)
        other = ear.wait_for(ear.hellos, within_s=2.0)[0]
        first = next(said for said in pair.first_heard if isinstance(said, Hello))

        assert other.boot_id != first.boot_id
