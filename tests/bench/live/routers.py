"""The routers that compete before live twins, and how each is started.

To add one: a function `Stand -> list of processes` and its row in `ROUTERS`. Each runs as by
default, with the policy that its name says and what its function says: no access log, bodies of
long prompts let through. Rust routers have as many threads as they like.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Final

from bench.proxy.install_peers import HOME as PEERS

Argv = Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class Stand:
    """Where a router is to listen, what it may write, and whom it stands before."""

    folder: Path
    port: int
    """This one and the two behind it are free."""
    replicas: tuple[str, ...]
    """Base URLs."""
    engines: tuple[str, ...]
    """What their plugins call themselves."""
    readings: Path
    """The socket to which their plugins speak."""

    def write(self, name: str, text: str) -> Path:
        """Put a configuration file into the folder."""
        path = self.folder / name
        path.write_text(dedent(text))
        return path


def _ours(way: str, stand: Stand) -> list[Argv]:
    """A sidecar for all twins, and a router that only knows the sidecar."""
    sidecar = f"127.0.0.1:{stand.port + 2}"
    engines = zip(stand.engines, stand.replicas, strict=True)
    config = stand.write(
        "router.toml",
        f"""\
        listen = "127.0.0.1:{stand.port}"
        admin = "127.0.0.1:{stand.port + 1}"
        sidecars = ["http://{sidecar}"]
        name_replica = true
        name_why = true
        {f'choose.way = "{way}"' if way else ""}
        """,
    )
    return [
        [
            *(sys.executable, "-m", "ullage_sidecar", "--node", "bench"),
            *("--socket", stand.readings, "--listen", sidecar),
            *(flag for name, url in engines for flag in ("--engine", f"{name}={url}")),
        ],
        [sys.executable, "-m", "ullage_router", "--config", config],
    ]


def _nginx(stand: Stand) -> list[Argv]:
    servers = " ".join(f"server {url.removeprefix('http://')};" for url in stand.replicas)
    temporary = " ".join(
        f"{kind}_temp_path {stand.folder}/nginx-{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = stand.write(
        "nginx.conf",
        f"""\
        worker_processes 1;
        daemon off;
        pid {stand.folder}/nginx.pid;
        error_log stderr;
        events {{ worker_connections 4096; }}
        http {{
            {temporary}
            access_log off;
            client_body_buffer_size 1m;
            client_max_body_size 64m;
            upstream replicas {{ {servers} keepalive 64; }}
            server {{
                listen 127.0.0.1:{stand.port};
                location / {{
                    proxy_pass http://replicas;
                    proxy_http_version 1.1;
                    proxy_set_header Connection "";
                    proxy_buffering off;
                    proxy_read_timeout 900s;
                }}
            }}
        }}
        """,
    )
    return [["nginx", "-e", "stderr", "-p", stand.folder, "-c", config]]


def _rust(program: tuple[str, ...], policy: tuple[str, ...], stand: Stand) -> list[Argv]:
    name, *rest = program
    return [
        [
            *(PEERS / "bin" / name, *rest, "--host", "127.0.0.1", "--port", str(stand.port)),
            *("--prometheus-port", str(stand.port + 1), "--log-level", "error"),
            *("--policy", *policy, "--worker-startup-check-interval", "1"),
            *("--worker-urls", *stand.replicas),
        ]
    ]


Start = Callable[[Stand], list[Argv]]
_vllm_router = partial(_rust, ("vllm-router",))
_smg = partial(_rust, ("smg", "launch"))
_METRIC: Final = "--power-of-two-load-metric"

ROUTERS: Final[dict[str, Start]] = {
    "ours": partial(_ours, ""),
    "nginx round_robin": _nginx,
    "vllm-router power_of_two": partial(_vllm_router, ("power_of_two",)),
    "vllm-router cache_aware": partial(_vllm_router, ("cache_aware",)),
    "smg cache_aware": partial(_smg, ("cache_aware",)),
    "smg least_requests": partial(_smg, ("power_of_two", _METRIC, "least_requests")),
    "smg expected_wait": partial(_smg, ("power_of_two", _METRIC, "expected_wait")),
    "smg least_load": partial(_smg, ("least_load",)),
    "ours weighted": partial(_ours, "weighted"),
    "ours least_wait": partial(_ours, "least_wait"),
    "ours least_in_flight": partial(_ours, "least_in_flight"),
}
"""By name. The ways of ours behind the first are for looking into it."""
DEFAULT: Final = tuple(ROUTERS)[:7]


def needs(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """What these need: Debian packages, and peers from PyPI."""
    programs = {name.split()[0] for name in names}
    return sorted(programs & {"nginx"}), sorted(programs & {"vllm-router", "smg"})
