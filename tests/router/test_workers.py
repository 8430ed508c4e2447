"""Several workers behind one port, as operators run them: real processes, real sockets."""

import asyncio
import contextlib
import os
import re
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from certificates import Authority
from data_plane import eventually
from raw_client import Client, CutError, request
from router_process import RouterProcess, router_process, run_router
from scripted_backend import LAST_CHUNK, Backend, Call, answering, chunk, chunked_head, response
from ullage_router.claim import claim
from ullage_shared.address import Address

pytestmark = pytest.mark.slow

HELLO = answering(response(b"hello"))


class Pages:
    """The supervisor's admin port."""

    def __init__(self, router: RouterProcess, session: aiohttp.ClientSession) -> None:
        self._url = f"http://{router.admin}"
        self._session = session

    async def status(self, path: str = "/healthz") -> int:
        async with self._session.get(self._url + path) as page:
            return page.status

    async def json(self, path: str) -> Any:
        async with self._session.get(self._url + path) as page:
            return await page.json()

    async def metrics(self) -> dict[str, float]:
        """The sum of every metric over its series."""
        async with self._session.get(self._url + "/metrics") as page:
            text = await page.text()
        sums: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                name = sample.name.removeprefix("ullage_router_")
                sums[name] = sums.get(name, 0.0) + sample.value
        return sums


@asynccontextmanager
async def workers(*arguments: str, number: int = 2) -> AsyncIterator[tuple[RouterProcess, Pages]]:
    async with (
        router_process("--workers", str(number), *arguments) as router,
        aiohttp.ClientSession() as session,
    ):
        yield router, Pages(router, session)
        if router.process.returncode is None:
            router.process.terminate()
            assert await router.ended(10.0) == 0


async def comes_true(holds: Callable[[], Awaitable[bool]], within_s: float = 10.0) -> None:
    """`eventually`, for what another process must be asked for."""
    async with asyncio.timeout(within_s):
        while not await holds():  # noqa: ASYNC110 -- another process
            await asyncio.sleep(0.02)


def pids(router: RouterProcess) -> dict[int, int]:
    """The latest process of each worker, by its number."""
    ready = (re.search(r"worker_ready worker=(\d+) pid=(\d+)", line) for line in router.log)
    return {int(found[1]): int(found[2]) for found in ready if found}


async def clients_of_both(router: RouterProcess, pages: Pages) -> list[Client]:
    """Open connections, some at each of two workers."""
    clients: list[Client] = []
    while {row["worker"] for row in await pages.json("/decisions")} != {1, 2}:
        clients.append(await Client.connect(router.address))
        await clients[-1].ask(request(body=b"{}"))
        assert len(clients) < 60
    return clients


async def test_workers_share_the_port_and_look_like_one_router() -> None:
    async with Backend(HELLO) as backend, workers("--replica", backend.url) as (router, pages):
        clients = await clients_of_both(router, pages)
        for client in clients:
            assert (await client.ask(request(body=b"{}"))).body == b"hello"
        sent = 2 * len(clients)
        counted = await pages.metrics()
        assert counted["dispatched_total"] == counted["responses_total"] == sent
        assert counted["duration_seconds_count"] == sent
        assert counted["client_connections"] == len(clients)
        assert (counted["workers"], counted["workers_silent"]) == (2, 0)
        page = await pages.json("/replicas")
        assert [(row["url"], row["dispatched"]) for row in page["replicas"]] == [
            (backend.url, sent)
        ]
        assert (page["workers"], page["workers_silent"]) == ([1, 2], [])
        times = [row["at"] for row in await pages.json("/decisions")]
        assert times == sorted(times, reverse=True)
        assert len(times) == sent
        assert await pages.status() == 200
        for client in clients:
            client.close()
    assert all(" worker=" in line for line in router.log if "replica_" in line)


async def test_one_worker_explains_for_all_and_nothing_is_sent_or_counted() -> None:
    async with Backend(HELLO) as backend, workers("--replica", backend.url) as (router, pages):
        body = b'{"messages": [{"role": "user", "content": "x"}]}'

        async def explain(path: str, **headers: str) -> tuple[int, Any]:
            url = f"http://{router.admin}/explain{path}"
            async with (
                aiohttp.ClientSession(headers=headers) as session,
                session.post(url, data=body) as page,
            ):
                return page.status, await page.json()

        asked = sum(request.target != b"/v1/models" for request in backend.requests)
        status, page = await explain("/v1/chat/completions")
        assert (status, page["worker"], page["why"]) == (200, 1, "own_counts")
        assert page["replica"] == backend.url.removeprefix("http://")
        assert page["request"]["cache_keys"] == 1
        assert (await explain("/v1/completions"))[1]["why"] == "own_counts"
        named = {"x-ullage-cache-key": "k", "x-ullage-priority": "-2"}
        _, page = await explain("/v1/completions", **named)
        assert (page["request"]["cache_keys"], page["request"]["priority"]) == (1, -2)
        status, page = await explain("", **{"x-ullage-priority": "high"})
        assert (status, page["error"]["code"]) == (400, "invalid_priority")

        assert sum(request.target != b"/v1/models" for request in backend.requests) == asked == 0
        assert await pages.json("/decisions") == []
        assert (await pages.metrics())["dispatched_total"] == 0

        os.kill(pids(router)[1], signal.SIGSTOP)  # Then another one does.
        try:
            assert (await explain("/v1/chat/completions"))[1]["worker"] == 2
        finally:
            os.kill(pids(router)[1], signal.SIGCONT)


