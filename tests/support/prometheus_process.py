"""A real Prometheus with the configuration that we ship, its targets and intervals replaced."""

import math
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import orjson

import system_packages

SHIPPED = Path(__file__).parents[2] / "deploy" / "prometheus"
SCRAPES_S = 0.5
_READY_WITHIN_S = 20.0
_REPLACED = {
    "scrape_interval: 5s": f"scrape_interval: {round(1000 * SCRAPES_S)}ms",
    "scrape_timeout: 4s": f"scrape_timeout: {round(1000 * SCRAPES_S)}ms",
    "evaluation_interval: 15s": "evaluation_interval: 1s",
}


class Prometheus:
    """It runs."""

    def __init__(self, url: str) -> None:
        self.url = url

    def get(self, path: str, **parameters: object) -> Any:
        """`data` of an answer of its API."""
        with urlopen(f"{self.url}/api/v1/{path}?{urlencode(parameters)}") as answer:
            page = orjson.loads(answer.read())
        assert page["status"] == "success", page
        return page["data"]

    def over(self, expression: str, begin_s: float, end_s: float) -> list[Any]:
        """The series of an expression in that time; each with `metric` and finite `values`."""
        found = self.get("query_range", query=expression, start=begin_s, end=end_s, step=SCRAPES_S)
        rows = []
        for series in found["result"]:
            values = [float(value) for _, value in series["values"]]
            if finite := [value for value in values if math.isfinite(value)]:
                rows.append({"metric": series["metric"], "values": finite})
        return rows


@contextmanager
def prometheus(
    folder: Path, router: str, sidecar: str, changes: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Prometheus]:
    """Run it until the end; it scrapes these two, `host:port`. `changes`: of the file's text."""
    system_packages.ensure({"prometheus"})
    text = (SHIPPED / "prometheus.yml").read_text()
    for shipped, ours in {**_REPLACED, **changes}.items():
        assert shipped in text
        text = text.replace(shipped, ours)
    (folder / "prometheus.yml").write_text(text)
    (folder / "alerts.yml").write_text((SHIPPED / "alerts.yml").read_text())
    targets = folder / "targets"
    targets.mkdir()
    for file, target in (("routers.yml", router), ("sidecars.yml", sidecar)):
        assert (SHIPPED / "targets" / file).exists()
        (targets / file).write_text(f'- targets: ["{target}"]\n')
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = folder / "prometheus.log"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [
                str(system_packages.find("prometheus")),
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stderr=said,
        )
    try:
        it = Prometheus(f"http://127.0.0.1:{port}")
        _wait_until(process, log, lambda: _answers(f"{it.url}/-/ready"))
        _wait_until(process, log, lambda: len(it.get("query", query="up == 1")["result"]) == 2)
        yield it
    finally:
        process.terminate()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url):
            return True
    except URLError:
        return False


def _wait_until(process: subprocess.Popen[bytes], log: Path, good: Callable[[], bool]) -> None:
    """Until it runs, and then until it has found its targets: it tells of them every 5 s."""
    end_s = time.monotonic() + _READY_WITHIN_S
    while not good():
        assert time.monotonic() < end_s, log.read_text()
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
