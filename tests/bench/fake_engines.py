"""Fake engines that step at the real rhythm: `fake_engines.py SOCKET COUNT STEPS_PER_S`.

One process, no vLLM in it. Each engine is a sender of its own and goes by the name `fake-N`: steps
evenly spaced and apart from its neighbours', running and waiting drifting, KV usage rising with
every step and falling when a request ends, a hello and its last step each second, as the plugin
does. At 0 steps a second an engine is idle and only its heart beats. Each answers `/health`.

Says the ports of that, waits for a line to begin, and when its standard input ends, says what was
sent and what was dropped, as JSON.
"""

import asyncio
import json
import random
import sys
import time

from ullage_sidecar.channel import Sender, encode_hello, step_packer
from ullage_sidecar.core.reading import Hello

HEARTBEAT_S = 1.0
MAX_NUM_SEQS = 256
STARTED_AGO_S = 3600.0


class Health(asyncio.Protocol):
    """Answers whatever comes with 200."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        self.transport.close()


class FakeEngine:
    """One engine under load."""

    def __init__(self, path, number, is_idle):
        self.rng = random.Random(number)
        self.sender = Sender(path)
        self.hello = Hello(
            sender=number + 1,
            name=f"fake-{number}",
            boot_id=f"boot-{number}",
            pid=1,
            started_s=time.monotonic() - STARTED_AGO_S,
            models=("fake",),
            total_blocks=8192,
            block_size=16,
            max_num_seqs=MAX_NUM_SEQS,
        )
        self.pack = step_packer(self.hello.sender)
        self.seq = 0
        self.running, self.waiting, self.kv_usage = (0, 0, 0.0) if is_idle else (100, 2, 0.5)
        self.prompt_tokens = self.generated_tokens = 0
        self.last = self.pack(1, time.monotonic(), 0, 0, 0.0, 0, 0, 0, 0, 0)

    def step(self):
        """Make one step and send it."""
        rng = self.rng
        ended = rng.random() < 0.02 or self.kv_usage > 0.95
        self.running += rng.choice((-1, 0, 0, 0, 1))
        self.running = min(MAX_NUM_SEQS, max(1, self.running))
        self.waiting = max(0, self.waiting + rng.choice((-1, 0, 0, 0, 0, 1)))
        self.kv_usage = max(0.0, self.kv_usage + (-0.02 if ended else 0.0004))
        self.prompt_tokens += 500 * ended
        self.generated_tokens += self.running
        self.seq += 1
        self.last = self.pack(
            self.seq, time.monotonic(), self.running, self.waiting, self.kv_usage,
            self.prompt_tokens, self.generated_tokens, 0, self.prompt_tokens, 0,
        )  # fmt: skip
        self.sender.send(self.last)

    def beat(self):
        """Repeat who it is and how it stands."""
        if self.sender.connect():
            self.sender.send(encode_hello(self.hello))
            self.sender.send(self.last)


async def every(period_s, first_s, act):
    """Act at fixed instants; one that was missed is made up for."""
    due_s = time.monotonic() + first_s
    while True:
        await asyncio.sleep(due_s - time.monotonic())
        act()
        due_s += period_s


async def main(path, count, steps_per_s):
    loop = asyncio.get_running_loop()
    health = [await loop.create_server(Health, "127.0.0.1", 0) for _ in range(max(1, count))]
    engines = [FakeEngine(path, number, steps_per_s == 0) for number in range(count)]
    print(*(server.sockets[0].getsockname()[1] for server in health), flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)  # the sidecar listens
    tasks = []
    for number, engine in enumerate(engines):
        engine.beat()
        apart = (number + 0.5) / count
        tasks.append(asyncio.create_task(every(HEARTBEAT_S, apart * HEARTBEAT_S, engine.beat)))
        if steps_per_s:
            period_s = 1.0 / steps_per_s
            tasks.append(asyncio.create_task(every(period_s, apart * period_s, engine.step)))
    await loop.run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    sent, dropped = sum(e.seq for e in engines), sum(e.sender.dropped for e in engines)
    print(json.dumps({"steps": sent, "dropped": dropped}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