async def test_a_body_that_is_not_what_it_says_is_explained_like_any_other() -> None:
    async with (
        Backend(HELLO) as backend,
        router_process("--workers", "2", "--replica", backend.url) as router,
        aiohttp.ClientSession(headers={"Content-Encoding": "gzip"}) as session,
        session.post(f"http://{router.admin}/explain", data=b"rubbish") as page,
    ):
        status = page.status
    assert status == 200


async def test_a_killed_worker_takes_only_its_own_requests_and_is_back_and_counts_stay() -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        while (received := await call.read_request()).target != b"/stream":
            await call.send(response(b"hello", 404 if received.target == b"/v1/models" else 200))
        await call.send(chunked_head() + chunk(b"1"))
        await more.wait()
        await call.send(chunk(b"2") + LAST_CHUNK)

    async with Backend(script) as backend, workers("--replica", backend.url) as (router, pages):
        clients = await clients_of_both(router, pages)
        for client in clients:
            await client.send(request(b"/stream", b"{}"))
            await client.head()
            assert await client.piece() == b"1"
        before = await pages.metrics()
        assert before["in_flight"] == len(clients)
        victim = pids(router)[1]
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: any("worker_died worker=1 how=SIGKILL" in x for x in router.log))
        after = await pages.metrics()
        assert after["workers"] == 1
        assert 0 < after["in_flight"] < len(clients)
        assert not went_back(before, after)
        survivors = int(after["in_flight"])

        await eventually(lambda: pids(router)[1] != victim, within_s=15.0)
        again = await pages.metrics()
        assert (again["workers"], again["worker_restarts_total"]) == (2, 1)
        assert not went_back(after, again)
        more.set()
        ended = await asyncio.gather(*(rest(client) for client in clients))
        assert ended.count(b"2") == survivors
        assert ended.count(b"") == len(clients) - survivors
        for client in clients:
            client.close()


async def rest(client: Client) -> bytes:
    """What still comes; nothing if the connection was lost."""
    try:
        return b"".join([piece async for piece in client.pieces()])
    except (ConnectionError, CutError):
        return b""


def went_back(before: dict[str, float], after: dict[str, float]) -> list[str]:
    """Counts that have become less."""
    counts = [n for n in before if n.endswith(("_total", "_count", "_sum", "_bucket"))]
    return [name for name in counts if after[name] < before[name]]


async def test_a_worker_that_does_not_answer_is_left_out_and_said_to_be() -> None:
    async with Backend(HELLO) as backend, workers("--replica", backend.url) as (router, pages):
        clients = await clients_of_both(router, pages)
        before = await pages.metrics()
        os.kill(pids(router)[2], signal.SIGSTOP)
        try:
            after = await pages.metrics()
            assert (after["workers"], after["workers_silent"]) == (2, 1)
            assert after["client_connections"] < before["client_connections"]
            assert not went_back(before, after)
            page = await pages.json("/replicas")
            assert (page["workers"], page["workers_silent"]) == ([1], [2])
        finally:
            os.kill(pids(router)[2], signal.SIGCONT)
        for client in clients:
            client.close()


