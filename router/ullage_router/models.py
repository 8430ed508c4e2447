"""`GET /v1/models`: the union of what the replicas serve, asked for in the background.

A server's own list also names what its sidecar may not know: adapters loaded while it runs. A
server that cannot be asked (it may want an API key) leaves its last list standing.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import aiohttp
import orjson

from ullage_router.core.fleet import learn_models
from ullage_router.router import Router
from ullage_shared.log import line
from ullage_shared.peer import read_limited

_log: Final = logging.getLogger("ullage.router")
_TIMEOUT_S: Final = 2.0


class Models:
    """The servers' lists of models."""

    def __init__(
        self,
        router: Router,
        session: aiohttp.ClientSession,
        headers: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """`headers`: what to ask servers with."""
        self._router = router
        self._session = session
        self._headers = headers
        self._lists: dict[str, list[dict[str, Any]]] = {}
        self._body: bytes | None = None
        self._unwilling: set[str] = set()

    def body(self) -> bytes | None:
        """The answer; None: no server has said what it serves."""
        return self._body

    async def run(self, look_s: float = 0.5, refresh_s: float = 10.0) -> None:
        """For ever: ask new servers within `look_s`, and each again after `refresh_s`."""
        loop = asyncio.get_running_loop()
        due_s: dict[str, float] = {}
        while True:
            urls = {replica.url for replica in self._router.fleet.replicas.values()}
            self._forget(self._lists.keys() - urls)
            self._unwilling &= urls
            due_s = {url: due_s.get(url, 0.0) for url in urls}
            asked = [url for url, at_s in due_s.items() if at_s <= loop.time()]
            answered = await asyncio.gather(*(self._ask(url) for url in asked))
            for url, well in zip(asked, answered, strict=True):
                due_s[url] = loop.time() + (refresh_s if well else look_s)
            await asyncio.sleep(look_s)

    async def _ask(self, url: str) -> bool:
        try:
            async with self._session.get(
                f"{url}/v1/models",
                headers=self._headers(),
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=_TIMEOUT_S),
            ) as answer:
                if answer.status != 200:
                    self._say_once(url, answer.status)
                    return 400 <= answer.status < 500  # It will not say: no use in asking soon.
                cards = orjson.loads(await read_limited(answer.content))["data"]
            names = frozenset(card["id"] for card in cards)
            orjson.dumps(cards)  # What can be read too deep to be written again is no list.
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError, TypeError, KeyError):
            return False
        if not all(isinstance(name, str) for name in names):
            return False
        self._router.fleet = learn_models(self._router.fleet, url, names)
        if self._lists.get(url) != cards:
            self._lists[url] = cards
            self._render()
        return True

    def _say_once(self, url: str, status: int) -> None:
        if url not in self._unwilling:
            self._unwilling.add(url)
            why = f"/v1/models answered {status}"
            hint = "is it a vLLM server?" if status == 404 else "its models stay unknown"
            _log.warning(line("models_unknown", replica=url, why=why, hint=hint))

    def _forget(self, urls: set[str]) -> None:
        for url in urls:
            del self._lists[url]
        if urls:
            self._render()

    def _render(self) -> None:
        union: dict[str, dict[str, Any]] = {}
        for url in sorted(self._lists):
            for card in self._lists[url]:
                union.setdefault(card["id"], card)
        data = [union[name] for name in sorted(union)]
        self._body = orjson.dumps({"object": "list", "data": data}) if self._lists else None
