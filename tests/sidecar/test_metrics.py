"""What Prometheus reads: known values, and no series for unknown ones."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ullage_shared.snapshot import RequestClass, State
from ullage_sidecar.channel import encode_hello, encode_step
from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.core.health import Probe
from ullage_sidecar.core.reading import Hello
from ullage_sidecar.endpoints import Served, metrics
from ullage_sidecar.metrics import PREFIX, registry
from ullage_sidecar.node import Node

T = 1000.0
CONFIG = Config(
    node="n", engine=(EngineEntry(url="http://x:1"), EngineEntry(name="mute", url="http://y:1"))
)


def scraped(started_s=T - 9.0, kv_usage=0.25, steps=()):
    node = Node(CONFIG, T - 10.0)
    node.probed("vllm", Probe(None), T)
    node.probed("mute", Probe("Connection refused", gone=True), T)
    hello = Hello(
        1,
        "vllm",
        "b",
        1,
        started_s=started_s,
        total_blocks=100,
        block_size=16,
        max_num_seqs=8,
        models=("llama", "tiny"),
        dropped=4,
    )
    node.hear(encode_hello(hello), T)
    for seq in (1, 2, 4, 4):
        node.hear(encode_step(1, seq, T, (2, 3, kv_usage, 10 * seq, 5, 0, 80, 40)), T)
    for seq, at_s, prompts, generated in steps:
        node.hear(encode_step(1, seq, at_s, (2, 0, 0.5, prompts, generated, 0, 80, 40)), T)
    node.hear(b"garbage", T)
    text = metrics(
        registry(
            node, Served(7, 3, agent_checks=5, agent_checks_misnamed=1), "9.9", lambda: T + 1.0
        )
    ).body
    families = list(text_string_to_metric_families(text.decode()))
    samples = {
        (sample.name.removeprefix(PREFIX), *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }
    return families, samples


FAMILIES, SAMPLES = scraped()


def test_gauges_of_a_known_engine():
    assert SAMPLES["score_free_term", "vllm"] == 0.75
    assert SAMPLES["score_running_term", "vllm"] == 0.75
    assert SAMPLES["score_waiting_term", "vllm"] == 0.7
    assert SAMPLES["penalty_factor", "vllm"] == 0.25
    assert SAMPLES["warm_up_factor", "vllm"] == 0.0
    assert SAMPLES["capacity_score", "vllm"] == 0.0
    assert SAMPLES["total_blocks", "vllm"] == 100.0
    assert SAMPLES["free_blocks", "vllm"] == 74.0
    assert SAMPLES["running_requests", "vllm"] == 2.0
    assert SAMPLES["waiting_requests", "vllm"] == 3.0
    assert SAMPLES["kv_cache_usage_ratio", "vllm"] == 0.25
    assert SAMPLES["block_size_tokens", "vllm"] == 16.0
    assert SAMPLES["model_info", "vllm", "llama"] == SAMPLES["model_info", "vllm", "tiny"] == 1.0
    assert SAMPLES["last_sign_age_seconds", "vllm"] == 1.0


def test_what_each_term_adds_makes_the_score_with_the_factors():
    parts = {term: SAMPLES["score_part", "vllm", term] for term in ("free", "running", "waiting")}
    assert parts == pytest.approx({"free": 0.375, "running": 0.225, "waiting": 0.14})
    _, samples = scraped(started_s=T - 500.0)
    factors = samples["penalty_factor", "vllm"] * samples["warm_up_factor", "vllm"]
    added = sum(samples["score_part", "vllm", term] for term in parts)
    assert added * factors == pytest.approx(samples["capacity_score", "vllm"])


def test_the_weights_are_told_as_configured():
    by_class = {
        cls: [SAMPLES["score_weight", cls, term] for term in ("free", "running", "waiting")]
        for cls in RequestClass
    }
    assert by_class == {
        RequestClass.SHORT: [0.3, 0.5, 0.2],
        RequestClass.MIXED: [0.5, 0.3, 0.2],
        RequestClass.LONG: [0.65, 0.15, 0.2],
    }


def test_an_engine_is_named_as_routers_name_it():
    assert SAMPLES["replica_info", "vllm", "n/vllm"] == 1.0
    assert SAMPLES["replica_info", "mute", "n/mute"] == 1.0


def test_a_drained_engine_is_told_apart_from_one_that_is_down():
    node = Node(CONFIG, T - 10.0)
    node.drain("mute", T)
    text = metrics(registry(node, Served(), "9.9", lambda: T)).body.decode()
    assert 'ullage_sidecar_drained{engine="mute"} 1.0' in text
    assert 'ullage_sidecar_drained{engine="vllm"} 0.0' in text


def test_speeds_are_told_once_they_are_learned():
    speeds = ("step_seconds", "decode_tokens_per_second", "prefill_tokens_per_second")
    assert not {name for name, *_ in SAMPLES} & set(speeds)
    decoding = [(5 + n, T - 9.0 + n / 10, 40, 5 + 2 * n) for n in range(20)]
    mixed = [
        (25 + n, T - 7.1 + n // 2 / 2 + (0.4, 0.5)[n % 2], 640 + 600 * (n // 2), 45 + 2 * n)
        for n in range(6)
    ]
    _, samples = scraped(steps=decoding + mixed)
    told = [samples[name, "vllm"] for name in speeds]
    assert told == [0.1, 20.0, 2000.0]


def test_headroom_is_told_for_each_class_of_request():
    _, samples = scraped(started_s=T - 500.0, kv_usage=0.75)
    by_class = {cls: samples["capacity_score_by_class", cls, "vllm"] for cls in RequestClass}
    assert by_class == pytest.approx(
        {
            RequestClass.SHORT: (0.3 * 0.25 + 0.5 * 0.75 + 0.2 * 0.7) * 0.25,
            RequestClass.MIXED: (0.5 * 0.25 + 0.3 * 0.75 + 0.2 * 0.7) * 0.25,
            RequestClass.LONG: (0.65 * 0.25 + 0.15 * 0.75 + 0.2 * 0.7) * 0.25,
        }
    )
    assert by_class[RequestClass.MIXED] == samples["capacity_score", "vllm"]


def test_a_server_that_warms_up_has_no_headroom_in_any_class():
    assert [SAMPLES["capacity_score_by_class", cls, "vllm"] for cls in RequestClass] == [0.0] * 3


def test_counters_of_a_known_engine():
    assert SAMPLES["readings_received_total", "vllm"] == 3.0
    assert SAMPLES["readings_lost_total", "vllm"] == 1.0
    assert SAMPLES["heartbeats_total", "vllm"] == 1.0
    assert SAMPLES["readings_dropped_total", "vllm"] == 4.0
    assert SAMPLES["prompt_tokens_total", "vllm"] == 40.0
    assert SAMPLES["prefix_cache_hit_tokens_total", "vllm"] == 40.0


def test_an_engine_is_in_one_state():
    states = {key[2]: value for key, value in SAMPLES.items() if key[:2] == ("state", "vllm")}
    assert states == {state: float(state is State.WARMING) for state in State}


def test_an_engine_has_one_source():
    sources = {key[1:]: value for key, value in SAMPLES.items() if key[0] == "source"}
    ones = {key for key, value in sources.items() if value == 1.0}
    assert ones == {("vllm", "plugin"), ("mute", "none")}
    assert len(sources) == 6
    assert SAMPLES["max_running_requests_estimated", "vllm"] == 0.0


def test_what_is_unknown_has_no_series():
    of_mute = {key[0] for key in SAMPLES if "mute" in key}
    assert "capacity_score" in of_mute  # it is starting: 0, not unknown
    assert not of_mute & {
        "score_free_term",
        "running_requests",
        "kv_cache_usage_ratio",
        "total_blocks",
        "block_size_tokens",
        "model_info",
        "max_running_requests_estimated",
        "scrape_duration_seconds",
        "prompt_tokens_total",
    }


def test_the_sidecars_own_work_is_counted():
    assert SAMPLES["datagrams_ignored_total", "malformed"] == 1.0
    assert SAMPLES["health_checks_total", "vllm"] == 1.0
    assert SAMPLES["health_check_failures_total", "mute"] == 1.0
    assert SAMPLES["scrapes_total", "mute"] == SAMPLES["scrape_failures_total", "mute"] == 0.0
    assert SAMPLES["snapshot_requests_total", "200"] == 7.0
    assert SAMPLES["snapshot_requests_total", "304"] == 3.0
    assert SAMPLES["agent_checks_total", "yes"] == 5.0
    assert SAMPLES["agent_checks_total", "no"] == 1.0
    assert SAMPLES["build_info", "9.9"] == 1.0


def test_every_metric_of_ours_has_a_help_text_and_prefix():
    ours = [family for family in FAMILIES if family.name.startswith(PREFIX)]
    assert all(family.documentation for family in ours)
    others = {family.name for family in FAMILIES} - {family.name for family in ours}
    assert all(name.startswith(("process_", "python_")) for name in others)
