"""What prometheus.yml of deploy/ says in a comment of tokens and TLS, done: a real Prometheus
scrapes a sidecar that wants both."""

import asyncio
from pathlib import Path

import pytest

from certificates import Authority
from guarded import issued, token_file
from prometheus_process import SHIPPED, prometheus
from router_process import router_process
from sidecar_process import Sidecar

pytestmark = pytest.mark.slow


async def test_prometheus_scrapes_a_sidecar_that_wants_token_and_certificate(
    tmp_path: Path, unused_tcp_port: int
) -> None:
    ours = Authority()
    shown, ca = issued(ours, tmp_path / "shown"), ours.file(tmp_path / "ca.pem")
    token, file = token_file(tmp_path), tmp_path / "sidecar.toml"
    file.write_text(
        f"[[engine]]\nurl = 'http://127.0.0.1:1'\n[access]\ntoken = '{token}'\n[tls]\n"
        f"certificate = '{shown.certificate}'\nkey = '{shown.key}'\nclient_ca = '{ca}'\n"
    )
    changes = {
        **{line: line.replace("    # ", "    ") for line in commented()},
        "/etc/prometheus/ullage-token": token,
        "/etc/prometheus/ullage-ca.pem": ca,
        "/etc/prometheus/ullage.pem": shown.certificate,
        "/etc/prometheus/ullage-key.pem": shown.key,
    }
    sidecar = Sidecar(tmp_path, unused_tcp_port)
    await sidecar.start("--config", str(file))
    try:
        async with router_process("--replica", "http://127.0.0.1:1") as router:
            await asyncio.to_thread(scraped, tmp_path, str(router.admin), sidecar.listen, changes)
    finally:
        await sidecar.stop()


def commented() -> list[str]:
    text = (SHIPPED / "prometheus.yml").read_text()
    words = (
        "authorization:",
        "scheme:",
        "tls_config:",
        "  ca_file:",
        "  cert_file:",
        "  key_file:",
    )
    return [
        line for line in text.splitlines() if line.startswith(tuple(f"    # {w}" for w in words))
    ]


def scraped(folder: Path, router: str, sidecar: str, changes: dict[str, str]) -> None:
    """Raises unless both are."""
    assert len(changes) == 10
    (folder / "prometheus").mkdir()
    with prometheus(folder / "prometheus", router, sidecar, changes) as it:
        assert it.get("query", query="ullage_sidecar_build_info")["result"]
