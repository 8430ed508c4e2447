"""Pages of metrics, as several servers write them; what is not there is unknown."""

from dataclasses import replace
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from ullage_sidecar.sources.exposition import (
    MAX_LINE_BYTES,
    MAX_LINES,
    MAX_RANKS,
    MAX_WANTED,
    MAX_WANTED_BYTES,
    ExpositionError,
    Figures,
    Page,
    read,
)

NOW = """\
# HELP process_start_time_seconds Start time of the process since unix epoch in seconds.
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.79604163881e+09
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:prefix_cache_queries_total{engine="0",model_name="tiny"} 120.0
vllm:prefix_cache_queries_created{engine="0",model_name="tiny"} 1.7960417738677409e+09
vllm:prefix_cache_hits_total{engine="0",model_name="tiny"} 40.0
vllm:num_preemptions_total{engine="0",model_name="tiny"} 2.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 120.0
vllm:prompt_tokens_created{engine="0",model_name="tiny"} 1.7960417738680222e+09
vllm:generation_tokens_total{engine="0",model_name="tiny"} 1.5e+03
vllm:iteration_tokens_total_bucket{engine="0",le="1.0",model_name="tiny"} 0.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 600.0
vllm:cache_config_info{block_size="32",engine="0",num_cpu_blocks="None",num_gpu_blocks="256"} 1.0
"""
OLD = """\
vllm:num_requests_running{model_name="tiny"} 3.0
vllm:num_requests_waiting{model_name="tiny"} 1.0
vllm:gpu_cache_usage_perc{model_name="tiny"} 0.25
vllm:gpu_prefix_cache_queries_total{model_name="tiny"} 120.0
vllm:gpu_prefix_cache_hits_total{model_name="tiny"} 40.0
vllm:prompt_tokens_total{model_name="tiny"} 120.0
vllm:generation_tokens_total{model_name="tiny"} 1500.0
vllm:num_preemptions_total{model_name="tiny"} 2.0
vllm:cache_config_info{block_size="32",num_gpu_blocks="256"} 1.0
"""
SGLANG = """\
sglang:num_running_reqs{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 3.0
sglang:num_running_reqs{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="1"} 3.0
sglang:num_queue_reqs{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 1.0
sglang:token_usage{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 0.25
sglang:num_used_tokens{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 2048.0
sglang:gen_throughput{engine_type="unified",model_name="tiny",pp_rank="0",tp_rank="0"} 86.5
sglang:prompt_tokens_total{model_name="tiny"} 120.0
sglang:generation_tokens_total{model_name="tiny"} 1500.0
sglang:num_retracted_requests_total{model_name="tiny"} 2.0
sglang:page_size{model_name="tiny"} 1.0
sglang:num_pages{model_name="tiny"} 8192.0
"""
TWO = """\
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:kv_cache_usage_perc{model_name="tiny",engine="0"} 0.25
vllm:kv_cache_usage_perc{model_name="tiny",engine="1"} 0.0
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="512"} 1.0
vllm:cache_config_info{block_size="32",engine="1",num_gpu_blocks="512"} 1.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 120.0
vllm:generation_tokens_total{model_name="tiny"} 7.0
"""
FIGURES = Figures(
    3, 1, 0.25, 120, 1500, 2, 120, 40, total_blocks=256, block_size=32, models=("tiny",),
    pulse=(600.0,),
)  # fmt: skip


def page(text):
    return read(text.encode())


def only(text):
    """The figures of the one engine there is."""
    (figures,) = page(text).engines.values()
    return figures


def without(name):
    return "".join(line for line in NOW.splitlines(keepends=True) if not line.startswith(name))


def test_the_page_of_a_vllm_of_today():
    assert page(NOW) == Page({0: FIGURES}, 1796041638.81, 1796041773.8680222)


def test_the_page_of_an_old_vllm():
    assert page(OLD) == Page({0: replace(FIGURES, pulse=())})


def test_the_page_of_sglang():
    assert only(SGLANG) == replace(
        FIGURES, prefix_queries=None, prefix_hits=None, total_blocks=8192, block_size=1,
        pulse=(2048.0, 86.5),
    )  # fmt: skip
    older = SGLANG.replace("sglang:page_size", "x").replace("sglang:num_pages", "x")
    older += 'sglang:cache_config_info{num_pages="128",page_size="64"} 1.0\n'
    assert (only(older).total_blocks, only(older).block_size) == (128, 64)


def test_of_two_names_for_one_figure_the_newer_one_counts():
    both = NOW + 'vllm:gpu_cache_usage_perc{engine="0",model_name="tiny"} 0.9\n'
    assert page(both) == page(NOW)


def test_each_engine_has_its_own_figures_and_its_share_of_the_blocks():
    engines = page(TWO).engines
    assert list(engines) == [0, 1]
    assert engines[0] == Figures(3, 1, 0.25, 120, total_blocks=256, block_size=32, models=("tiny",))
    assert (engines[1].running, engines[1].waiting, engines[1].kv_usage) == (0, 0, 0.0)
    assert engines[1].total_blocks == 256


