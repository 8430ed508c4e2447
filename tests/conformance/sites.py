"""The proxies that the table is about, and how each is started before two raw replicas.

Rule: configured as a careful user would, so that no promise is missed for want of a setting: with
WebSocket, without buffering, with retries where the product has them. Nobody is set aside after a
failure, since each row is judged for itself.
"""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

from bench.proxy.install_peers import HOME as PEERS
from bench.proxy.processes import Child, NotStartedError
from conformance.promise import WELL, post
from conformance.replica import Stage
from conformance.wire import Wire

_READY_WITHIN_S: Final = 30.0
Argv = Sequence[str | Path]


@dataclass(frozen=True)
class Place:
    """Where one proxy is to listen, what it may write, and whom it stands before."""

    folder: Path
    port: int
    admin_port: int
    replicas: tuple[str, ...]

    def write(self, name: str, text: str) -> Path:
        """Put a configuration file into the folder."""
        path = self.folder / name
        path.write_text(dedent(text))
        return path


@dataclass(frozen=True)
class Site:
    """A proxy that runs, and the stage behind it."""

    port: int
    stage: Stage
    is_ours: bool


OUR_SITES: Final = {
    "main": "",
    "limits": """
        max_head_bytes = 4096
        max_headers = 20
        max_body_bytes = 10_000
        head_timeout_s = 0.3
        body_timeout_s = 0.3
        idle_client_s = 0.6
        stalled_client_s = 0.5
        first_byte_timeout_s = 0.3
        """,
    "crowd": "max_connections = 3",
    "ipv6": "",
}
"""Our configurations, by their `[limits]`."""


def _ours(site_name: str) -> Callable[[Place], Argv]:
    def start(place: Place) -> Argv:
        config = place.write(
            f"{site_name}.toml",
            f"""\
            listen = "127.0.0.1:{place.port}"
            admin = "127.0.0.1:{place.admin_port}"
            replicas = {list(place.replicas)}
            [breaker]
            set_aside_s = 0.0
            max_ejected_share = 0.0
            [retry]
            spare = 100_000
            [limits]
            connect_timeout_s = 0.3
            stop_grace_s = 0.0
            """
            + OUR_SITES[site_name],
        )
        return [sys.executable, "-m", "ullage_router", "--config", config]

    return start


def _nginx(place: Place) -> Argv:
    servers = " ".join(f"server {url[7:]} max_fails=0;" for url in place.replicas)
    temporary = " ".join(
        f"{kind}_temp_path {place.folder}/nginx-{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = f"""\
        worker_processes 1;
        daemon off;
        pid {place.folder}/nginx.pid;
        error_log stderr;
        events {{ worker_connections 1024; }}
        http {{
            {temporary}
            access_log off;
            client_max_body_size 64m;
            map $http_upgrade $upgrading {{ default upgrade; "" ""; }}
            upstream replicas {{ {servers} keepalive 64; }}
            server {{
                listen 127.0.0.1:{place.port};
                location / {{
                    proxy_pass http://replicas;
                    proxy_http_version 1.1;
                    proxy_set_header Upgrade $http_upgrade;
                    proxy_set_header Connection $upgrading;
                    proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                    proxy_set_header X-Forwarded-Proto $scheme;
                    proxy_set_header X-Forwarded-Host $http_host;
                    proxy_buffering off;
                    proxy_connect_timeout 2s;
                    proxy_read_timeout 600s;
                    proxy_next_upstream error timeout non_idempotent;
                    proxy_next_upstream_tries 2;
                }}
            }}
        }}
        """
    return ["nginx", "-e", "stderr", "-p", place.folder, "-c", place.write("nginx.conf", config)]


def _haproxy(place: Place) -> Argv:
    servers = "\n            ".join(
        f"server replica{number} {url[7:]}" for number, url in enumerate(place.replicas)
    )
    config = f"""\
        global
            nbthread 1
            maxconn 1024
        defaults
            mode http
            timeout connect 2s
            timeout client 600s
            timeout server 600s
            option http-no-delay
            option abortonclose
            option forwardfor
            option redispatch 1
            retries 1
            retry-on conn-failure empty-response
            http-reuse always
        frontend clients
            bind 127.0.0.1:{place.port}
            http-request set-header X-Forwarded-Proto http
            http-request set-header X-Forwarded-Host %[req.hdr(host)]
            default_backend replicas
        backend replicas
            balance random
            {servers}
        """
    return ["haproxy", "-db", "-f", place.write("haproxy.cfg", config)]


def _rust_router(program: str, *arguments: str) -> Callable[[Place], Argv]:
    def start(place: Place) -> Argv:
        argv: list[str | Path] = [PEERS / "bin" / program, *arguments, "--host", "127.0.0.1"]
        argv += ["--port", str(place.port), "--prometheus-port", str(place.admin_port)]
        argv += ["--policy", "power_of_two", "--log-level", "error", "--disable-circuit-breaker"]
        argv += ["--health-failure-threshold", "1000"]
        return [*argv, "--worker-urls", *place.replicas]

    return start


PROXIES: Final[dict[str, Callable[[Place], Argv]]] = {
    "nginx": _nginx,
    "haproxy": _haproxy,
    "vllm-router": _rust_router("vllm-router"),
    "smg": _rust_router("smg", "launch"),
}


@asynccontextmanager
async def site(proxy: str, name: str, folder: Path) -> AsyncIterator[Site]:
    """Start `ours` or a peer, its files in `folder`. Raises `NotStartedError`."""
    hosts = ("::1", "::1") if name == "ipv6" else ("127.0.0.1", "127.0.0.1")
    async with Stage(*hosts) as stage:
        stage.set(WELL)
        urls = tuple(replica.url for replica in stage.replicas)
        place = Place(folder, _free_port(), _free_port(), urls)
        is_ours = proxy == "ours"
        argv = (_ours(name) if is_ours else PROXIES[proxy])(place)
        with Child(argv, folder / f"{proxy}-{name}.log") as child:
            await _ready(child, place.port)
            yield Site(place.port, stage, is_ours)


async def _ready(child: Child, port: int) -> None:
    """Wait until it serves, by whichever replica."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + _READY_WITHIN_S
    seen = "nothing"
    while loop.time() < until_s:
        child.check_alive()
        try:
            async with await Wire.connect(port) as wire:
                await wire.send(post())
                answer = await wire.answer(within_s=5.0)
        except OSError as error:
            seen = str(error)
        else:
            if answer.status == 200:
                return
            seen = answer.flaw or f"status {answer.status}"
        await asyncio.sleep(0.05)
    raise NotStartedError(f"not ready within {_READY_WITHIN_S:.0f} s, last: {seen}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
