"""The registry: what each workload promises. Tolerances of statistics are given in σ or said."""

import math
from collections import Counter, defaultdict
from itertools import pairwise
from statistics import mean, quantiles

import pytest

from ullage_tune import mixes
from ullage_tune.conversations import SECONDS_PER_TOKEN
from ullage_tune.generated import WORKLOADS, workload
from ullage_tune.shape import shape, variation
from ullage_tune.workload import Request, Workload

pytestmark = pytest.mark.slow

TALKING = ("chat", "agents")
N = 1500


@pytest.fixture(scope="module")
def made() -> dict[str, Workload]:
    """One of each."""
    return {name: workload(name, N, seed=1) for name in WORKLOADS}


def sessions(one: Workload) -> list[list[Request]]:
    by_session: dict[int, list[Request]] = defaultdict(list)
    for request in one.requests:
        by_session[request.session].append(request)
    return list(by_session.values())


@pytest.mark.parametrize("name", WORKLOADS)
def test_one_seed_gives_one_workload_another_seed_another(
    name: str, made: dict[str, Workload]
) -> None:
    assert workload(name, N, seed=1) == made[name]
    assert workload(name, N, seed=2).requests != made[name].requests


@pytest.mark.parametrize("name", WORKLOADS)
def test_requests_are_n_and_in_order_and_whole(name: str, made: dict[str, Workload]) -> None:
    requests = made[name].requests
    at = [request.at_s for request in requests]
    assert len(requests) == N
    assert at == sorted(at)
    assert at[0] >= 0.0
    assert all(math.isfinite(instant) for instant in at)
    assert all(request.prompt and request.output_tokens >= 1 for request in requests)
    assert all(0 <= s.text < 2**63 and s.tokens >= 1 for r in requests for s in r.prompt)


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("n", [0, 1, 100])
def test_fewer_requests_are_the_first_of_more(name: str, n: int, made: dict[str, Workload]) -> None:
    assert workload(name, n, seed=1).requests == made[name].requests[:n]


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_text_has_two_lengths(name: str, made: dict[str, Workload]) -> None:
    lengths: dict[int, int] = {}
    for request in made[name].requests:
        for segment in request.prompt:
            assert lengths.setdefault(segment.text, segment.tokens) == segment.tokens


