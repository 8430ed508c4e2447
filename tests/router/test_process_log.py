"""What the process says on standard error: no secret on any path, and nobody waits for a reader."""

import asyncio
import fcntl
import json
import os
import signal
import sys
from pathlib import Path

import aiohttp
import orjson
import pytest

from raw_client import Client, CutError, request
from router_process import router_process
from scripted_backend import Backend, Call, answering, chunk, chunked_head, response
from sidecar_stand_in import SidecarStandIn
from ullage_shared.address import parse_listen

pytestmark = pytest.mark.slow
SECRET = b"sk-a-key-of-24-characters"
TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
HEADERS = [
    (b"Authorization", b"Bearer " + SECRET),
    (b"Cookie", SECRET),
    (b"X-Api-Key", SECRET),
    (b"X-Session-Id", SECRET),
    (b"X-Ullage-Cache-Key", SECRET),
    (b"Traceparent", SECRET),
]
BODY = b'{"model": "m", "prompt": "%b", "user": "%b"}' % (SECRET, SECRET)
ASK = request(b"/v1/completions?api_key=" + SECRET, BODY, headers=HEADERS)
FULL = b'data: {"error": {"message": "%b", "code": 503}}\n\n' % SECRET
ANSWERS = {
    "well": response(SECRET, headers=[(b"X-Secret", SECRET)]),
    "its own fault": response(SECRET, 500, SECRET),
    "full": response(SECRET, 503),
    "full in its first event": chunked_head() + chunk(FULL),
    "no HTTP": SECRET + b"\r\n\r\n",
    "a bad head": b"HTTP/1.1 200 OK\r\n" + SECRET + b"\r\n\r\n",
    "a bad chunk": chunked_head() + chunk(b"data: x\n\n") + SECRET + b"\r\n",
    "cut": chunked_head() + chunk(SECRET),
    "nothing": b"",
}
REQUESTS = {
    "bad priority": request(body=BODY, headers=[*HEADERS, (b"X-Ullage-Priority", SECRET)]),
    "no HTTP": SECRET + b" " + SECRET + b"\r\n\r\n",
    "a bad header": b"GET / HTTP/1.1\r\nHost: x\r\nBad " + SECRET + b"\r\n\r\n",
    "no host": b"GET /?" + SECRET + b" HTTP/1.1\r\n\r\n",
    "two lengths": ASK.replace(b"\r\n\r\n", b"\r\nContent-Length: 7\r\n\r\n", 1),
    "too large a head": request(headers=[(b"X-Big", SECRET * 4000)]),
    "a bad trace state": request(headers=[(b"Traceparent", TRACE), (b"Tracestate", SECRET)]),
    "a long trace state": request(
        headers=[
            (b"Traceparent", TRACE),
            (b"Tracestate", b",".join(b"%b%d=1" % (SECRET, n) for n in range(40))),
        ]
    ),
    "another coding": request(headers=[(b"Transfer-Encoding", SECRET)]),
}
"""Each may end its connection."""


class Replica:
    """Says whatever a test wants it to."""

    answer = b""

    async def script(self, call: Call) -> None:
        await call.read_request()
        await call.send(self.answer)
        call.close()


async def ask(client: Client, data: bytes) -> None:
    try:
        async with asyncio.timeout(5.0):
            await client.ask(data)
    except (CutError, ConnectionError, ValueError):
        pass


async def play_at_admin(admin: str) -> None:
    """What operators may send, and what is none of an operator's."""
    async with aiohttp.ClientSession() as session:
        for path in ("/explain", "/explain/v1/completions?x=" + SECRET.decode()):
            for priority in (b"1", SECRET):
                headers = {name.decode(): value.decode() for name, value in HEADERS}
                headers["X-Ullage-Priority"] = priority.decode()
                await session.post(f"http://{admin}{path}", data=BODY, headers=headers)
    for data in REQUESTS.values():
        client = await Client.connect(parse_listen(admin))
        await ask(client, data.replace(b"Host: router.test", b"Host: localhost"))
        client.close()


async def test_no_line_holds_a_body_a_key_or_a_header(tmp_path: Path) -> None:
    file = tmp_path / "router.toml"
    replica = Replica()
    async with (
        Backend(replica.script) as one,
        Backend(replica.script) as two,
        SidecarStandIn(b'{"schema": "%b"}' % SECRET) as sidecar,
        Backend(answering(response(b""))) as collector,
    ):
        replicas = f"replicas = ['{one.url}', '{two.url}']\naccess_log = true\n[breaker]\n"
        replicas += "set_aside_s = 0\neject_after = 100\n"
        replicas += f"[trace]\notlp = '{collector.url}'\n"
        file.write_text(replicas)
        flags = ("--config", str(file), "--sidecar", sidecar.url, "--log-level", "debug")
        async with router_process(*flags) as router:
            for answer in ANSWERS.values():
                replica.answer = answer
                for _ in range(2):
                    client = await Client.connect(router.address)
                    await ask(client, ASK)
                    client.close()
            for data in REQUESTS.values():
                client = await Client.connect(router.address)
                await ask(client, data.replace(b"Host: router.test", b"Host: localhost"))
                client.close()
            await play_at_admin(str(router.admin))
            secret = SECRET.decode()
            for wrong in (f"http://u:{secret}@host:1", f"http://h/?{secret}"):
                file.write_text(f"replicas = ['{wrong}']\nlisten = 5")
                router.process.send_signal(signal.SIGHUP)
                await asyncio.sleep(0.05)
            router.process.terminate()
            assert await router.ended(10.0) == 0
        said = "\n".join(router.log)
        assert secret not in said
        events = {line.split()[2] for line in router.log}
        wanted = {"request", "replica_failing", "answer_cut", "sidecar_problem", "not_http"}
        assert wanted | {"reload_refused", "stopped"} <= events


async def test_who_does_not_read_the_log_holds_up_no_request(tmp_path: Path) -> None:
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    file = tmp_path / "router.toml"
    file.write_text("replicas = ['http://127.0.0.1:1']\naccess_log = true\n")
    flags = ("--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--log-format", "json")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ullage_router", "--config", str(file), *flags), stderr=writes
    )
    os.close(writes)
    loop = asyncio.get_running_loop()
    try:
        came = b""
        while b"listening" not in came or not came.endswith(b"\n"):
            came += await loop.run_in_executor(None, os.read, reads, 4096)
        (ready,) = [orjson.loads(line) for line in came.splitlines() if b"listening" in line]
        client = await Client.connect(parse_listen(ready["http"]))
        bad = request(body=b"{}", headers=[(b"X-Ullage-Priority", b"x")])
        async with asyncio.timeout(30.0):
            for _ in range(500):  # Of some 150 bytes in the log each: many times what a pipe holds.
                assert (await client.ask(bad)).status == 400
        client.close()
        process.terminate()
        while data := await loop.run_in_executor(None, os.read, reads, 65_536):
            came += data
        assert await asyncio.wait_for(process.wait(), 10.0) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        os.close(reads)
    lines = [json.loads(line) for line in came.splitlines()]
    told = [line for line in lines if line["event"] == "request"]
    assert [(line["end"], line["status"]) for line in told] == [("invalid_priority", 400)] * 500
    assert lines[-1]["event"] == "stopped"
