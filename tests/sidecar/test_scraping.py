"""A sidecar process beside a server whose plugin is not heard: its `/metrics` instead."""

import asyncio
import signal
import time

import pytest

from metrics_server import MetricsServer
from sidecar_process import hello, run, step
from ullage_shared.snapshot import State

pytestmark = pytest.mark.slow


@pytest.fixture
async def fake():
    async with MetricsServer.started() as server:
        yield server


@pytest.fixture
def config(fake, tmp_path):
    """A configuration for that server, with these keys besides."""

    def write(keys="", engine=""):
        path = tmp_path / "sidecar.toml"
        path.write_text(f'{keys}\n[[engine]]\nurl = "{fake.url}"\n{engine}\n')
        return str(path)

    return write


async def metrics_of(sidecar):
    return (await sidecar.get("/metrics"))[2].decode()


async def test_without_the_plugin_a_server_is_known_by_its_own_metrics(sidecar, fake, config):
    await sidecar.start("--config", config("[scrape]\ninterval_s = 0.1"))
    unknown = await sidecar.replica()
    assert (unknown.state, unknown.capacity_score) == (State.SERVING, None)
    replica = await sidecar.replica(lambda replica: replica.running == 2)
    assert (replica.state, replica.free_blocks, replica.models) == (State.SERVING, 50, ("tiny",))
    assert replica.capacity_score is None
    assert "or it is learned as requests wait" in replica.reason

    fake.running, fake.waiting = 8, 3
    await sidecar.replica(lambda replica: replica.max_num_seqs == 8)
    fake.running, fake.waiting = 4, 0
    replica = await sidecar.replica(lambda replica: replica.running == 4)
    assert replica.max_num_seqs == 8
    assert replica.capacity_score is not None

    status, out, _ = await run(sidecar, "status")
    table, note = out.splitlines()[1:]
    assert (status, table.split()[5]) == (0, "scrape")
    assert note == (
        "vllm: its plugin is not heard, so its own /metrics is read: signals are up to 0.1 s old, "
        "and what happens in between is not seen; max_num_seqs = 8 is estimated, "
        "set it in [[engine]]"
    )
    text = await metrics_of(sidecar)
    assert 'ullage_sidecar_source{engine="vllm",source="scrape"} 1.0' in text
    assert 'ullage_sidecar_max_running_requests_estimated{engine="vllm"} 1.0' in text
    assert 'ullage_sidecar_scrape_failures_total{server="vllm"} 0.0' in text
    assert 'ullage_sidecar_scrape_duration_seconds{server="vllm"} ' in text


async def test_a_limit_that_is_told_needs_no_queue(sidecar, fake, config):
    path = config("[scrape]\ninterval_s = 0.1", "max_num_seqs = 8")
    await sidecar.start("--config", path)
    replica = await sidecar.replica(lambda replica: replica.running == 2)
    assert replica.capacity_score == pytest.approx(0.5 * 0.5 + 0.3 * 0.75 + 0.2)
    assert "estimated" not in (await run(sidecar, "status"))[1]


async def test_when_the_plugin_speaks_nothing_is_scraped_any_more(sidecar, fake, config, sender_to):
    await sidecar.start("--config", config("[scrape]\ninterval_s = 0.1", "max_num_seqs = 8"))
    before = await sidecar.replica(lambda replica: replica.running == 2)
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(1, running=6))
    after = await sidecar.replica(lambda replica: replica.running == 6)
    assert (after.state, after.boot_id) == (State.SERVING, before.boot_id)
    await asyncio.sleep(0.2)
    asked = len(fake.asked)
    await asyncio.sleep(0.5)
    assert len(fake.asked) == asked
    assert 'source{engine="vllm",source="plugin"} 1.0' in await metrics_of(sidecar)

    back = await sidecar.replica(lambda replica: replica.running == 2)
    assert (back.state, back.boot_id) == (State.SERVING, before.boot_id)
    await sidecar.stop()
    sources = [line for line in sidecar.said if " source " in line]
    assert len(sources) == 3


async def test_where_it_is_forbidden_nothing_is_scraped(sidecar, fake, config):
    await sidecar.start("--config", config('[scrape]\nwhen = "never"'))
    await asyncio.sleep(4.0)
    assert fake.asked == []
    assert (await sidecar.replica()).reason == "its plugin was never heard of"
    assert 'ullage_sidecar_scrapes_total{server="vllm"} 0.0' in await metrics_of(sidecar)


async def test_a_restarted_sidecar_knows_a_scraped_server_and_its_drain_again(
    sidecar, fake, config
):
    path = config("[scrape]\ninterval_s = 0.1")
    await sidecar.start("--config", path)
    before = await sidecar.replica(lambda replica: replica.running == 2)
    await run(sidecar, "drain")
    await sidecar.stop(signal.SIGKILL)
    await sidecar.start("--config", path)
    after = await sidecar.replica(lambda replica: replica.running == 2)
    assert (after.boot_id, after.state) == (before.boot_id, State.DRAINING)
    fake.began_s = time.time()
    anew = await sidecar.replica(lambda replica: replica.boot_id != before.boot_id)
    assert anew.state is State.WARMING


async def test_a_drain_of_a_scraped_server_outlasts_a_sidecar_that_hears_the_plugin_first(
    sidecar, fake, config, sender_to
):
    path = config("[scrape]\ninterval_s = 0.1")
    await sidecar.start("--config", path)
    await sidecar.replica(lambda replica: replica.running == 2)
    await run(sidecar, "drain")
    await sidecar.stop(signal.SIGKILL)
    await sidecar.start("--config", path)
    sender = sender_to(sidecar.socket)
    sender.send(hello())
    sender.send(step(1, running=6))
    replica = await sidecar.replica(lambda replica: replica.running == 6)
    assert (replica.boot_id, replica.state) == ("boot-1", State.DRAINING)
