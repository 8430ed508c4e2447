"""systemd's end of a notify socket, and sockets given as systemd gives them."""

import asyncio
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

_GIVE = """\
import os, sys
for fd, given in enumerate(sys.argv[1].split(","), 3):
    os.dup2(int(given), fd)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(sys.argv[1].count(",") + 1)}
os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
"""


class Manager:
    """Hears what a process tells systemd."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address.replace("@", "\0", 1))
        self._socket.settimeout(0.0)

    def heard(self) -> list[str]:
        """What came since it was last asked, oldest first."""
        messages = []
        while True:
            try:
                messages.append(self._socket.recv(4096).decode())
            except BlockingIOError:
                return messages

    async def hears(self, beginning: str, within_s: float = 20.0) -> str:
        """The next message that begins so; those before it are passed over."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(within_s):
            while True:
                message = (await loop.sock_recv(self._socket, 4096)).decode()
                if message.startswith(beginning):
                    return message

    def close(self) -> None:
        self._socket.close()


@contextmanager
def listening(backlog: int = 128) -> Iterator[socket.socket]:
    """A socket that systemd would listen on, at a free port of the loopback."""
    with socket.create_server(("127.0.0.1", 0), backlog=backlog) as sock:
        yield sock


def given(sockets: Sequence[int], *python: str) -> list[str]:
    """The command that has `python …` find these sockets as systemd gives them."""
    for descriptor in sockets:
        os.set_inheritable(descriptor, True)
    return [sys.executable, "-c", _GIVE, ",".join(map(str, sockets)), *python]
