"""A server that answers dummy requests as a test wants, and remembers what it was asked."""

import asyncio
from typing import Any

from aiohttp import web

CARDS = [
    {"id": "base", "object": "model", "max_model_len": 4096},
    {"id": "alias", "object": "model", "max_model_len": 4096},
    {"id": "adapter", "object": "model", "parent": "base"},
]


class FakeVllm:
    """A server whose answers a test decides, and the dummies that it was sent."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.cards: Any = {"data": CARDS}
        self.offers = {"/v1/completions"}
        self.api_key = ""
        self.words = "The model does not support\nthis  API"
        self.under_way = 0
        """Dummies that it computes just now."""
        self.answer = lambda count: (200, 0.0)
        """Status and seconds for the n-th dummy that is offered."""
        self.url = ""
        self._runner: web.AppRunner | None = None

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_route("*", "/v1/{_:.*}", self._v1)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _v1(self, request: web.Request) -> web.Response:
        wanted = f"Bearer {self.api_key}"
        if self.api_key and request.headers.get("Authorization") != wanted:
            return web.json_response({"error": "Unauthorized"}, status=401)
        if request.path == "/v1/models":
            return web.json_response(self.cards)
        body = await request.json()
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append((request.path, headers, body))
        if request.path not in self.offers:
            fault = {"error": {"message": self.words}}
            return web.json_response(fault, status=400)
        status, seconds = self.answer(len(self.dummies))
        self.under_way += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self.under_way -= 1
        return web.json_response({"choices": []}, status=status)

    @property
    def dummies(self) -> list[dict[str, Any]]:
        return [body for path, _, body in self.asked if path in self.offers]
