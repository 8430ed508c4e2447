"""Three processes that have secrets between them, and every word that they say: no secret is in it.

Sidecar, aggregator and router as operators run them, with tokens, TLS and client certificates, at
log level debug, through a start, a refused reload and an end.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from aggregators import aggregator_process
from certificates import Authority
from data_plane import eventually
from guarded import issued, token_file
from router_process import router_process
from sidecar_process import Sidecar

pytestmark = pytest.mark.slow

SIDECARS, AGGREGATORS, CLIENTS = (
    f"{who}-secret-0123456789abcdef" for who in ("node", "agg", "api")
)
SECRETS = (SIDECARS, AGGREGATORS, CLIENTS)
PAGES = ("/", "/status", "/replicas", "/decisions", "/metrics", "/healthz")
DEBUG = ("--log-level", "debug")


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    ours = Authority()
    shown = issued(ours, tmp_path / "shown")
    return {
        "ca": ours.file(tmp_path / "ca.pem"),
        "certificate": shown.certificate,
        "key": shown.key,
        "of_sidecars": token_file(tmp_path, SIDECARS, name="sidecars"),
        "of_aggregators": token_file(tmp_path, AGGREGATORS, name="aggregators"),
        "of_replicas": token_file(tmp_path, CLIENTS, name="replicas"),
    }


SIDECAR = """
[[engine]]
url = "http://127.0.0.1:1"
[access]
token = "{of_sidecars}"
[tls]
certificate = "{certificate}"
key = "{key}"
client_ca = "{ca}"
"""
AGGREGATOR = """
sidecars = ["{url}"]
[access]
token = "{of_aggregators}"
sidecar_token = "{of_sidecars}"
[tls]
certificate = "{certificate}"
key = "{key}"
client_ca = "{ca}"
ca = "{ca}"
client_certificate = "{certificate}"
client_key = "{key}"
"""
ROUTER = """
sidecars = ["{url}"]
workers = 2
[access]
sidecar_token = "{of_aggregators}"
replica_key = "{of_replicas}"
[tls]
ca = "{ca}"
client_certificate = "{certificate}"
client_key = "{key}"
"""


async def test_no_secret_is_in_logs_pages_checks_or_process_lists(
    places: dict[str, str], tmp_path: Path, unused_tcp_port: int
) -> None:
    files = {name: tmp_path / f"{name}.toml" for name in ("sidecar", "aggregator", "router")}
    words: list[str] = []
    sidecar = Sidecar(tmp_path, unused_tcp_port)
    files["sidecar"].write_text(SIDECAR.format(**places))
    await sidecar.start("--config", str(files["sidecar"]), *DEBUG)
    try:
        at = f"https://{sidecar.listen}"
        files["aggregator"].write_text(AGGREGATOR.format(url=at, **places))
        async with aggregator_process("--config", str(files["aggregator"]), *DEBUG) as agg:
            at = agg.url.replace("http:", "https:")
            files["router"].write_text(ROUTER.format(url=at, **places))
            async with router_process("--config", str(files["router"]), *DEBUG) as router:
                words += [await page(f"http://{router.admin}{path}") for path in PAGES]
                assert "n/vllm" in words[PAGES.index("/replicas")]  # It came through both.
                pids = (sidecar.process.pid, agg.process.pid, router.process.pid)
                words += [text for pid in pids for text in process_list(pid)]
                for name, file in files.items():
                    for flags in ((), ("--print",), ("--connect",)):
                        words.append(await check(name, str(file), *flags))
                assert "answers" in words[-1]
                open_to_everybody(places["of_aggregators"])
                router.process.send_signal(signal.SIGHUP)
                await eventually(lambda: any("reload_refused" in said for said in router.log))
                words.append(await check("router", str(files["router"])))
                assert "everybody may read it" in words[-1]
                words += router.log
            words += agg.log
    finally:
        await sidecar.stop()
        words += sidecar.said
    said = "\n".join(words)
    assert len(said) > 10_000
    for secret in SECRETS:
        assert secret not in said
    assert "PRIVATE KEY" not in said


def open_to_everybody(file: str) -> None:
    Path(file).chmod(0o644)


async def page(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return await answer.text()


def process_list(pid: int) -> Iterator[str]:
    """What others on the host, or a careless report, show of a process and its children."""
    here = Path(f"/proc/{pid}")
    for what in ("cmdline", "environ"):
        yield (here / what).read_bytes().replace(b"\0", b" ").decode(errors="replace")
    for child in (here / "task" / str(pid) / "children").read_text().split():
        yield from process_list(int(child))


async def check(command: str, *words: str) -> str:
    """What `check` says, on both channels."""
    module = {"aggregator": "ullage_shared.aggregator"}.get(command, f"ullage_{command}")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", module, "check", *words),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(os.environ),
    )
    said, _ = await asyncio.wait_for(process.communicate(), 30.0)
    return said.decode()
