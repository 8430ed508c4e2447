"""On two real vLLM servers a conversation keeps its home, and what is explained is what is done."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from demo import load
from routed_pair import BY_SCORE, Pair, Router, Talk, chat, words

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

ROUND_ROBIN = """
[choose]
way = "round_robin"

[affinity]
enabled = false
"""


async def converse(router: Router, talks: Sequence[Talk], turns: int) -> None:
    """Each conversation's next turn, in an order that is another one each time.

    In one order for ever, a router that takes its replicas in turn would give every conversation
    the same one. Two at a time of eight: that leaves a home above `stay_above`, whatever its blocks
    look like.
    """
    rng = random.Random(4)
    for _ in range(turns):
        left = iter(rng.sample(talks, len(talks)))

        async def client(left: Iterator[Talk] = left) -> None:
            for talk in left:
                await talk.go_on(router)

        await asyncio.gather(client(), client())


async def test_conversations_keep_their_home_and_so_vllm_its_cache(pair: Pair):
    rates = {}
    ways = (("default", "", 100), ("by score", BY_SCORE, 200), ("round robin", ROUND_ROBIN, 300))
    for name, keys, seed in ways:
        await pair.until_idle()
        talks = [Talk(seed + i) for i in range(12)]
        counts = ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")
        before = [await pair.of_all(count) for count in counts]
        async with pair.router(keys) as router:
            await converse(router, talks, turns=4)
        hits, queries = [await pair.of_all(c) - b for c, b in zip(counts, before, strict=True)]
        rates[name] = hits / queries
        whys = Counter(turn.why for talk in talks for turn in talk.turns)
        homes = Counter(talk.home for talk in talks)
        moved = sum(len({turn.replica for turn in talk.turns}) > 1 for talk in talks)
        print(f"{name}: {hits:.0f} of {queries:.0f} prompt tokens were in the cache "
              f"({rates[name]:.1%}); {dict(whys)}; last at {dict(homes)}; "
              f"{moved} of {len(talks)} conversations moved")  # fmt: skip
        if name != "round robin":
            first = "wait" if name == "default" else "new_key"
            assert [[turn.why for turn in talk.turns] for talk in talks] == [
                [first, "affinity", "affinity", "affinity"]
            ] * 12
            assert moved == 0
    assert rates["default"] > rates["round robin"] + 0.08, rates
    assert rates["by score"] > rates["round robin"] + 0.08, rates


async def test_what_is_explained_is_what_is_done_and_nothing_is_sent_for_it(pair: Pair):
    async def counts(router: Router) -> list[float]:
        metrics = await router.metrics()
        return [
            await pair.of_all("http_requests_total", method="POST"),
            await pair.of_all("vllm:prompt_tokens_total"),
            metrics.sum("ullage_router_dispatched_total"),
            metrics.sum("ullage_router_decisions_total"),
            metrics.sum("ullage_router_cache_keys"),
        ]

    rng = random.Random(11)
    async with pair.router() as router:
        homes = []
        for number in range(8):
            first = chat(words(rng, 800))  # Less is not worth a step of the engine.
            before = await counts(router)
            told = await router.explain(first)
            assert await counts(router) == before
            assert told["why"] == "wait"
            assert (told["request"]["cache_keys"], told["request"]["cache_keys_known"]) == (1, 0)
            reply = await router.chat(first)
            assert (reply.replica, reply.why) == (told["replica"], "wait")
            homes.append(reply.replica)

            answer = reply.content["choices"][0]["message"]
            more = {"role": "user", "content": words(rng, 20)}
            second = first | {"messages": [*first["messages"], answer, more]}
            told = await router.explain(second)
            assert (told["replica"], told["why"]) == (reply.replica, "affinity")
            assert [c["replica"] for c in told["candidates"] if c["home"]] == [reply.replica]
            reply = await router.chat(second, f"second-{number}")
            assert (reply.replica, reply.why) == (told["replica"], "affinity")

            done = await router.decision(f"second-{number}")
            assert (done["replica"], done["why"], done["second_try"]) == (
                *(told["replica"], "affinity"),
                False,
            )
            assert sorted(c["replica"] for c in done["candidates"]) == ["n/a", "n/b"]
            assert [c["replica"] for c in done["candidates"] if c["home"]] == [told["replica"]]
            assert sum(c["odds"] for c in done["candidates"]) == pytest.approx(1.0)
            tokens = reply.content["usage"]["prompt_tokens"]
            assert 0.5 * tokens < done["prompt_tokens"] < 2.0 * tokens
        print(f"explained and done alike: {Counter(homes)}, each with a second turn")


async def test_a_long_prompt_is_judged_by_the_score_for_long_prompts(pair: Pair):
    """Six of eight sequences run in one server, and its blocks are nearly all free."""
    rng = random.Random(13)
    body = {"model": "tiny", "stream": True, "max_tokens": 11_000, "ignore_eos": True}
    asks = [load.Ask("/v1/completions", body | {"prompt": f"number {i}"}) for i in range(6)]
    busy = asyncio.create_task(load.run(pair.servers["a"].url, asks, len(asks), lambda _: None))
    try:

        async def settled() -> bool:
            return ((await pair.snapshot("a"))["running_ratio"] or 0.0) > 0.74

        await pair.until("six of eight run, for as long as is smoothed over", settled, 20.0)
        async with pair.router() as router:
            bodies = {
                "short": chat(words(rng, 30)),
                "mixed": chat(words(rng, 3_000)),
                "long": chat(words(rng, 9_000)),
            }
            before = await pair.snapshot("a")
            await asyncio.sleep(1.0)  # Two looks of the router.
            told = {size: await router.explain(body) for size, body in bodies.items()}
            after = await pair.snapshot("a")
            published = [s["scores"] | {"mixed": s["capacity_score"]} for s in (before, after)]
            print(f"of n/a, published: {published}, taken: "
                  f"{ {size: score_of(page, 'n/a') for size, page in told.items()} }")  # fmt: skip
            for size, explained in told.items():
                assert explained["request"]["size"] == size
                least, most = sorted(scores[size] for scores in published)
                assert least - 0.01 <= score_of(explained, "n/a") <= most + 0.01
            short, mixed, long = (score_of(told[size], "n/a") for size in bodies)
            assert short + 0.05 < mixed
            assert mixed + 0.05 < long

            reply = await router.chat(bodies["long"], "long")
            assert reply.status == 200
            assert reply.content["usage"]["prompt_tokens"] >= 8_192
            done = await router.decision("long")
            assert done["prompt_tokens"] >= 8_192
            assert score_of(done, "n/a") == pytest.approx(long, abs=0.05)
            assert done["score"] == score_of(done, reply.replica)
    finally:
        busy.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await busy


def score_of(decision: dict[str, Any], replica: str) -> float:
    return next(float(c["score"]) for c in decision["candidates"] if c["replica"] == replica)
