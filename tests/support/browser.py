"""Headless Chromium, spoken to by its own DevTools protocol: no driver, no further package.

Rule: it is ours alone: an empty profile, a port that it chooses itself, and what it complains of in
its console is kept.
"""

import asyncio
import base64
import itertools
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp

import system_packages

_READY_WITHIN_S = 20.0
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--remote-debugging-port=0", "--lang=en", "--hide-scrollbars"),
)
_KEYS: Mapping[str, Mapping[str, Any]] = {
    "Enter": {"windowsVirtualKeyCode": 13, "text": "\r"},
    "Escape": {"windowsVirtualKeyCode": 27},
    "ArrowUp": {"windowsVirtualKeyCode": 38},
    "ArrowDown": {"windowsVirtualKeyCode": 40},
    "End": {"windowsVirtualKeyCode": 35},
    "Home": {"windowsVirtualKeyCode": 36},
    "Tab": {"windowsVirtualKeyCode": 9},
}


class Tab:
    """One page, open."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        """Errors, warnings, exceptions and violations of its policy, as the console has them."""
        self.asked: list[str] = []
        """URLs that it has asked for."""
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._reading = asyncio.ensure_future(self._read())

    async def call(self, method: str, **parameters: Any) -> Any:
        """One call of the protocol."""
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        return await asyncio.wait_for(answer, _READY_WITHIN_S)

    async def js(self, expression: str) -> Any:
        """What an expression is worth in the page; promises are waited for."""
        said = await self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in said, said["exceptionDetails"]
        return said["result"].get("value")

    async def becomes(self, expression: str, within_s: float = 5.0) -> None:
        """Wait until an expression is true in the page."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + within_s
        while not await self.js(f"Boolean({expression})"):
            assert loop.time() < end_s, f"not within {within_s} s: {expression}"
            await asyncio.sleep(0.02)

    async def open(self, url: str) -> None:
        """Go there, and forget what was complained of before."""
        self.complaints.clear()
        self.asked.clear()
        await self.call("Page.navigate", url=url)
        await self.becomes("document.readyState === 'complete'")

    async def press(self, *keys: str) -> None:
        """Press keys by their names, one after the other."""
        for key in keys:
            known = dict(_KEYS.get(key, {"text": key}))
            text = known.pop("text", None)
            kind = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
            await self.call("Input.dispatchKeyEvent", key=key, **known, **kind)
            await self.call("Input.dispatchKeyEvent", key=key, type="keyUp", **known)

    async def look(self, width: int, *, scheme: str = "light", height: int = 900) -> None:
        """Be so wide, and `light` or `dark`."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await self.call("Emulation.setEmulatedMedia", features=features)

    async def picture(self) -> bytes:
        """The whole page as PNG."""
        taken = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(taken["data"])

    async def _read(self) -> None:
        async for message in self._socket:
            said = message.json()
            if "id" in said:
                answer = self._answers.pop(said["id"])
                if not answer.done():
                    if "error" in said:
                        answer.set_exception(AssertionError(said["error"]))
                    else:
                        answer.set_result(said["result"])
            else:
                self._note(said["method"], said["params"])

    def _note(self, method: str, told: Any) -> None:
        if method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(told["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(str(told["args"]))
        elif method == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{told['entry']['text']} {told['entry'].get('url', '')}")

    async def close(self) -> None:
        await self._socket.close()
        await self._reading


@asynccontextmanager
async def chromium() -> AsyncIterator[Tab]:
    """Start it, with one empty page."""
    system_packages.ensure({"chromium"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *("chromium", *_FLAGS, f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "HOME": profile},
            start_new_session=True,
        )
        try:
            port = await asyncio.wait_for(_port(Path(profile)), _READY_WITHIN_S)
            async with aiohttp.ClientSession() as session:
                url = f"http://127.0.0.1:{port}/json/list"
                async with session.get(url) as answer:
                    pages = [page for page in await answer.json() if page["type"] == "page"]
                socket = await session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0)
                tab = Tab(socket)
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.call(f"{domain}.enable")
                try:
                    yield tab
                finally:
                    with suppress(AssertionError, ConnectionError):
                        await tab.call("Browser.close")
                    await tab.close()
        finally:
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), 5.0)
            if process.returncode is None:
                process.kill()
                await process.wait()


async def _port(profile: Path) -> int:
    """The one that it has chosen; it says so in a file."""
    file = profile / "DevToolsActivePort"
    while not file.exists() or "\n" not in file.read_text():  # noqa: ASYNC110 -- another process
        await asyncio.sleep(0.02)
    return int(file.read_text().split("\n")[0])
