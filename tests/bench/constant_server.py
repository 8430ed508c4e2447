"""Answers every question with the same 4 KB, as fast as aiohttp can: `constant_server.py PORT`."""

import asyncio
import sys

import uvloop
from aiohttp import web

BODY = b"x" * 4096


async def answer(_):
    return web.Response(body=BODY, headers={"ETag": '"0"'})


async def main(port):
    app = web.Application()
    app.router.add_get("/v1/snapshots", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    print("listening", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
