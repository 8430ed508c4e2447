"""Whom the router contacts: replicas that are listed, or that a listed sidecar announces; no more.

Never its own ports, whatever they are called; nothing but HTTP; no redirect is followed.
"""

import pytest

from data_plane import eventually
from raw_client import Client, request
from router_process import router_process
from scripted_backend import Backend, answering, response
from serving import Serving, serving
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.config import Config


async def ask(router: Serving, target: bytes = b"/status") -> tuple[int, bytes]:
    client = await router.client()
    text = request(target).replace(b"router.test", b"localhost")
    answer = await client.ask(text)
    return answer.status, answer.body


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "127.1", "0.0.0.0", "[::ffff:127.0.0.1]"]
)
@pytest.mark.parametrize("port", ["admin", "clients"])
async def test_a_sidecar_leads_nobody_to_the_routers_own_ports(host: str, port: str) -> None:
    async with (
        SidecarStandIn(document()) as sidecar,
        serving(Config(sidecars=(sidecar.url,), poll_interval_s=0.02)) as router,
    ):
        own = {"admin": router.admin.port, "clients": router.address.port}[port]
        sidecar.published = document(snapshot(f"http://{host}:{own}", 1.0))
        looks = sidecar.looks
        await eventually(lambda: sidecar.looks > looks + 1)
        status, body = await ask(router, b"/replicas")
        assert (status, b"own port" in body) == (502, True)
        assert sidecar.url.encode() not in body


@pytest.mark.slow
async def test_workers_lead_nobody_to_their_supervisors_port_either(unused_tcp_port: int) -> None:
    admin = f"127.0.0.1:{unused_tcp_port}"
    async with (
        SidecarStandIn(document(snapshot(f"http://{admin}", 1.0))) as sidecar,
        router_process("--sidecar", sidecar.url, "--workers", "2", "--admin", admin) as router,
    ):
        client = await Client.connect(router.address)
        answer = await client.ask(request(b"/replicas").replace(b"router.test", b"localhost"))
        client.writer.close()
        assert (answer.status, b"own port" in answer.body) == (502, True)


async def test_a_replica_beside_the_router_is_none_of_its_ports() -> None:
    async with (
        Backend(answering(response(b"hello"))) as replica,
        serving(Config(replicas=(replica.url.replace("127.0.0.1", "localhost"),))) as router,
    ):
        assert await ask(router) == (200, b"hello")


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "unix:/run/ullage/readings.sock.control",
        "gopher://127.0.0.1:70",
        "http://127.0.0.1:9401/status",
        "http://me:secret@127.0.0.1:1",
        "http://127.0.0.1:1?x",
        "http://127.0.0.1:99999",
        "//127.0.0.1:1",
        "127.0.0.1:1",
        "http://",
        "http://a b:1",
        "http://a\r\nX: y:1",
    ],
)
async def test_what_is_no_server_is_no_replica(url: str) -> None:
    async with (
        SidecarStandIn(document(snapshot(url, id="x"), snapshot("http://127.0.0.1:1"))) as sidecar,
        serving(Config(sidecars=(sidecar.url,))) as router,
    ):
        page = await router.page("/replicas")
        assert [row["url"] for row in page["replicas"]] == ["http://127.0.0.1:1"]
        (fault,) = page["sidecars"][0]["faults"]
        assert fault.startswith("replica x: url ")
        assert "secret" not in fault


async def test_a_replicas_redirect_is_the_clients_and_the_router_follows_none() -> None:
    async with Backend(answering(response(b"not for you"))) as inside:
        moved = response(b"", status=307, headers=[(b"Location", f"{inside.url}/v1".encode())])
        async with (
            Backend(answering(moved)) as replica,
            serving(Config(replicas=(replica.url,))) as router,
        ):
            client = await router.client()
            answer = await client.ask(request(body=b"{}"))
            assert (answer.status, answer.one(b"location")) == (307, f"{inside.url}/v1".encode())
            assert not inside.requests
