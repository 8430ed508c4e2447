"""The plugin, inside vLLM, takes nothing from any network: it makes one connection, to the
sidecar's unix socket, and of that it reads nothing. What it tells it knows from its process."""

import ast
import fcntl
import socket
import struct
import sys
import termios
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from plugin_pieces import Eventually, scheduler_stats
from ullage_sidecar.channel import decode_all, whole
from ullage_sidecar.core.reading import Reading

PACKAGE = Path(__file__).parents[3] / "sidecar" / "ullage_sidecar"
TAKING = {
    *("recv", "recv_into", "recvfrom", "recvfrom_into", "recvmsg", "recvmsg_into", "makefile"),
    *("accept", "listen", "bind", "create_server", "urlopen", "create_connection", "read"),
}
NETWORK = {"asyncio", "http", "urllib", "ssl", "aiohttp", "requests", "socketserver", "subprocess"}


def imported(module: str, seen: dict[str, ast.Module]) -> dict[str, ast.Module]:
    """This module of ours and all that it imports of ours, as source."""
    file = PACKAGE.parent / Path(*module.split(".")).with_suffix(".py")
    if module in seen or not file.is_file():
        return seen
    seen[module] = tree = ast.parse(file.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                imported(name, seen)
    return seen


def test_nothing_that_it_imports_can_take_anything_from_anybody() -> None:
    modules = imported("ullage_sidecar.vllm_plugin", {})
    assert {"ullage_sidecar.channel", "ullage_sidecar.stats"} < modules.keys()
    assert not any(name.startswith("ullage_shared") for name in modules)
    for name, tree in modules.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute):
                assert node.attr not in TAKING, f"{name}:{node.lineno}"
            elif isinstance(node, ast.Import | ast.ImportFrom):
                of = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                of += [alias.name for alias in node.names]
                assert not NETWORK & {each.partition(".")[0] for each in of}, (
                    f"{name}:{node.lineno}"
                )


def test_its_only_connection_is_the_sidecars_and_what_comes_from_there_stays_unread(
    plugin: ModuleType,
    vllm_config: SimpleNamespace,
    socket_path: Path,
    eventually: Eventually,
) -> None:
    families: list[tuple[int, int]] = []

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.connect":
            families.append((arguments[0].family, arguments[0].type))

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        listener.settimeout(5.0)
        sys.addaudithook(watch)  # It stays for good, and costs what it costs.
        logger = plugin.UllageStatLogger(vllm_config, 0)
        sidecar, _ = listener.accept()
        with sidecar:
            sidecar.settimeout(5.0)
            evil = b"ULG2" + b"\xff" * 1000
            sidecar.sendall(evil)
            stream = b""
            for running in (3, 4):
                logger.record(scheduler_stats(running=running), None)
                while not has(stream, running):
                    stream += sidecar.recv(65_536)
            unread = fcntl.ioctl(sidecar, termios.TIOCOUTQ, struct.pack("i", 0))
            assert struct.unpack("i", unread)[0] >= len(evil)
        assert eventually(lambda: families)
        assert set(families) == {(socket.AF_UNIX, socket.SOCK_STREAM)}


def has(stream: bytes, running: int) -> bool:
    said = decode_all(stream[: whole(stream)])
    return any(isinstance(each, Reading) and each.running == running for each in said)
