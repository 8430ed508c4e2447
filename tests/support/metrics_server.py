"""A stand-in for a server without the plugin: well by its /health, and with /metrics to set."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Self

from aiohttp import web

_PAGE = """\
process_start_time_seconds {began_s}
vllm:num_requests_running{{engine="0",model_name="tiny"}} {running}
vllm:num_requests_waiting{{engine="0",model_name="tiny"}} {waiting}
vllm:kv_cache_usage_perc{{engine="0",model_name="tiny"}} 0.5
vllm:cache_config_info{{block_size="32",engine="0",num_gpu_blocks="101"}} 1.0
"""


class MetricsServer:
    """What it answers, and what it was asked. It has 101 blocks, half of them in use."""

    def __init__(self) -> None:
        self.url = ""
        self.running, self.waiting = 2, 0
        self.began_s = time.time() - 3600.0
        self.text: str | None = None
        """The whole page, instead of the usual one."""
        self.status: int | None = 200
        """`None`: the connection is cut."""
        self.delay_s = 0.0
        self.asked: list[web.Request] = []

    @classmethod
    @asynccontextmanager
    async def started(cls, port: int = 0) -> AsyncIterator[Self]:
        """One at `port`, by default a free one, until the block ends."""
        server = cls()
        app = web.Application()
        app.router.add_get("/health", server._health)
        app.router.add_get("/metrics", server._metrics)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield server
        finally:
            await runner.cleanup()

    @property
    def page(self) -> str:
        """What it answers."""
        if self.text is not None:
            return self.text
        return _PAGE.format(began_s=self.began_s, running=self.running, waiting=self.waiting)

    async def _health(self, _: web.Request) -> web.Response:
        return web.Response()

    async def _metrics(self, request: web.Request) -> web.Response:
        self.asked.append(request)
        await asyncio.sleep(self.delay_s)
        if self.status is None and request.transport is not None:
            request.transport.abort()
        return web.Response(status=self.status or 200, text=self.page)
