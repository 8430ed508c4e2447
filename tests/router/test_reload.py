"""SIGHUP: a new configuration is taken over whole, or nothing of it is."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import SIGHUP

import msgspec
import pytest

from data_plane import eventually
from raw_client import Client, request
from router_process import RouterProcess, router_process
from scripted_backend import LAST_CHUNK, Backend, Call, answering, chunk, chunked_head, response
from serving import Serving, serving
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.config import Access, Config, Limits, Policy, RetryPolicy, Tls, Trace
from ullage_router.http.access import made
from ullage_router.reload import changes
from ullage_shared.config import ConfigError
from ullage_shared.log import Line

pytestmark = pytest.mark.slow

A, B = "http://127.0.0.1:1", "http://127.0.0.1:2"


def test_every_changed_key_is_named() -> None:
    old = Config(replicas=(A,))
    new = Config(
        replicas=(B,),
        poll_interval_s=1.0,
        name_replica=False,
        choose=Policy(floor=0.5),
        retry=RetryPolicy(share=0.5),
        limits=Limits(max_body_bytes=1, stop_grace_s=1.0),
        tls=Tls(ca="ca.pem"),
    )
    assert changes(old, new) == (
        *("replicas", "poll_interval_s", "name_replica", "choose.floor", "retry.share"),
        *("limits.max_body_bytes", "limits.stop_grace_s", "tls.ca"),
    )
    assert changes(new, new) == ()


@pytest.mark.parametrize(
    ("new", "named"),
    [
        (Config(listen="127.0.0.1:1"), "listen"),
        (Config(admin="127.0.0.1:1"), "admin"),
        (Config(workers=2), "workers"),
        (Config(tls=Tls(certificate="cert.pem")), "tls.certificate"),
        (Config(trace=Trace(otlp="http://c:4318")), "trace.otlp"),
        (Config(listen="127.0.0.1:1", workers=2, replicas=(A,)), "listen, workers"),
    ],
)
def test_what_needs_a_restart_is_refused_by_name(new: Config, named: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{named}: cannot change while the router runs"):
        changes(Config(), new)


async def test_everything_else_is_applied(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with (
        Backend(answering(response(b"old"))) as old,
        Backend(answering(response(b"new"))) as new,
    ):
        config = Config(replicas=(old.url,))
        async with serving(config) as running:
            client = await running.client()
            answer = await client.ask(request(body=b"{}"))
            assert (answer.body, answer.one(b"x-ullage-replica")) == (b"old", old.url[7:].encode())
            changed = msgspec.structs.replace(
                config, replicas=(new.url,), name_replica=False, limits=Limits(max_body_bytes=10)
            )
            running.service.reload(lambda: changed)
            words = "reloaded changed=replicas,name_replica,limits.max_body_bytes"
            assert caplog.messages[-1] == words
            client = await running.client()
            answer = await client.ask(request(body=b"{}"))
            assert (answer.body, answer.one(b"x-ullage-replica")) == (b"new", None)
            assert (await client.ask(request(body=b"x" * 11))).status == 413
            running.service.reload(lambda: changed)
            assert caplog.messages[-1] == "reloaded changed=nothing"


async def test_the_access_log_can_be_turned_on_and_off() -> None:
    lines: list[Line] = []
    async with Backend(answering(response(b""))) as backend:
        off = Config(replicas=(backend.url,))
        on = msgspec.structs.replace(off, access_log=True)
        async with serving(off, lines.append) as it:
            for config in (off, on, off):
                it.service.reload(lambda config=config: config)
                await (await it.client()).ask(request())
    assert [line.fields["end"] for line in lines] == ["whole"]


async def test_keys_are_read_again_and_a_file_at_fault_changes_nothing(tmp_path: Path) -> None:
    keys, own = tmp_path / "keys", tmp_path / "own"
    (first, line), (second, other) = made("first"), made("second")
    keys.write_text(line)
    own.write_text("of-the-replica")

    async with Backend(answering(response(b"{}"))) as backend:
        access = Access(keys=str(keys), replica_key=str(own))
        config = Config(replicas=(backend.url,), access=access)
        async with serving(config) as it:

            async def may(key: str) -> bool:
                headers = [(b"Authorization", b"Bearer " + key.encode())]
                answer = await (await it.client()).ask(request(headers=headers))
                return answer.status == 200

            assert (await may(first), await may(second)) == (True, False)
            for text, can in (
                (other, (False, True)),
                ("rubbish", (False, True)),
                (line, (True, False)),
            ):
                keys.write_text(text)
                it.service.reload(lambda: config)
                assert (await may(first), await may(second)) == can
        said = {value for asked in backend.requests for value in asked.all(b"authorization")}
    assert said == {b"Bearer of-the-replica"}  # In the router's own questions for models, too.


async def test_a_removed_replica_finishes_what_it_has_and_is_asked_nothing_more() -> None:
    """Report 23: reload keeps probing removed backends (production-stack#680)."""
    more = asyncio.Event()

    async def slow(call: Call) -> None:
        while (await call.read_request()).target == b"/v1/models":
            await call.send(response(b"no", 404))
        await call.send(chunked_head() + chunk(b"1"))
        await more.wait()
        await call.send(chunk(b"2") + LAST_CHUNK)

    async with Backend(slow) as leaves, Backend(answering(response(b"stays"))) as stays:
        config = Config(replicas=(leaves.url,))
        async with serving(config) as running:
            client = await running.client()
            await client.send(request(body=b"{}"))
            await client.head()
            assert await client.piece() == b"1"
            running.service.reload(lambda: Config(replicas=(stays.url,)))
            asked = len(leaves.requests)
            other = await running.client()
            for _ in range(10):
                assert (await other.ask(request(body=b"{}"))).body == b"stays"
            await eventually(lambda: any(r.target == b"/v1/models" for r in stays.requests))
            more.set()
            assert [await client.piece(), await client.piece()] == [b"2", b""]
            assert len(leaves.requests) == asked


async def test_a_removed_sidecar_is_asked_no_more_and_its_replicas_leave() -> None:
    async with (
        SidecarStandIn(document(snapshot(A, 0.9))) as leaves,
        SidecarStandIn(document(snapshot(B, 0.9))) as joins,
    ):
        config = Config(sidecars=(leaves.url,), poll_interval_s=0.02)
        async with serving(config) as running:
            assert await table(running) == ({A}, {leaves.url})
            changed = msgspec.structs.replace(config, sidecars=(joins.url,))
            running.service.reload(lambda: changed)
            looks = leaves.looks
            await eventually(lambda: joins.looks > 3)
            assert await table(running) == ({B}, {joins.url})
            assert leaves.looks <= looks + 1  # One may have been under way.


async def test_a_sidecar_that_stays_keeps_its_counts_and_is_asked_at_the_new_interval() -> None:
    async with SidecarStandIn(document(snapshot(A, 0.9))) as sidecar:
        config = Config(sidecars=(sidecar.url,), poll_interval_s=60.0)
        async with serving(config) as running:
            changed = msgspec.structs.replace(config, poll_interval_s=0.02)
            running.service.reload(lambda: changed)
            await eventually(lambda: sidecar.looks > 5)
            assert await table(running) == ({A}, {sidecar.url})


async def test_no_request_is_lost_over_many_reloads() -> None:
    async with (
        Backend(answering(response(b"a"))) as a,
        Backend(answering(response(b"b"))) as b,
    ):
        configs = [Config(replicas=(a.url,)), Config(replicas=(a.url, b.url))]
        configs.append(Config(replicas=(b.url,), limits=Limits(idle_upstream_s=0.01)))
        async with serving(configs[0]) as running:
            clients = [await running.client() for _ in range(8)]
            bodies: list[bytes] = []

            async def ask(client: Client) -> None:
                for _ in range(60):
                    answer = await client.ask(request(body=b"{}"))
                    assert answer.status == 200
                    bodies.append(answer.body)

            asking = asyncio.gather(*(ask(client) for client in clients))
            turn = 0
            while not asking.done():
                turn += 1
                config = configs[turn % 3]
                running.service.reload(lambda config=config: config)
                await asyncio.sleep(0.005)
            await asking
        assert turn > 3
        assert set(bodies) == {b"a", b"b"}


async def table(running: Serving) -> tuple[set[str], set[str]]:
    page = await running.page("/replicas")
    return {r["url"] for r in page["replicas"]}, {s["url"] for s in page["sidecars"]}


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    return file


@dataclass
class Reloading:
    """A process, and the file that it reads."""

    router: RouterProcess
    file: Path

    async def hup(self, text: str) -> str:
        """Write the file and send SIGHUP. Returns what the log says of it."""
        written(self.file, text)
        log = self.router.log
        before = len(log)
        self.router.process.send_signal(SIGHUP)
        await eventually(lambda: any(" reload" in line for line in log[before:]))
        (said,) = [line for line in log[before:] if " reload" in line]
        return said


@asynccontextmanager
async def reloading(file: Path) -> AsyncIterator[Reloading]:
    async with router_process("--config", str(file)) as router:
        yield Reloading(router, file)
        router.process.terminate()
        assert await router.ended(5.0) == 0


async def test_a_file_is_read_again_at_sighup_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    """Report 23: a bad file is half applied (production-stack#1083)."""
    async with (
        Backend(answering(response(b"one"))) as one,
        Backend(answering(response(b"two"))) as two,
        reloading(written(tmp_path / "router.toml", f'replicas = ["{one.url}"]')) as process,
    ):
        client = await Client.connect(process.router.address)
        bad = f'replicas = ["{two.url}"]\n[choose]\nfloor = 2.0\n'
        said = await process.hup(bad)
        assert "reload_refused" in said
        assert "choose.floor = 2.0: wanted a number < 1.0" in said
        assert (await client.ask(request(body=b"{}"))).body == b"one"
        said = await process.hup(f'replicas = ["{two.url}"]\nworkers = 3\n')
        assert "workers: cannot change" in said
        assert (await client.ask(request(body=b"{}"))).body == b"one"
        said = await process.hup(f'replicas = ["{two.url}"]\n[choose]\nfloor = 0.3\n')
        assert "reloaded changed=replicas,choose.floor" in said
        assert (await client.ask(request(body=b"{}"))).body == b"two"
        client.close()
