"""What is open to whom by default: no more than others need to reach."""

import os
import stat
from pathlib import Path

import msgspec
import pytest

from router_process import router_process
from ullage_router.config import Config as Router
from ullage_router.local_only import is_loopback
from ullage_shared.address import parse_listen
from ullage_shared.aggregator.config import Config as Aggregator
from ullage_sidecar.config import Config as Sidecar

README = Path(__file__).parents[2] / "README.md"
OPEN = {(Router, "listen"), (Sidecar, "listen"), (Aggregator, "listen")}
"""Others must reach these: clients; routers and Prometheus; routers."""


def test_by_default_operators_ports_are_on_the_loopback_and_agent_checks_nowhere() -> None:
    for kind, key in (*OPEN, (Router, "admin"), (Sidecar, "agent_listen")):
        place = getattr(msgspec.convert({}, kind), key)
        everybodys = bool(place) and not is_loopback(parse_listen(place).host)
        assert everybodys is ((kind, key) in OPEN), f"{kind}.{key}"


def test_by_default_nothing_is_wanted_of_whoever_asks() -> None:
    for kind in (Router, Sidecar, Aggregator):
        config = msgspec.convert({}, kind)
        assert config.access == type(config.access)()
        assert config.tls == type(config.tls)()


def test_the_readme_says_where_each_port_is_by_default() -> None:
    text = README.read_text(encoding="utf-8").partition("**Security.**")[2].partition("\n\n## ")[0]
    for kind, key in (*OPEN, (Router, "admin")):
        assert f"`{getattr(msgspec.convert({}, kind), key)}`" in text


@pytest.mark.slow
async def test_workers_sockets_are_their_users_alone() -> None:
    """Anybody who reached them would have the admin pages."""
    async with router_process("--replica", "http://127.0.0.1:1", "--workers", "2") as router:
        pid = router.process.pid
        assert folders(pid)
        for folder in folders(pid):
            found = folder.stat()
            assert (stat.S_IMODE(found.st_mode), found.st_uid) == (0o700, os.getuid())


def folders(pid: int) -> set[Path]:
    """Where the workers' sockets are, by their command lines."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    lines = [Path(f"/proc/{child}/cmdline").read_text().split("\0") for child in children]
    places = [words[words.index("--worker") + 1] for words in lines if "--worker" in words]
    return {Path(place.split(":", 3)[3]).parent for place in places}