@pytest.mark.parametrize("name", sorted(set(WORKLOADS) - set(TALKING)))
def test_at_another_rate_the_same_requests_come(name: str, made: dict[str, Workload]) -> None:
    kind = WORKLOADS[name]
    faster = kind.make(4.0 * kind.rate_per_s, 200, 1)
    for fast, slow in zip(faster.requests, made[name].requests, strict=False):
        assert fast._replace(at_s=0.0) == slow._replace(at_s=0.0)
    if name != "bursts":  # its bursts last as long at any rate
        assert faster.duration_s == pytest.approx(made[name].requests[199].at_s / 4.0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_rate_is_the_one_that_was_asked_for(name: str) -> None:
    kind = WORKLOADS[name]
    made = [kind.make(kind.rate_per_s, N, seed) for seed in range(5)]
    # Poisson's σ is 0.9 % here; swings, bursts and conversations add theirs.
    seen = mean(N / one.duration_s for one in made)
    assert seen == pytest.approx(kind.rate_per_s, rel=0.15)


@pytest.mark.parametrize("rate_per_s", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_rate_that_is_none_is_refused_by_name(name: str, rate_per_s: float) -> None:
    with pytest.raises(ValueError, match=f"{name}: rate_per_s={rate_per_s} must be > 0"):
        WORKLOADS[name].make(rate_per_s, 1, 0)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_number_below_0_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: n=-1 must be ≥ 0"):
        workload(name, -1, seed=0)


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="workload='long-ish', wanted one of: short, long, mixed"):
        workload("long-ish", 1, seed=0)


@pytest.mark.parametrize(
    ("name", "least", "most", "least_out", "most_out"),
    [("short", 20, 200, 20, 200), ("long", 1_000, 8_000, 50, 400), ("mixed", 16, 30_000, 5, 2_000)],
)
def test_lengths_keep_their_bounds(
    name: str, least: int, most: int, least_out: int, most_out: int, made: dict[str, Workload]
) -> None:
    requests = made[name].requests
    assert all(least <= request.prompt_tokens <= most for request in requests)
    assert all(least_out <= request.output_tokens <= most_out for request in requests)


def test_mixed_traffic_is_mostly_brief_and_its_work_is_mostly_not(
    made: dict[str, Workload],
) -> None:
    lengths = sorted(request.prompt_tokens for request in made["mixed"].requests)
    assert 200 <= quantiles(lengths[: int(0.7 * N)])[1] <= 400
    assert sum(lengths[int(0.7 * N) :]) > 0.7 * sum(lengths)


def test_bursts_vary_far_more_than_poisson_and_mixed_does_not() -> None:
    poisson_cv = 1.0 / math.sqrt(WORKLOADS["bursts"].rate_per_s * 10.0)
    cv = {
        name: mean(variation(workload(name, N, seed).requests, 10.0) for seed in range(5))
        for name in ("bursts", "mixed")
    }
    assert cv["mixed"] == pytest.approx(poisson_cv, rel=0.3)
    assert cv["bursts"] > 5.0 * poisson_cv


@pytest.mark.parametrize(("name", "share"), [("system", 0.2223), ("system-hot", 0.4)])
def test_the_hot_system_prompt_has_its_share(name: str, share: float) -> None:
    n = 10_000
    requests = workload(name, n, seed=4).requests
    hot, second = Counter(request.prompt[0] for request in requests).most_common(2)
    assert abs(hot[1] / n - share) < 4.0 * math.sqrt(share * (1.0 - share) / n)  # 4σ
    zipf = sum(1.0 / k for k in range(2, mixes.SYSTEMS + 1))
    wanted = (1.0 - share) * 0.5 / zipf
    assert abs(second[1] / n - wanted) < 4.0 * math.sqrt(wanted * (1.0 - wanted) / n)
    assert all(1_000 <= request.prompt[0].tokens <= 3_000 for request in requests)


@pytest.mark.parametrize("name", TALKING)
def test_every_turn_begins_with_all_of_the_turn_before_and_its_answer(
    name: str, made: dict[str, Workload]
) -> None:
    turns = 0
    for session in sessions(made[name]):
        for last, now in pairwise(session):
            turns += 1
            assert now.prompt[: len(last.prompt)] == last.prompt
            answer, message = now.prompt[len(last.prompt) :]
            assert answer.tokens == last.output_tokens
            assert message.tokens >= 1
            assert now.at_s > last.at_s + last.output_tokens * SECONDS_PER_TOKEN
    assert turns > N / 2


@pytest.mark.parametrize(("name", "manners"), [("chat", mixes.CHAT), ("agents", mixes.AGENTS)])
def test_conversations_keep_their_manners(
    name: str, manners: mixes.Manners, made: dict[str, Workload]
) -> None:
    talks = sessions(made[name])
    assert max(len(talk) for talk in talks) <= manners.turns.most
    assert all(
        request.prompt_tokens + request.output_tokens <= manners.most_tokens
        for request in made[name].requests
    )
    if name == "agents":
        results = [s.tokens for talk in talks for s in talk[-1].prompt[3::2]]
        assert min(results) >= 200
        assert max(results) <= 4_000


def test_the_rate_of_conversations_does_not_ramp_up(made: dict[str, Workload]) -> None:
    for name in TALKING:
        rate_per_s = WORKLOADS[name].rate_per_s
        early = [sum(r.at_s < 30.0 for r in workload(name, N, seed).requests) for seed in range(5)]
        # Live conversations are Poisson too: σ of their number adds some 10 % per seed.
        assert mean(early) == pytest.approx(30.0 * rate_per_s, rel=0.2)


def test_the_first_seconds_bring_no_histories(made: dict[str, Workload]) -> None:
    for name in TALKING:
        assert all(len(talk[0].prompt) == 2 for talk in sessions(made[name]))


def test_shared_text_is_where_it_is_promised(made: dict[str, Workload]) -> None:
    found = {name: shape(one).found for name, one in made.items()}
    assert all(found[name] == 0.0 for name in ("short", "long", "mixed", "bursts", "azure-like"))
    assert found["chat"] > 0.6
    assert found["agents"] > 0.8
    assert 0.15 < found["mooncake-like"] < 0.35
