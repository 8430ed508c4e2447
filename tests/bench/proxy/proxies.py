"""The proxies under test, and how each is started: one worker each, tuned as its users would.

To add one: a function `Site -> argv` and its row in `PROXIES`. Each runs as by default, but for
what its function says: the Rust routers have a thread per core, which does not show in CPU time but
helps their latency.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Final

from install_peers import HOME as PEERS

Argv = Sequence[str | Path]

BEFORE: Final = "ULLAGE_BENCH_BEFORE"
"""The variable that names the folder of the code that `before` runs."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where one proxy is to listen, what it may write, and whom it stands before."""

    folder: Path
    port: int
    admin_port: int
    backend_ports: tuple[int, ...]
    sidecar_port: int

    @property
    def backends(self) -> list[str]:
        """Their base URLs."""
        return [url(port) for port in self.backend_ports]

    def write(self, name: str, text: str) -> Path:
        """Put a configuration file into the folder."""
        path = self.folder / name
        path.write_text(dedent(text).lstrip())
        return path


def url(port: int) -> str:
    """The base URL of a server on this machine."""
    return f"http://127.0.0.1:{port}"


def _ours(site: Site) -> Argv:
    argv = [sys.executable, "-m", "ullage_router", "--listen", f"127.0.0.1:{site.port}"]
    argv += ["--admin", f"127.0.0.1:{site.admin_port}", "--sidecar", url(site.sidecar_port)]
    for backend in site.backends:
        argv += ["--replica", backend]
    return argv


def _before(site: Site) -> Argv:
    """Ours as it was: the code of another checkout, in this environment."""
    code = os.environ[BEFORE]
    return ["env", f"PYTHONPATH={code}/router:{code}/shared", *_ours(site)]


def _nginx(site: Site) -> Argv:
    """No access log, kept-alive connections without a limit on their requests, no buffering."""
    servers = " ".join(f"server 127.0.0.1:{port};" for port in site.backend_ports)
    temporary = "\n            ".join(
        f"{kind}_temp_path {site.folder}/nginx-{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = f"""
        worker_processes 1;
        daemon off;
        pid {site.folder}/nginx.pid;
        error_log stderr;
        events {{ worker_connections 8192; }}
        http {{
            {temporary}
            access_log off;
            client_body_buffer_size 1m;
            client_max_body_size 64m;
            keepalive_requests 1000000000;
            upstream backends {{
                {servers}
                keepalive 1024;
                keepalive_requests 1000000000;
            }}
            server {{
                listen 127.0.0.1:{site.port} backlog=4096;
                location / {{
                    proxy_pass http://backends;
                    proxy_http_version 1.1;
                    proxy_set_header Connection "";
                    proxy_buffering off;
                    proxy_read_timeout 600s;
                }}
            }}
        }}
        """
    return ["nginx", "-e", "stderr", "-p", site.folder, "-c", site.write("nginx.conf", config)]


def _haproxy(site: Site) -> Argv:
    """One thread, connections shared among requests, chunks passed on without delay."""
    servers = "\n            ".join(
        f"server replica{port} 127.0.0.1:{port}" for port in site.backend_ports
    )
    config = f"""
        global
            nbthread 1
            maxconn 8192
        defaults
            mode http
            timeout connect 5s
            timeout client 600s
            timeout server 600s
            option http-no-delay
            http-reuse always
        frontend clients
            bind 127.0.0.1:{site.port}
            default_backend replicas
        backend replicas
            balance random
            {servers}
        """
    return ["haproxy", "-db", "-f", site.write("haproxy.cfg", config)]


def _vllm_router(site: Site) -> Argv:
    """Its cheapest policy that looks at load: the prefix tree of its default costs more."""
    argv: list[str | Path] = [PEERS / "bin" / "vllm-router", "--host", "127.0.0.1"]
    argv += ["--port", str(site.port), "--prometheus-port", str(site.admin_port)]
    argv += ["--policy", "power_of_two", "--log-level", "error"]
    return [*argv, "--worker-urls", *site.backends]


def _smg(site: Site) -> Argv:
    argv: list[str | Path] = [PEERS / "bin" / "smg", "launch", "--host", "127.0.0.1"]
    argv += ["--port", str(site.port), "--prometheus-port", str(site.admin_port)]
    argv += ["--policy", "power_of_two", "--log-level", "error"]
    return [*argv, "--worker-urls", *site.backends]


def _aiohttp(site: Site) -> Argv:
    return [
        sys.executable,
        Path(__file__).with_name("aiohttp_proxy.py"),
        str(site.port),
        *site.backends,
    ]


PROXIES: Final[dict[str, Callable[[Site], Argv]]] = {
    "ours": _ours,
    "nginx": _nginx,
    "haproxy": _haproxy,
    "vllm-router": _vllm_router,
    "smg": _smg,
    "aiohttp": _aiohttp,
    "before": _before,
}

DEFAULT: Final = tuple(name for name in PROXIES if name != "before")
SYSTEM_PACKAGES: Final = ("nginx", "haproxy")
"""Those that Debian brings, under the same name."""
