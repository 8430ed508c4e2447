"""One page of metrics over real sockets: every fault is one clear error."""

import pytest

from certificates import Authority
from metrics_server import MetricsServer
from scripted_backend import Backend, answering, response
from ullage_shared import peer
from ullage_sidecar.core.health import HealthSettings
from ullage_sidecar.sources.scrape import ScrapeError, fetch, session


@pytest.fixture
async def fake():
    async with MetricsServer.started() as server:
        yield server


@pytest.fixture
async def client():
    async with session(HealthSettings()) as client:
        yield client


@pytest.mark.parametrize("status", [401, 404, 307, 500])
async def test_a_status_other_than_200_is_said(fake, client, status):
    fake.status = status
    with pytest.raises(ScrapeError, match=f"^status {status}$"):
        await fetch(client, fake.url, 30.0)


async def test_a_page_that_comes_too_late_is_given_up(fake, client):
    fake.delay_s = 5.0
    with pytest.raises(ScrapeError, match=r"^no answer in time$"):
        await fetch(client, fake.url, 0.05)


async def test_a_connection_that_is_cut_is_said(fake, client):
    fake.status = None
    with pytest.raises(ScrapeError, match=r"^connection lost$"):
        await fetch(client, fake.url, 30.0)


async def test_a_kept_connection_that_its_server_has_left_is_no_fault(client, unused_tcp_port):
    for running in (2, 3):
        async with MetricsServer.started(unused_tcp_port) as server:
            server.running = running
            assert (await fetch(client, server.url, 30.0)).engines[0].running == running


async def test_nobody_there_is_said_and_is_certain(client, unused_tcp_port):
    with pytest.raises(ScrapeError, match=r"^Connection refused$") as caught:
        await fetch(client, f"http://127.0.0.1:{unused_tcp_port}", 30.0)
    assert caught.value.gone


async def test_a_page_without_end_is_given_up(fake, client, monkeypatch):
    monkeypatch.setattr(peer, "MOST_BYTES", 100_000)
    fake.text = "x" * 200_000
    with pytest.raises(ScrapeError, match="larger than 100000 bytes"):
        await fetch(client, fake.url, 30.0)


@pytest.mark.parametrize("text", ["", "<html>", "\0\1\2"])
async def test_what_is_no_page_of_metrics_is_said(fake, client, text):
    fake.text = text
    with pytest.raises(ScrapeError, match="no metrics of vLLM or SGLang"):
        await fetch(client, fake.url, 30.0)


async def test_over_tls_the_same_authorities_count_as_for_health(client, tmp_path):
    authority = Authority()
    page = MetricsServer().page.encode()
    async with Backend(answering(response(page)), tls=authority.server()) as backend:
        ca = authority.file(tmp_path / "ca.pem")
        async with session(HealthSettings(ca=ca)) as trusting:
            assert (await fetch(trusting, backend.url, 30.0)).engines[0].running == 2
        with pytest.raises(ScrapeError, match="its certificate is not accepted"):
            await fetch(client, backend.url, 30.0)
