"""The sidecar's end of the channel, for tests that play the sidecar."""

import select
import socket
import time
from collections import deque
from pathlib import Path

from ullage_sidecar.channel import decode_all, whole
from ullage_sidecar.core.reading import Hello, Reading


class Ear:
    """Listens at a path, takes every call, and gives what is said in its order."""

    def __init__(self, path):
        Path(path).unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._begun = {}
        self._heard = deque()

    def next(self, within_s: float = 2.0) -> Hello | Reading:
        """What is said next. Raises `TimeoutError`, and what is wrong with it."""
        until_s = time.monotonic() + within_s
        while not self._heard:
            left_s = until_s - time.monotonic()
            ready = select.select([self._listener, *self._begun], [], [], max(0.0, left_s))[0]
            if not ready and left_s <= 0.0:
                raise TimeoutError(f"nothing was said within {within_s} s")
            for each in ready:
                self._take(each)
        said = self._heard.popleft()
        if isinstance(said, Exception):
            raise said
        return said

    def _take(self, ready):
        if ready is self._listener:
            self._begun[ready.accept()[0]] = b""
            return
        came = ready.recv(65536)
        if not came:
            del self._begun[ready]
            ready.close()
            return
        stream = self._begun[ready] + came
        end = whole(stream)
        self._heard.extend(decode_all(stream[:end]))
        self._begun[ready] = stream[end:]

    def hello(self) -> Hello:
        """The next hello; what else is said before it is gone."""
        while not isinstance(said := self.next(), Hello):
            pass
        return said

    def reading(self) -> Reading:
        """The next reading; what else is said before it is gone."""
        while not isinstance(said := self.next(), Reading):
            pass
        return said

    def hears_nothing_for(self, silence_s: float) -> bool:
        try:
            self.next(silence_s)
        except TimeoutError:
            return True
        return False

    def close(self):
        for each in (self._listener, *self._begun):
            each.close()
