"""Without our router: a real HAProxy, with the configuration that we ship, follows the sidecar."""

import asyncio
import math
import signal
import subprocess
import time
from collections import Counter

import aiohttp
import pytest
from aiohttp import web

import system_packages
from haproxy_process import SHIPPED, HAProxy, configuration
from sidecar_process import hello
from ullage_sidecar.channel import encode_step

pytestmark = pytest.mark.slow

IDLE = (0, 0, 0.0)
FULL = (8, 0, 1.0)
"""Running, waiting, KV use. Of the score FULL leaves the term for the queue: 0.2."""
STALLED = (3, 0, 0.5)
BEAT_S = 0.1
FAST_S = 0.1


class Replica:
    """A server that answers with its name, and what its plugin says of its load."""

    def __init__(self, name, number):
        self.name = name
        self.load = IDLE
        self.steps = True
        """False: there is no step any more, but its plugin goes on saying the last one."""
        self.gate = asyncio.Event()
        """Set: streams end."""
        self._number = number
        app = web.Application()
        app.add_routes(
            [web.get("/health", self._well), web.get("/", self._well), web.get("/s", self._stream)]
        )
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)

    async def serve(self):
        """The port."""
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self._runner.addresses[0][1]

    async def stop(self):
        await self._runner.cleanup()

    async def speak(self, sender):
        """Say hello and a step each beat, for ever."""
        seq, at_s = 0, 0.0
        while True:
            if self.steps:
                seq, at_s = seq + 1, time.monotonic()
            who = {"sender": self._number, "name": self.name, "boot_id": self.name}
            sender.send(hello(**who, started_s=1.0))
            sender.send(encode_step(self._number, seq, at_s, (*self.load, 0, 0, 0, 0, 0)))
            await asyncio.sleep(BEAT_S)

    async def _well(self, _):
        return web.Response(text=self.name)

    async def _stream(self, request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(self.name.encode())
        await self.gate.wait()
        await answer.write(b"!")
        return answer


class Site:
    """Two replicas, their sidecar, HAProxy before them."""

    def __init__(self, sidecar, haproxy, client):
        self.a, self.b = Replica("a", 1), Replica("b", 2)
        self.sidecar, self.haproxy, self.client = sidecar, haproxy, client

    def url(self, path="/"):
        return f"http://127.0.0.1:{self.haproxy.port}{path}"

    async def spread(self, count):
        """Send requests one by one: how many each replica answered, or with what status."""
        answers = Counter()
        for _ in range(count):
            async with self.client.get(self.url()) as answer:
                answers[await answer.text() if answer.status == 200 else answer.status] += 1
        return answers

    async def operator(self, verb, engine):
        """`ullage-sidecar drain | undrain ENGINE`."""
        connector = aiohttp.UnixConnector(f"{self.sidecar.socket}.control")
        async with (
            aiohttp.ClientSession(connector=connector) as client,
            client.post(f"http://sidecar/{verb}?engine={engine}") as answer,
        ):
            assert answer.status == 200


@pytest.fixture
async def site(sidecar, sender_to, tmp_path, unused_tcp_port_factory):
    """It runs, both replicas idle. Load shows at once: windows of half a second."""
    agent_port = unused_tcp_port_factory()
    file = tmp_path / "sidecar.toml"
    file.write_text(
        f'agent_listen = "127.0.0.1:{agent_port}"\n'
        "window.span_s = 0.5\ndepletion.slope_s = 0.5\nhealth.hung_after_s = 1.0\n"
    )
    haproxy = HAProxy(tmp_path, unused_tcp_port_factory())
    async with aiohttp.ClientSession() as client:
        site = Site(sidecar, haproxy, client)
        ports = {replica.name: await replica.serve() for replica in (site.a, site.b)}
        engines = [f"--engine={name}=http://127.0.0.1:{port}" for name, port in ports.items()]
        await sidecar.start("--config", str(file), *engines)
        speech = [
            asyncio.create_task(replica.speak(sender_to(sidecar.socket)))
            for replica in (site.a, site.b)
        ]
        try:
            text = configuration(haproxy.socket, haproxy.port, agent_port, ports)
            await haproxy.start(text)
            await haproxy.weights(100, 100)
            yield site
        finally:
            await haproxy.stop()
            for spoken in speech:
                spoken.cancel()
            await site.a.stop()
            await site.b.stop()


def is_near(answers, weight_a, weight_b):
    """Is the share of `a` its weight's, within 4 σ of so many draws, and was nobody refused?"""
    total, share = answers["a"] + answers["b"], weight_a / (weight_a + weight_b)
    sigma = math.sqrt(total * share * (1.0 - share))
    return answers.keys() <= {"a", "b"} and abs(answers["a"] - total * share) <= 4.0 * sigma


def test_haproxy_accepts_the_configuration_that_we_ship():
    system_packages.ensure({"haproxy"})
    command = [system_packages.find("haproxy"), "-c", "-f", SHIPPED]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


async def test_weights_follow_the_load_and_requests_the_weights(site):
    assert is_near(await site.spread(300), 100, 100)
    site.a.load = FULL
    await site.haproxy.weights(20, 100)
    assert is_near(await site.spread(300), 20, 100)
    site.a.load, site.b.load = IDLE, FULL
    await site.haproxy.weights(100, 20)
    assert is_near(await site.spread(300), 100, 20)


async def test_a_drained_server_gets_nothing_new_ends_what_it_has_and_comes_back(site):
    site.b.load = FULL
    await site.haproxy.weights(100, 20)
    streams, by = [], b""
    while by != b"a":
        streams.append(await site.client.get(site.url("/s")))
        by = await streams[-1].content.readexactly(1)
    await site.operator("drain", "a")
    site.b.load = IDLE
    await site.haproxy.weights(0, 100)
    assert await site.spread(100) == {"b": 100}
    why = "via agent : up (draining: drained by its operator)"
    await site.haproxy.servers(lambda rows: rows["gpu-01"]["last_agt"] == why)
    site.a.gate.set()
    site.b.gate.set()
    for stream in streams:
        assert await stream.content.read() == b"!"

    await site.operator("undrain", "a")
    await site.haproxy.weights(100, 100)
    assert is_near(await site.spread(300), 100, 100)


async def test_a_hung_server_and_a_dead_one_are_out_until_they_are_well(site):
    site.a.load = STALLED
    await site.haproxy.servers(lambda rows: int(rows["gpu-01"]["weight"]) < 100)
    site.a.steps = False
    await site.haproxy.servers(
        lambda rows: (
            rows["gpu-01"]["status"] == "DOWN (agent)"
            and "down (hung: has work, made no step" in rows["gpu-01"]["last_agt"]
        )
    )
    assert await site.spread(100) == {"b": 100}
    site.a.load, site.a.steps = IDLE, True
    await site.haproxy.weights(100, 100)

    await site.b.stop()
    await site.haproxy.servers(lambda rows: rows["gpu-02"]["status"].startswith("DOWN"))
    assert await site.spread(100) == {"a": 100}


async def test_without_its_sidecar_haproxy_goes_on_with_the_last_weights(site):
    site.a.load = FULL
    await site.haproxy.weights(20, 100)
    await site.sidecar.stop(signal.SIGKILL)
    await site.haproxy.servers(
        lambda rows: all(row["agent_status"] == "L4CON" for row in rows.values())
    )
    await site.haproxy.weights(20, 100)
    assert is_near(await site.spread(300), 20, 100)
    await site.haproxy.command("set weight vllm/gpu-01 100%")
    await site.haproxy.weights(100, 100)


async def test_when_all_were_at_0_the_refusal_is_fast_and_afterwards_all_share_again(site):
    for weights in ((100, 20), (20, 100)):
        for engine in "ab":
            await site.operator("drain", engine)
        await site.haproxy.weights(0, 0)
        began_s = time.monotonic()
        assert await site.spread(20) == {503: 20}
        assert time.monotonic() - began_s < 20 * FAST_S
        site.a.load, site.b.load = (FULL if weight == 20 else IDLE for weight in weights)
        for engine in "ab":
            await site.operator("undrain", engine)
        await site.haproxy.weights(*weights)
        assert is_near(await site.spread(150), *weights)


async def test_what_haproxys_operator_has_decided_stays(site):
    await site.haproxy.command("set server vllm/gpu-01 state maint")
    site.b.load = FULL
    rows = await site.haproxy.servers(lambda rows: rows["gpu-02"]["weight"] == "20")
    assert rows["gpu-01"]["status"] == "MAINT"
    assert await site.spread(50) == {"b": 50}
    await site.haproxy.command("set server vllm/gpu-01 state ready")
    await site.haproxy.weights(100, 20)