async def test_a_reload_reaches_every_worker_and_a_bad_one_none(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"

    async with Backend(answering(response(b"one"))) as one, Backend(HELLO) as two:
        file.write_text(f'replicas = ["{one.url}"]')
        async with workers("--config", str(file)) as (router, _):
            file.write_text("floor = 2")
            router.process.send_signal(signal.SIGHUP)
            await eventually(lambda: "reload_refused" in router.log[-1])
            assert "floor: no such key" in router.log[-1]
            file.write_text(f'replicas = ["{two.url}"]')
            router.process.send_signal(signal.SIGHUP)

            def reloaded() -> set[str]:
                lines = [line for line in router.log if "reloaded changed=replicas" in line]
                return {line.partition("worker=")[2][:1] for line in lines}

            await eventually(lambda: reloaded() == {"1", "2"})
            assert sum("reload_refused" in line for line in router.log) == 1
            file.write_text("this is no TOML")
            # One that starts now has what the others have, not what the file says.
            os.kill(pids(router)[1], signal.SIGKILL)
            before = pids(router)
            await eventually(lambda: pids(router)[1] != before[1], within_s=15.0)
            for _ in range(10):
                client = await Client.connect(router.address)
                assert (await client.ask(request(body=b"{}"))).body == b"hello"
                client.close()


async def test_a_new_certificate_reaches_every_worker(tmp_path: Path) -> None:
    authority, file = Authority(), tmp_path / "router.toml"
    tls = authority.issue(tmp_path)
    file.write_text(
        'replicas = ["http://127.0.0.1:1"]\n'
        f'[tls]\ncertificate = "{tls.certificate}"\nkey = "{tls.key}"\n'
    )

    async def serials(address: Address) -> set[str]:
        clients = [await Client.connect(address, authority.client()) for _ in range(20)]
        shown = {client.certificate["serialNumber"] for client in clients}
        for client in clients:
            client.close()
        return shown

    async with workers("--config", str(file)) as (router, _):
        before = await serials(router.address)
        authority.issue(tmp_path)
        router.process.send_signal(signal.SIGHUP)
        words = "reloaded changed=tls.certificate,tls.key"
        await eventually(lambda: sum(words in line for line in router.log) == 2)
        after = await serials(router.address)
        assert (len(before), len(after)) == (1, 1)
        assert before != after


async def test_a_stop_lets_requests_finish_in_every_worker_and_the_admin_port_says_so() -> None:
    more = asyncio.Event()

    async def script(call: Call) -> None:
        if (await call.read_request()).target == b"/v1/models":
            return
        await call.send(chunked_head() + chunk(b"1"))
        await more.wait()
        await call.send(chunk(b"2") + LAST_CHUNK)

    async with Backend(script) as backend, workers("--replica", backend.url) as (router, pages):
        clients = [await Client.connect(router.address) for _ in range(6)]
        for client in clients:
            await client.send(request(body=b"{}"))
            await client.head()
            assert await client.piece() == b"1"
        os.kill(pids(router)[1], signal.SIGTERM)  # As systemd does, to every process.
        router.process.terminate()
        await comes_true(lambda: stopping(pages))
        with pytest.raises(ConnectionRefusedError):
            await eventually_refused(router.address)
        more.set()
        for client in clients:
            assert [await client.piece(), await client.piece()] == [b"2", b""]
            client.close()
        assert await router.ended(10.0) == 0
    assert router.log[-1].endswith(" level=INFO stopped")


async def stopping(pages: Pages) -> bool:
    return await pages.status() == 503 and (await pages.json("/healthz"))["stopping"]


async def eventually_refused(address: Address) -> None:
    """Connect until nobody listens any more."""
    async with asyncio.timeout(5.0):
        while True:
            (await Client.connect(address)).reset()
            await asyncio.sleep(0.01)


async def test_workers_end_when_their_supervisor_is_gone_and_free_the_port() -> None:
    async with (
        Backend(HELLO) as backend,
        router_process("--workers", "2", "--replica", backend.url) as router,
    ):
        with pytest.raises(OSError, match="in use"), claim(router.address):
            pass
        router.process.kill()
        await router.process.wait()
        await eventually(lambda: sum("stopped" in line for line in router.log) == 2)
        with claim(router.address) as port:
            assert port == router.address.port


async def test_a_worker_that_is_just_starting_ends_with_its_supervisor_too() -> None:
    async with router_process("--workers", "2", "--replica", "http://127.0.0.1:1") as router:
        first = pids(router)[1]
        os.kill(first, signal.SIGKILL)
        await eventually(lambda: first not in processes(router) and len(processes(router)) == 3)
        router.process.kill()
        await router.process.wait()
        await eventually(lambda: not processes(router), within_s=15.0)


def processes(router: RouterProcess) -> set[int]:
    """Those of this router: the supervisor, and all that carry its port."""
    workers = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            if b"--worker" in words and b":%d:" % router.address.port in words[-2]:
                workers.add(int(process.name))
    alive = {router.process.pid} if router.process.returncode is None else set()
    return workers | alive


async def test_a_port_in_use_is_exit_status_1_and_one_clear_line() -> None:
    """Also one that others listen on with SO_REUSEPORT: another router of the same user."""
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        status, said = await run_router(
            *("--workers", "2", "--listen", address, "--admin", "127.0.0.1:0"),
            *("--replica", "http://127.0.0.1:1"),
        )
    assert status == 1
    (line,) = said.splitlines()
    assert f"cannot_listen listen={address}" in line
    assert "Address already in use" in line


async def test_when_no_worker_starts_the_supervisor_gives_up_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nif '--worker' in sys.orig_argv: os._exit(9)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    status, said = await run_router(
        *("--workers", "2", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
        *("--replica", "http://127.0.0.1:1"),
    )
    assert status == 1
    assert 'no_worker_starts why="status 9' in said


async def test_port_0_is_one_port_for_all_addresses_of_a_host() -> None:
    with (
        claim(Address("localhost", 0)) as port,
        socket.socket() as other,
        pytest.raises(OSError, match="in use"),
    ):
        other.bind(("127.0.0.1", port))


@pytest.mark.parametrize("number", [1, 2])
async def test_status_is_there_after_a_request_has_failed(number: int) -> None:
    async with workers("--replica", "http://127.0.0.1:1", number=number) as (router, pages):
        client = await Client.connect(router.address)
        await client.ask(request(b"/v1/completions", b"{}"))
        client.close()
        (row,) = (await pages.json("/status"))["replicas"]
        assert row["failures"] == {"connect": 1}
