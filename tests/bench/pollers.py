"""Routers that poll: `pollers.py PORT COUNT PERIOD_S SECONDS`.

One process; each poller keeps its connection and sends the ETag that it last got, as routers do.
Asks at evenly spaced instants; one whose answer is still to come does not ask again. Prints as JSON
the answers, how many of them were 304, and the median and 99th percentile of the milliseconds from
question to whole answer.
"""

import asyncio
import json
import sys
import time


class Poller(asyncio.Protocol):
    """One connection: a question each time it is told to, timed until its answer is whole."""

    def __init__(self, took_ms, statuses):
        self.took_ms, self.statuses = took_ms, statuses
        self.etag, self.buffer, self.asked_s = b'""', b"", None

    def connection_made(self, transport):
        self.transport = transport

    def ask(self):
        if self.asked_s is not None:
            return
        self.asked_s = time.perf_counter()
        self.transport.write(
            b"GET /v1/snapshots HTTP/1.1\r\nHost: sidecar\r\nIf-None-Match: %b\r\n\r\n" % self.etag
        )

    def data_received(self, data):
        self.buffer += data
        head, end, body = self.buffer.partition(b"\r\n\r\n")
        if not end:
            return
        fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(fields.get(b"content-length", 0)):
            return
        self.took_ms.append((time.perf_counter() - self.asked_s) * 1e3)
        self.statuses.append(head[9:12])
        self.etag, self.buffer, self.asked_s = fields[b"etag"], b"", None


async def main(port, count, period_s, seconds):
    loop, took_ms, statuses = asyncio.get_running_loop(), [], []
    pollers = [
        (await loop.create_connection(lambda: Poller(took_ms, statuses), "127.0.0.1", port))[1]
        for _ in range(count)
    ]
    began_s = due_s = time.monotonic()
    asked = 0
    while due_s < began_s + seconds:
        await asyncio.sleep(due_s - time.monotonic())
        pollers[asked % count].ask()
        asked += 1
        due_s = began_s + asked * period_s / count
    async with asyncio.timeout(30.0):
        while any(poller.asked_s for poller in pollers):  # noqa: ASYNC110 (the last answers)
            await asyncio.sleep(0.01)
    took_ms.sort()
    p50, p99 = (took_ms[int(share * len(took_ms))] for share in (0.5, 0.99))
    seen = {"answers": len(took_ms), "unchanged": statuses.count(b"304")}
    print(json.dumps({**seen, "p50_ms": p50, "p99_ms": p99}))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), *map(float, sys.argv[3:])))
