"""A real vLLM server that was killed gets requests again."""

import asyncio
import os
import signal
from time import perf_counter
from typing import Self

import pytest

from demo import load
from routed_pair import BY_SCORE, CHAT, Pair, Router, Talk

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]


class Traffic:
    """Light, mixed requests through one router, by two clients, until it is left."""

    def __init__(self, router: Router, name_of_b: str) -> None:
        self.answers: list[tuple[float, load.Answer]] = []
        """When each was sent, and how it went."""
        self.router = router
        self.name_of_b = name_of_b
        self._stopped = False

    async def _client(self, seed: int) -> None:
        asks = (ask for n in range(1_000) for ask in load.mixed(20, seed=1_000 * seed + n))
        for ask in asks:
            if ask.body["max_tokens"] >= 100:
                continue
            if self._stopped:
                return
            sent_s = perf_counter()
            answer = await load.send(self.router.http, self.router.url, ask)
            self.answers.append((sent_s, answer))
            await asyncio.sleep(0.1)

    async def __aenter__(self) -> Self:
        self._clients = [asyncio.create_task(self._client(seed)) for seed in (1, 2)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stopped = True
        await asyncio.gather(*self._clients)

    def back_s(self, killed_s: float) -> float | None:
        """When server b gave its first whole answer to a request sent after that."""
        ends = (
            sent_s + answer.duration_s
            for sent_s, answer in self.answers
            if answer.replica == self.name_of_b and sent_s > killed_s and not answer.problem
        )
        return min(ends, default=None)

    def lost(self) -> list[tuple[float, load.Answer]]:
        return [(sent_s, answer) for sent_s, answer in self.answers if answer.problem]


async def test_a_killed_replica_gets_traffic_again_within_seconds_of_its_return(pair: Pair):
    """One router goes by the sidecar, one by its own breaker: it has nobody to tell it."""
    server = pair.servers["b"]
    async with (
        pair.router(BY_SCORE) as scored,
        pair.router(sidecar=False) as alone,
        Traffic(scored, "n/b") as by_sidecar,
        Traffic(alone, server.url.removeprefix("http://")) as by_breaker,
    ):
        talks: list[Talk] = []
        while len({talk.home for talk in talks}) < 2:
            talks.append(Talk(300 + len(talks)))
            await talks[-1].go_on(scored)
        homes = [talk.home for talk in talks]
        body = talks[homes.index("n/b")].next_body(max_tokens=8_000) | {"stream": True}
        midst = asyncio.create_task(load.send(pair.http, scored.url, load.Ask(CHAT, body)))
        await asyncio.sleep(3.0)
        assert not midst.done()

        os.killpg(server.pid, signal.SIGKILL)
        killed_s = perf_counter()
        for talk, home in zip(talks, homes, strict=True):
            reply = await talk.go_on(scored)
            assert reply.replica == "n/a"
            assert reply.why == ("key_moved" if home == "n/b" else "affinity")
            assert (await talk.go_on(scored)).why == "affinity"
        moved_s = perf_counter() - killed_s
        cut = await midst
        assert (cut.status, cut.replica) == (200, "n/b")
        assert cut.ttft_s > 0.0
        assert cut.problem

        await asyncio.to_thread(server.stop)
        server.start()
        await asyncio.to_thread(server.wait_ready)
        ready_s = perf_counter()

        async def both() -> bool:
            return None not in (by_sidecar.back_s(killed_s), by_breaker.back_s(killed_s))

        await pair.until("both routers use it again", both, within_s=20.0)
        for name, traffic in (("by sidecar", by_sidecar), ("by breaker", by_breaker)):
            back_s = traffic.back_s(killed_s)
            assert back_s is not None
            events = [line.split()[1] for line in traffic.router.said("replica_")]
            print(f"{name}: {len(traffic.answers)} requests, {len(traffic.lost())} cut; back "
                  f"{back_s - ready_s:.1f} s after /health said 200, {ready_s - killed_s:.0f} s "
                  f"after the kill; log: {', '.join(events)}")  # fmt: skip
            assert back_s - ready_s < 15.0
        print(f"{homes.count('n/b')} of {len(talks)} conversations moved, the next two turns of "
              f"all within {moved_s:.1f} s of the kill")  # fmt: skip
        assert alone.said("replica_ejected")
        assert alone.said("replica_returns")
        assert (await talks[homes.index("n/b")].go_on(scored)).replica == "n/a"
        assert [talk.turns[-1].why for talk in talks] == ["affinity"] * len(talks)

    for traffic in (by_sidecar, by_breaker):
        # Cut in the midst of a stream: it cannot be taken for a whole one. Nothing else is.
        for sent_s, answer in traffic.lost():
            assert answer.ask.streamed, answer
            assert answer.replica == traffic.name_of_b, answer
            assert 0.0 < answer.ttft_s < killed_s - sent_s + 0.1, answer
        assert len(traffic.lost()) <= 2  # It has two clients.
