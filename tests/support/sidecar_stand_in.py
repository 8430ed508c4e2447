"""A stand-in for the sidecar: aiohttp, as the real one, publishing what a test sets."""

import asyncio
import ssl
from collections.abc import Sequence
from typing import Self

from aiohttp import web

from ullage_shared.snapshot import PATH, Document, encode


class SidecarStandIn:
    """Answers `GET /v1/snapshots` by its attributes, which a test may change at any time."""

    def __init__(
        self,
        published: Document | bytes,
        *,
        tls: ssl.SSLContext | None = None,
        paths: Sequence[str] = (PATH,),
    ) -> None:
        self.published = published
        """The document, or any bytes in its place."""
        self.status = 200
        self.hangs = False
        """Takes requests and never answers."""
        self.headers: dict[str, str] = {}
        self.pieces_of_bytes: int | None = None
        """Sends the body in pieces of this size, each in a packet of its own."""
        self.looks = 0
        """Requests seen."""
        self.etags: list[str | None] = []
        """The `If-None-Match` of each."""
        self.authorizations: list[str | None] = []
        """The `Authorization` of each."""
        self.token = ""
        """Without it 401; empty: none is wanted."""
        self.url = ""
        self._tls = tls
        self._paths = paths

    async def __aenter__(self) -> Self:
        app = web.Application()
        for path in self._paths:
            app.router.add_get(path, self._answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._tls).start()
        self.url = f"http{'s' if self._tls else ''}://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def stop(self) -> None:
        """Be gone."""
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.looks += 1
        self.etags.append(request.headers.get("If-None-Match"))
        said = request.headers.get("Authorization")
        self.authorizations.append(said)
        if self.token and said != f"Bearer {self.token}":
            return web.Response(status=401)
        if self.hangs:
            await asyncio.sleep(60.0)
        body = self.published if isinstance(self.published, bytes) else encode(self.published)
        if self.pieces_of_bytes is None:
            return web.Response(status=self.status, body=body, headers=self.headers)
        answer = web.StreamResponse(status=self.status, headers=self.headers)
        await answer.prepare(request)
        for start in range(0, len(body), self.pieces_of_bytes):
            await answer.write(body[start : start + self.pieces_of_bytes])
            await asyncio.sleep(0.005)
        return answer
