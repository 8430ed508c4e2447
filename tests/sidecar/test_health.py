"""Probes of a server that is well, ill, slow, or not there."""

import asyncio
import time

import pytest
from aiohttp import web

from certificates import Authority
from scripted_backend import Backend, answering, response
from ullage_shared.config import ConfigError
from ullage_sidecar import health
from ullage_sidecar.core.health import HealthSettings, Probe

PATIENT = HealthSettings(timeout_s=30.0)


@pytest.fixture
async def fake_engine():
    """A server whose /health does what `answer` says. Yields (base URL, answers to set)."""
    answers = {"status": 200, "delay_s": 0.0, "asked": 0}

    async def answer(request):
        answers["asked"] += 1
        await asyncio.sleep(answers["delay_s"])
        if answers["status"] is None:
            request.transport.abort()
        return web.Response(status=answers["status"] or 200)

    app = web.Application()
    app.router.add_get("/health", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}", answers
    await runner.cleanup()


@pytest.fixture
async def client():
    async with health.session(PATIENT) as client:
        yield client


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, Probe(None)),
        (503, Probe("status 503")),
        (302, Probe("status 302")),
        (None, Probe("connection lost", certain=False)),
    ],
)
async def test_what_a_probe_says(fake_engine, client, status, expected):
    url, answers = fake_engine
    answers["status"] = status
    assert await health.probe(client, url) == expected


async def test_an_answer_that_takes_too_long_is_not_certain(fake_engine):
    url, answers = fake_engine
    answers["delay_s"] = 5.0
    async with health.session(HealthSettings(timeout_s=0.05)) as hasty:
        assert await health.probe(hasty, url) == Probe("no answer in time", certain=False)


async def test_a_refused_connection_is_certain(client, unused_tcp_port):
    probe = await health.probe(client, f"http://127.0.0.1:{unused_tcp_port}")
    assert probe == Probe("Connection refused", certain=True, gone=True)


async def test_a_name_that_is_not_known_is_not_certain(client):
    probe = await health.probe(client, "http://no-such-host.invalid:1")
    assert probe.fault is not None
    assert not probe.certain


@pytest.fixture
async def engine_over_tls():
    """A server at https:// that is well. Yields (base URL, its authority)."""
    authority = Authority()
    async with Backend(answering(response(b"")), tls=authority.server()) as backend:
        yield backend.url, authority


async def test_a_server_over_tls_is_checked_against_the_authorities_given(
    engine_over_tls, tmp_path
):
    url, authority = engine_over_tls
    ca = authority.file(tmp_path / "ca.pem")
    async with health.session(HealthSettings(timeout_s=30.0, ca=ca)) as client:
        assert await health.probe(client, url) == Probe(None)


async def test_a_server_with_a_certificate_that_is_not_accepted_is_told_from_one_that_is_gone(
    engine_over_tls, client
):
    url, _ = engine_over_tls
    probe = await health.probe(client, url)
    assert probe.fault.startswith("its certificate is not accepted: ")
    assert not probe.certain


async def test_a_file_of_authorities_that_is_not_there_is_the_operators_error():
    with pytest.raises(ConfigError, match=r"health\.ca = '/none\.pem': cannot be read"):
        health.session(HealthSettings(ca="/none.pem"))


async def test_a_watcher_asks_at_fixed_times_and_survives_every_fault(fake_engine, client, until):
    url, answers = fake_engine
    said = []

    def tell(probe):
        said.append(probe.fault)
        answers["status"] = [503, None, 200][len(said) % 3]

    begun_s = time.monotonic()
    watching = asyncio.create_task(health.watch(client, url, 0.05, tell, time.monotonic))
    await until(lambda: len(said) >= 6)
    watching.cancel()
    assert said[:3] == [None, "connection lost", None]
    assert time.monotonic() - begun_s >= 6 * 0.05
