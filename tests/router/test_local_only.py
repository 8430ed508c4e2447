"""An admin port on the loopback is not for pages of other hosts."""

from pathlib import Path

import pytest
from aiohttp import ClientSession, web
from aiohttp.test_utils import TestServer

from ullage_router.local_only import guard, is_loopback
from ullage_shared.address import Address

HERE, ELSEWHERE = Address("127.0.0.1", 9401), Address("0.0.0.0", 9401)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]", "::1"]
)
def test_the_loopback_has_these_names(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "0.0.0.0", "10.0.0.1"],
)
def test_and_no_others(host: str) -> None:
    assert not is_loopback(host)


async def answered(at: Address | Path, host: str) -> int:
    async def page(_: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/", page)
    guard(app, at)
    async with (
        TestServer(app) as server,
        ClientSession() as client,
        client.get(server.make_url("/"), headers={"Host": host}) as answer,
    ):
        return answer.status


@pytest.mark.parametrize(
    ("at", "host", "status"),
    [
        (HERE, "localhost:9401", 200),
        (HERE, "127.0.0.1:12345", 200),  # Through an ssh tunnel.
        (HERE, "[::1]:9401", 200),
        (HERE, "[::1]", 200),
        (HERE, "evil.example:9401", 403),
        (HERE, "router-01", 403),
        (Address("localhost", 9401), "evil.example", 403),
        (ELSEWHERE, "router-01:9401", 200),
        (Path("/run/worker.sock"), "worker", 200),
    ],
)
async def test_who_asks_for_another_host_is_refused_on_the_loopback(
    at: Address | Path, host: str, status: int
) -> None:
    assert await answered(at, host) == status
