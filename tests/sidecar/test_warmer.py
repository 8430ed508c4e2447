"""Warming up over real sockets: a sidecar process, and a fake vLLM that answers dummies.

The fake stands in for a real one (tests/end_to_end/test_warm_up.py has that) to refuse, to fail, to
be slow, and to remember what it was asked.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fake_vllm import FakeVllm
from sidecar_process import hello, run, step
from ullage_shared.snapshot import State
from ullage_sidecar.channel import Sender, encode_step

pytestmark = pytest.mark.slow

QUICK = "[warm_up]\nramp_s = 0.3\nzero_until_s = 0.5\nramp_until_s = 30.0\n"
LONG_LIFE = "[health]\nsigns_of_life_s = 60.0\n"
"""The fake plugin speaks once; a busy machine may take seconds for the rest."""


@pytest.fixture
async def fake() -> AsyncIterator[FakeVllm]:
    fake = FakeVllm()
    await fake.start()
    yield fake
    await fake.stop()


@pytest.fixture
def begin(sidecar, fake, sender_to, tmp_path):
    """Start a sidecar on the fake, say hello as an engine that has just started."""

    async def begin(settings: str = QUICK, key_file: str = "", **of_hello: Any) -> Sender:
        config = tmp_path / "sidecar.toml"
        engine = f'[[engine]]\nurl = "{fake.url}"\napi_key_file = "{key_file}"\n'
        config.write_text(settings + engine)
        await sidecar.start("--config", str(config))
        sender = sender_to(sidecar.socket)
        sender.send(hello(started_s=time.monotonic(), **of_hello))
        sender.send(step(1, running=0, kv_usage=0.0))
        return sender

    return begin


def is_serving(replica):
    return replica.state is State.SERVING and replica.boot_id is not None


async def states(sidecar, until=State.SERVING):
    """The states and factors passed through, each once, until one."""
    seen = []

    def note(replica):
        now = (replica.state, replica.capacity_score)
        heard = replica.boot_id is not None
        if heard and now not in seen:
            seen.append(now)
        return heard and replica.state is until

    await sidecar.replica(note)
    return seen


async def test_a_fresh_engine_is_warmed_up_ramps_and_serves(sidecar, fake, begin):
    fake.answer = lambda count: (200, 0.05)
    await begin()
    seen = await states(sidecar)
    assert [state for state, _ in seen] == [State.WARMING, State.RAMPING, State.SERVING]
    assert [score for _, score in seen] == [0.0, 0.5, 1.0]
    # One alone, one for the adapter, and three rounds of four.
    assert len(fake.dummies) >= 1 + 1 + 3 * 4
    metrics = (await sidecar.get("/metrics"))[2].decode()
    line = 'ullage_sidecar_warm_up_requests_total{result="answered",server="vllm"}'
    assert f"{line} {float(len(fake.dummies))}" in metrics


async def test_dummies_are_known_by_their_ids_and_fit_the_server(sidecar, fake, begin):
    await begin(max_num_batched_tokens=512)
    await sidecar.replica(is_serving)
    ids = [headers["x-request-id"] for _, headers, _ in fake.asked]
    assert all(one.startswith("ullage-warm-up-vllm-") for one in ids)
    assert len(set(ids)) == len(ids)
    assert all("warm-up" in headers["user-agent"] for _, headers, _ in fake.asked)
    assert all("x-data-parallel-rank" not in headers for _, headers, _ in fake.asked)
    assert {len(body["prompt"]) for body in fake.dummies} == {32, 128, 512}
    assert {body["model"] for body in fake.dummies} == {"base", "adapter"}
    assert [body["model"] for body in fake.dummies].count("adapter") == 1


async def test_rounds_go_on_until_they_are_no_faster(sidecar, fake, begin):
    """The third takes half of the second, so it is not the last."""
    before_rounds = 2  # One alone, one for the adapter.
    fake.answer = lambda count: (200, 1.2 / 2 ** max(0, (count - before_rounds - 1) // 4))
    await begin()
    await sidecar.replica(is_serving)
    assert len(fake.dummies) >= before_rounds + 4 * 4


async def test_a_rank_is_warmed_up_by_its_number(sidecar, fake, begin):
    await begin(engine_index=1, data_parallel_size=2)
    await sidecar.replica(is_serving)
    assert {headers["x-data-parallel-rank"] for _, headers, _ in fake.asked} == {"1"}


@pytest.mark.parametrize("offered", ["/v1/chat/completions", "/v1/embeddings"])
async def test_what_the_server_offers_is_found(sidecar, fake, begin, offered):
    fake.offers = {offered}
    await begin()
    await sidecar.replica(is_serving)
    assert len(fake.dummies) >= 1 + 3 * 4
    elsewhere = [path for path, _, _ in fake.asked if path != offered]
    assert len(elsewhere) <= 2


async def test_an_api_key_is_read_from_its_file(sidecar, fake, begin, tmp_path):
    fake.api_key = "secret"
    key_file = tmp_path / "key"
    key_file.write_text("secret\n")
    await begin(key_file=str(key_file))
    await sidecar.replica(is_serving)
    assert len(fake.dummies) >= 3 * 4


GIVES_UP = [
    ("api_key", "secret", "/v1/models: status 401; its key goes into engine[].api_key_file"),
    ("cards", {"object": "list"}, "/v1/models is no list of models"),
    ("cards", {"data": []}, "/v1/models names no model"),
    ("offers", set(), "/v1/completions: status 400: The model does not support this API"),
]


@pytest.mark.parametrize(("what", "value", "why"), GIVES_UP)
async def test_refused_it_gives_up_says_why_and_goes_by_uptime(
    sidecar, fake, begin, what, value, why
):
    setattr(fake, what, value)
    await begin()
    given_up = f"warm-up given up: {why}"
    replica = await sidecar.replica(lambda replica: replica.state is State.RAMPING)
    assert (replica.reason, replica.capacity_score) == (given_up, 0.5)
    assert await sidecar.stop() == 0
    assert sum("warm_up " in line for line in sidecar.said) == 1


async def test_failing_it_tries_again_until_it_works(sidecar, fake, begin):
    fake.answer = lambda count: (503 if count <= 2 else 200, 0.0)
    await begin()
    replica = await sidecar.replica(lambda replica: "503" in replica.reason)
    assert (replica.state, replica.capacity_score) == (State.WARMING, 0.0)
    await sidecar.replica(is_serving)


async def test_failing_for_ever_it_gives_up_at_the_limit(sidecar, fake, begin):
    fake.answer = lambda count: (500, 0.0)
    await begin(QUICK + "limit_s = 1.5\n")
    replica = await sidecar.replica(lambda replica: replica.state is State.RAMPING)
    why = "not done within 1.5 s: /v1/completions: status 500"
    assert replica.reason == f"warm-up given up: {why}"


async def test_a_server_that_never_answers_a_dummy_is_given_up_at_the_limit(sidecar, fake, begin):
    fake.answer = lambda count: (200, 30.0)
    await begin(QUICK + "limit_s = 1.0\n")
    await sidecar.replica(lambda replica: replica.state is State.RAMPING)


async def test_an_engine_that_has_served_is_sent_nothing(sidecar, fake, begin, sender_to):
    await begin()
    await sidecar.replica(is_serving)
    asked = len(fake.asked)
    await sidecar.stop()
    # A restarted sidecar: the engine is younger than ramp_until_s, but has generated a lot.
    await begin_again(sidecar, fake, sender_to, generated=10_000)
    await sidecar.replica(is_serving)
    await asyncio.sleep(0.3)
    assert len(fake.asked) == asked


async def begin_again(sidecar, fake, sender_to, generated):
    await sidecar.start("--engine", fake.url)
    sender = sender_to(sidecar.socket)
    sender.send(hello(started_s=time.monotonic() - 5.0))
    sender.send(encode_step(1, 7, time.monotonic(), (0, 0, 0.0, 0, generated, 0, 0, 0)))


async def test_without_rounds_nothing_is_sent(sidecar, fake, begin):
    await begin(QUICK + "rounds = 0\n")
    await sidecar.replica(lambda replica: replica.state is State.RAMPING)
    assert fake.asked == []


async def test_a_new_incarnation_in_the_middle_of_a_warm_up_has_its_own(sidecar, fake, begin):
    fake.answer = lambda count: (200, 0.2)
    sender = await begin()
    await sidecar.replica(lambda replica: "dummy requests" in replica.reason)
    sender.send(hello(sender=2, boot_id="boot-2", started_s=time.monotonic()))
    sender.send(encode_step(2, 1, time.monotonic(), (0, 0, 0.0, 0, 0, 0, 0, 0)))
    replica = await sidecar.replica(lambda replica: replica.boot_id == "boot-2")
    assert replica.state is State.WARMING
    await sidecar.replica(is_serving)
    assert await sidecar.stop() == 0
    ends = [line for line in sidecar.said if "warm_up " in line]
    assert [part for line in ends for part in line.split() if part.startswith("end=")] == [
        "end=broken_off",
        "end=warm",
    ]


async def test_stopping_in_the_middle_of_a_warm_up_is_clean(sidecar, fake, begin):
    fake.answer = lambda count: (200, 30.0)
    await begin()
    await sidecar.replica(lambda replica: "dummy requests" in replica.reason)
    begun_s = time.monotonic()
    assert await sidecar.stop() == 0
    assert time.monotonic() - begun_s < 5.0
    assert not [line for line in sidecar.said if "Traceback" in line or "rror" in line]


@pytest.mark.parametrize("key", [None, "fifo", "", "two\nlines", "\x1b[2J", "schlüssel"])
async def test_a_key_that_cannot_be_used_is_named_and_nothing_ends(
    sidecar, fake, begin, tmp_path, key
):
    file = tmp_path / "key"
    if key == "fifo":
        os.mkfifo(file)
    elif key is not None:
        file.write_text(key)
    await begin(key_file=str(file))
    replica = await sidecar.replica(lambda replica: "given up" in replica.reason)
    where = f"warm-up given up: engine[].api_key_file = {str(file)!r}: "
    wanted = "no such file" if key in (None, "fifo") else "wanted one line of printable ASCII"
    assert replica.reason == where + wanted
    assert await sidecar.stop() == 0


async def test_the_servers_words_are_fit_for_a_terminal(sidecar, fake, begin):
    fake.offers, fake.words = set(), "\x1b[2J\x1b]0;title\x07 no\x00"
    await begin()
    replica = await sidecar.replica(lambda replica: "given up" in replica.reason)
    assert replica.reason.endswith("status 400: ?[2J?]0;title? no?")


async def test_a_drain_ends_the_dummies_and_an_undrain_begins_them_anew(sidecar, fake, begin):
    """However long it lasts. And who waits for a drain does not wait for our own requests."""
    fake.answer = lambda count: (200, 30.0)
    sender = await begin(QUICK.replace("30.0", "1.0") + LONG_LIFE)
    await sidecar.replica(lambda replica: "dummy requests" in replica.reason)
    assert (await run(sidecar, "drain"))[0] == 0
    async with asyncio.timeout(3.0):
        while fake.under_way:  # noqa: ASYNC110 (the sidecar is another process)
            await asyncio.sleep(0.02)
    asked = len(fake.asked)
    await asyncio.sleep(1.2)
    assert len(fake.asked) == asked
    fake.answer = lambda count: (200, 0.0)
    sender.send(step(1, running=0, kv_usage=0.0))
    assert (await run(sidecar, "undrain"))[0] == 0
    await sidecar.replica(is_serving)
    assert len(fake.asked) >= asked + 1 + 3 * 4


async def test_an_engine_that_restarts_at_every_look_ends_nothing(sidecar, fake, begin):
    """A hello may come between two looks at the engine, and be of another incarnation."""
    sender = await begin()
    for boot in range(400):
        sender.send(
            hello(sender=boot + 2, boot_id=f"boot-{boot + 2}", started_s=time.monotonic())
            + encode_step(boot + 2, 1, time.monotonic(), (0, 0, 0.0, 0, 0, 0, 0, 0))
        )
        await asyncio.sleep(0.005)
    await sidecar.replica(is_serving)
    assert await sidecar.stop() == 0
    assert not [line for line in sidecar.said if "Traceback" in line]


async def test_an_absurd_model_is_warmed_up_as_a_usual_one(sidecar, fake, begin):
    fake.cards = {"data": [{"id": "base", "max_model_len": 10**400}]}
    await begin()
    await sidecar.replica(is_serving)
    assert max(len(body["prompt"]) for body in fake.dummies) == 512