def test_of_several_engines_what_names_none_is_nobodys():
    assert [engine.generated_tokens for engine in page(TWO).engines.values()] == [None, None]


def test_ranks_of_sglang_are_engines():
    text = SGLANG.replace('pp_rank="0"', 'pp_rank="0",dp_rank="2"')
    assert list(page(text).engines) == [2]
    assert only(text).prompt_tokens == 120  # the only engine's, though it is not said


@pytest.mark.parametrize(
    ("name", "figure"),
    [
        ("vllm:num_requests_running{", "running"),
        ("vllm:num_requests_waiting{", "waiting"),
        ("vllm:kv_cache_usage_perc", "kv_usage"),
        ("vllm:prompt_tokens_total", "prompt_tokens"),
        ("vllm:generation_tokens_total", "generated_tokens"),
        ("vllm:num_preemptions_total", "preemptions"),
        ("vllm:prefix_cache_queries_total", "prefix_queries"),
        ("vllm:prefix_cache_hits_total", "prefix_hits"),
    ],
)
@pytest.mark.parametrize("value", [None, "NaN", "+Inf", "-Inf", "-1.0", "1e+300"])
def test_what_is_missing_or_makes_no_sense_is_unknown_and_the_rest_is_known(name, figure, value):
    text = without(name)
    if value is not None:
        text += f'{name.rstrip("{")}{{engine="0",model_name="tiny"}} {value}\n'
    assert only(text) == replace(FIGURES, **{figure: None})


@pytest.mark.parametrize("usage", ["1.0001", "-0.0001", "25.0"])
def test_a_usage_beyond_0_and_1_is_unknown(usage):
    text = without("vllm:kv_cache_usage_perc") + f"vllm:kv_cache_usage_perc {usage}\n"
    assert only(text).kv_usage is None


def test_half_a_request_is_unknown():
    assert only(NOW.replace('"tiny"} 3.0', '"tiny"} 3.5')).running is None


@pytest.mark.parametrize("blocks", ["None", "", "-1", "2.5", "0", "9" * 40])
def test_a_number_of_blocks_that_is_none_is_unknown(blocks):
    figures = only(NOW.replace('num_gpu_blocks="256"', f'num_gpu_blocks="{blocks}"'))
    assert figures == replace(FIGURES, total_blocks=None)


def test_requests_of_several_models_add_up_and_their_common_cache_does_not():
    more = NOW + (
        'vllm:num_requests_running{engine="0",model_name="other"} 2.0\n'
        'vllm:kv_cache_usage_perc{engine="0",model_name="other"} 0.5\n'
    )
    figures = only(more)
    assert (figures.running, figures.kv_usage) == (5, 0.5)
    assert figures.models == ("other", "tiny")


def test_one_unknown_part_makes_the_sum_unknown():
    assert only(NOW + 'vllm:num_requests_running{engine="0",model_name="b"} NaN\n').running is None


def test_order_of_lines_and_labels_comments_and_line_ends_do_not_matter():
    lines = NOW.splitlines()
    for text in (
        "\n".join(reversed(lines)),
        "\r\n".join(lines),
        NOW.replace('engine="0",model_name="tiny"', 'model_name="tiny", engine="0",'),
        NOW.replace('"} ', '"}\t'),
        NOW.replace('"tiny"} 3.0', '"tiny"} 3.0 1796041773868'),
        NOW.replace("vllm:num_requests_running{", "vllm:num_requests_running {"),
        "\n\n# a comment\n#\n" + NOW + "# EOF\n",
    ):
        assert page(text) == page(NOW)


def test_what_openmetrics_puts_behind_a_value_is_left_out():
    told = NOW.replace('"tiny"} 120.0', '"tiny"} 120.0 # {trace_id="a"} 7.0 1796041773.8')
    assert page(told) == page(NOW)


def test_a_models_name_may_be_odd():
    for odd in ("a b{c}=,d", r"\"quoted\" \\ \n", "模型"):
        assert only(NOW.replace('"tiny"', f'"{odd}"')).running == 3


@pytest.mark.parametrize(
    "body",
    [b"", b"\n\n", b"<html>hello</html>", b"\0\xff\xfe", without("vllm:").encode(), b"# EOF\n"],
)
def test_a_page_without_an_engine_is_one_clear_problem(body):
    with pytest.raises(ExpositionError, match="no metrics of vLLM or SGLang"):
        read(body)


@pytest.mark.parametrize(
    "tail",
    [b"", b"{", b'{engine="0"', b'{engine="0"}', b'{engine="0"} x', b"{engine=0} 1", b" 1 2 3 x",
     b'{engine="\xff"} 1', b'{engine="0",engine="1"} 1', b" 1_0", b" \xff"],
)  # fmt: skip
def test_a_line_that_is_cut_or_garbled_is_one_problem_that_names_it(tail):
    body = NOW.encode() + b"vllm:num_requests_waiting" + tail + b"\n"
    with pytest.raises(ExpositionError, match=r"^vllm:num_requests_waiting: "):
        read(body)


