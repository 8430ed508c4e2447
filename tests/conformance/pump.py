"""The worst of proxies: it passes bytes on unread. A row that it keeps cannot be missed by that."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def pump(to_port: int) -> AsyncIterator[int]:
    """Run it before a server of this machine; its own port."""
    tasks: set[asyncio.Task[None]] = set()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(ConnectionError):
                while data := await reader.read(65_536):
                    writer.write(data)
        finally:
            writer.close()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there, back = await asyncio.open_connection("127.0.0.1", to_port)
        except OSError:
            writer.close()
            return
        for one in (copy(reader, back), copy(there, writer)):
            tasks.add(task := asyncio.ensure_future(one))
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
