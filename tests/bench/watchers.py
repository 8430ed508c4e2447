"""Routers that watch: `watchers.py PORT COUNT SECONDS`.

Takes in every line as it comes, and prints as JSON how many a watcher got on average: documents,
and empty ones.
"""

import asyncio
import json
import sys


async def watch(port, lines):
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(b"GET /v1/snapshots?watch HTTP/1.1\r\nHost: sidecar\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head:
        raise SystemExit(f"answered {head[:40]!r}")
    while True:
        size = int(await reader.readline(), 16)  # One chunk a line.
        lines.append((await reader.readexactly(size + 2))[:-2])


async def main(port, count, seconds):
    lines = []
    tasks = [asyncio.create_task(watch(port, lines)) for _ in range(count)]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    documents = sum(len(line) > 1 for line in lines)
    seen = {"documents": documents / count, "unchanged": (len(lines) - documents) / count}
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
