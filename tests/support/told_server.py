"""A vLLM server and its channel's other end, for tests that play the sidecar."""

import http.client
import json
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ear
from ullage_sidecar.core.reading import Hello, Reading


class Ear:
    """The sidecar's end of the channel: a thread that keeps all that it hears."""

    def __init__(self, path: Path) -> None:
        self._ear = ear.Ear(path)
        self._heard: list[Hello | Reading] = []
        self._closing = False
        self._thread = threading.Thread(target=self._listen)
        self._thread.start()

    def _listen(self) -> None:
        while not self._closing:
            try:
                self._heard.append(self._ear.next(within_s=0.1))
            except TimeoutError:
                continue

    def heard(self, since: int = 0) -> list[Hello | Reading]:
        return self._heard[since:]

    def hellos(self) -> list[Hello]:
        return [said for said in self.heard() if isinstance(said, Hello)]

    def readings(self) -> list[Reading]:
        return [said for said in self.heard() if isinstance(said, Reading)]

    def wait_for(self, is_so: Callable[[], Any], within_s: float) -> Any:
        deadline_s = time.monotonic() + within_s
        while not (found := is_so()):
            assert time.monotonic() < deadline_s, f"not within {within_s} s, of {len(self._heard)}"
            time.sleep(0.01)
        return found

    def close(self) -> None:
        self._closing = True
        self._thread.join()
        self._ear.close()


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    began_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class Told:
    """One running server, and where it reports."""

    server: Any
    socket_path: Path

    def get(self, path: str) -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.replica.port, timeout=30)
        connection.request("GET", path)
        with connection.getresponse() as response:
            assert response.status == 200
            body = response.read()
        connection.close()
        return body

    def complete(self, tokens: int, rank: int | None = None) -> Answer:
        body = {
            "model": "tiny",
            "prompt": f"def f{tokens}(x):",
            "max_tokens": tokens,
            "ignore_eos": True,
        }
        headers = {"Content-Type": "application/json"}
        if rank is not None:
            headers["X-data-parallel-rank"] = str(rank)
        began_s = time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", self.server.replica.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        with connection.getresponse() as response:
            response.read()
        connection.close()
        return Answer(response.status, began_s, time.monotonic() - began_s)

    def load(
        self, requests: int, at_once: int, tokens: int, answers: list[Answer] | None = None
    ) -> list[Answer]:
        """Complete `requests` prompts. Each answer is appended to `answers` when it is there."""
        answers = [] if answers is None else answers
        with ThreadPoolExecutor(at_once) as pool:
            for done in [pool.submit(self.complete, tokens) for _ in range(requests)]:
                done.add_done_callback(lambda done: answers.append(done.result()))
        assert len(answers) == requests
        return answers

    def metrics(self, engine: int = 0) -> dict[str, float]:
        found = re.findall(
            rf'^vllm:(\w+){{engine="{engine}"[^}}]*}} (\S+)$', self.get("/metrics").decode(), re.M
        )
        return {name: float(value) for name, value in found}

    def blocks_of_all_engines(self) -> int:
        found = re.search(rb'num_gpu_blocks="(\d+)"', self.get("/metrics"))
        assert found is not None
        return int(found[1])