@pytest.mark.parametrize("rank", ["-1", "x", "1.0", str(MAX_RANKS), "9" * 30])
def test_an_engine_that_cannot_be_is_one_problem(rank):
    with pytest.raises(ExpositionError, match="wanted an engine of 0 to 1023"):
        page(NOW.replace('engine="0"', f'engine="{rank}"'))


def with_line_of(size):
    line = 'vllm:num_requests_running{engine="0",model_name="tiny",x=""} 3.0'
    return NOW + line.replace('x=""', f'x="{"y" * (size - len(line))}"') + "\n"


def test_a_line_that_is_too_long_is_one_problem_that_names_it():
    """To parse one of a megabyte takes seconds, and it would be remembered."""
    assert page(with_line_of(MAX_LINE_BYTES)) == page(NOW)
    with pytest.raises(ExpositionError, match=r"^vllm:num_requests_running: a line of more than 4"):
        page(with_line_of(MAX_LINE_BYTES + 1))
    nobodys = with_line_of(2**20).replace("vllm:num_requests_running{", "vllm:other{")
    assert only(nobodys) == replace(FIGURES, running=None)


def running(lines, width=1):
    return "".join(f'vllm:num_requests_running{{x="{n:0{width}}"}} 1\n' for n in range(lines))


def test_a_page_with_more_figures_than_any_server_has_is_one_problem():
    assert only(running(MAX_WANTED)).running == 1
    wide = MAX_WANTED_BYTES // 1_000
    assert only(running(wide, width=960)).running == 1
    for text in (running(MAX_WANTED + 1), running(wide, width=1_000)):
        with pytest.raises(ExpositionError, match=r"^more than 4096 lines or 262144 bytes of an e"):
            page(text)


def test_a_page_with_more_lines_than_any_server_has_is_one_problem():
    assert page(NOW + "\n" * (MAX_LINES - NOW.count("\n"))) == page(NOW)
    with pytest.raises(ExpositionError, match=r"^more than 262144 lines$"):
        page(NOW + "\n" * MAX_LINES)


def test_a_page_of_100_engines_is_read_whole():
    """As vLLM 0.32 writes it: a model's long name, all of the cache's settings, 700 lines each."""
    one = NOW.replace('"tiny"', f'"{"m" * 64}"').replace("num_cpu", f'x="{"y" * 960}",num_cpu')
    one += 690 * 'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3"} 12.0\n'
    text = "".join(one.replace('engine="0"', f'engine="{rank}"') for rank in range(100))
    assert len(page(text).engines) == 100


names = st.sampled_from(
    ["vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc",
     "vllm:cache_config_info", "sglang:token_usage", "process_start_time_seconds", "other"]
)  # fmt: skip
tails = st.text(st.sampled_from('{}=", \t#01.5eN_-+\\anginl\r\ud7ff'), max_size=30)


@given(st.lists(st.tuples(names, tails)).map(lambda rows: "\n".join(map("".join, rows))))
def test_no_text_raises_anything_but_the_one_error(text):
    try:
        found = page(text)
    except ExpositionError:
        return
    for figures in found.engines.values():
        assert figures.kv_usage is None or 0.0 <= figures.kv_usage <= 1.0
        for count in (figures.running, figures.waiting, figures.total_blocks):
            assert count is None or 0 <= count < 2**53


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_the_one_error(body):
    with pytest.raises(ExpositionError):
        read(body)
    assert read(body.replace(b"vllm", b"") + b"\n" + NOW.encode()) == page(NOW)


@given(
    st.none() | st.integers(0, 2**50), st.none() | st.integers(0, 2**50),
    st.none() | st.floats(0.0, 1.0),
)  # fmt: skip
def test_what_is_written_is_read_and_what_is_not_is_unknown(running, waiting, usage):
    wrote = {
        "vllm:num_requests_running": running,
        "vllm:num_requests_waiting": waiting,
        "vllm:kv_cache_usage_perc": usage,
    }
    text = "".join(f"{name} {value}\n" for name, value in wrote.items() if value is not None)
    if not text:
        return
    figures = only(text)
    assert (figures.running, figures.waiting, figures.kv_usage) == (running, waiting, usage)


def test_lines_that_nobody_wants_are_not_given_to_the_parser():
    """A page has some thousand of them. To parse them all takes 30 times as long."""
    bucket = 'vllm:e2e_request_latency_seconds_bucket{engine="0",le="0.3",model_name="tiny"} 12.0\n'
    text = NOW + 1_000 * bucket

    def quickest_s(act):
        runs = []
        for _ in range(5):
            begun_s = process_time()
            act()
            runs.append(process_time() - begun_s)
        return min(runs)

    ours_s = quickest_s(lambda: page(text))
    assert ours_s < quickest_s(lambda: list(text_string_to_metric_families(text))) / 8
