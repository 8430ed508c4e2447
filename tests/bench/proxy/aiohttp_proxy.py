"""The proxy that one writes in an afternoon, for comparison: `aiohttp_proxy.py PORT BACKEND…`.

aiohttp's server and client on uvloop, a random backend, the body passed through as it comes.
"""

import random
import sys
from collections.abc import AsyncIterator

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

BACKENDS = web.AppKey("backends", list[str])
SESSION = web.AppKey("session", ClientSession)
KEPT = ("content-type",)


async def forward(request: web.Request) -> web.StreamResponse:
    """Send one request on and stream its answer back."""
    backends = request.app[BACKENDS]
    target = random.choice(backends) + request.path_qs
    headers = {name: request.headers[name] for name in KEPT if name in request.headers}
    body = await request.read()
    async with request.app[SESSION].request(
        request.method, target, data=body, headers=headers
    ) as answer:
        back = {name: answer.headers[name] for name in KEPT if name in answer.headers}
        if answer.content_length is not None:
            return web.Response(status=answer.status, headers=back, body=await answer.read())
        stream = web.StreamResponse(status=answer.status, headers=back)
        await stream.prepare(request)
        async for piece in answer.content.iter_any():
            await stream.write(piece)
        await stream.write_eof()
        return stream


async def keep_session(app: web.Application) -> AsyncIterator[None]:
    """One client session for the life of the server."""
    connector = TCPConnector(limit=0)
    async with ClientSession(connector=connector, timeout=ClientTimeout(total=None)) as session:
        app[SESSION] = session
        yield


def main(port: int, backends: list[str]) -> None:
    app = web.Application(client_max_size=64 << 20)
    app[BACKENDS] = backends
    app.cleanup_ctx.append(keep_session)
    app.router.add_route("*", "/{path:.*}", forward)
    loop = uvloop.new_event_loop()
    web.run_app(
        app, host="127.0.0.1", port=port, backlog=4096, access_log=None, print=None, loop=loop
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
