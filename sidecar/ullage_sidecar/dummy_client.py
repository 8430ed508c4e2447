"""One server as dummy requests reach it: what it offers, and whether it answers.

What it offers is found by trying: completions, then chat, then embeddings; the first that is
answered with 200 is kept. Whatever a server answers ends as `RefusedError` or `FailedError`, and no
more of it is read than `read_limited` allows.
"""

from collections import Counter
from enum import StrEnum
from random import Random
from typing import Any, Final, NamedTuple, cast

import aiohttp
import msgspec

from ullage_shared.peer import TooLargeError, read_limited, why_unreachable
from ullage_sidecar.core.dummies import MARK, Api, Dummy, body

WORDS: Final = 160
"""Characters of a server's own words in a reason."""
_KEY_WANTED: Final = frozenset({401, 403})
_NOT_OFFERED: Final = frozenset({400, 404, 405, 415, 422, 501})
_NO_KEY: Final = "its key goes into engine[].api_key_file"
_NO_LIMIT: Final = aiohttp.ClientTimeout(total=None)  # The whole warm-up has one.


class RefusedError(Exception):
    """The server does not take what this sidecar sends. The message says why."""


class NotOfferedError(RefusedError):
    """Not at this path, or not in this form."""


class FailedError(Exception):
    """The server could not answer, and may be able to later. The message says why."""


class Result(StrEnum):
    """How one dummy request ended."""

    ANSWERED = "answered"
    REFUSED = "refused"
    FAILED = "failed"


class Card(msgspec.Struct):
    """One model of `GET /v1/models`, as vLLM lists it."""

    id: str
    parent: str | None = None
    """The base model of an adapter."""
    max_model_len: int | None = None


class _Cards(msgspec.Struct):
    data: list[Card]


class Models(NamedTuple):
    """What a server serves."""

    base: Card
    adapters: tuple[str, ...]


class DummyClient:
    """Asks one engine of one server. `rank`: its data-parallel rank, where there are several."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        rank: int | None,
        version: str,
        name: str,
        rng: Random,
        tally: Counter[str],
    ) -> None:
        self._session = session
        self._url = url
        self._key = ""
        self._headers = {"User-Agent": f"ullage-sidecar/{version} (warm-up)"}
        if rank is not None:
            self._headers["X-data-parallel-rank"] = str(rank)
        self._name = name
        self._rng = rng
        self._tally = tally
        self._api: Api | None = None
        self._sent = 0

    def use_key(self, api_key: str) -> None:
        """Say this API key with every request."""
        self._headers["Authorization"] = f"Bearer {api_key}"
        self._key = api_key

    async def models(self) -> Models:
        """Ask what there is. Raises `RefusedError`, `FailedError`."""
        status, content = await self._send("GET", "/v1/models", None)
        self._check(status, content, "/v1/models")
        try:
            cards = msgspec.json.decode(content, type=_Cards).data
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise RefusedError("/v1/models is no list of models") from error
        base = next((card for card in cards if card.parent is None), None)
        if base is None:
            raise RefusedError("/v1/models names no model")
        return Models(base, tuple(card.id for card in cards if card.parent is not None))

    async def ask(self, dummy: Dummy) -> None:
        """Send one dummy and read its answer. Raises `RefusedError`, `FailedError`."""
        result = Result.FAILED
        try:
            await self._ask_somewhere(dummy)
            result = Result.ANSWERED
        except RefusedError:
            result = Result.REFUSED
            raise
        finally:
            self._tally[result] += 1

    async def _ask_somewhere(self, dummy: Dummy) -> None:
        if self._api is not None:
            await self._ask_at(self._api, dummy)
            return
        refusals = []
        for api in Api:
            try:
                await self._ask_at(api, dummy)
            except NotOfferedError as error:
                refusals.append(error)
            else:
                self._api = api
                return
        raise refusals[0]

    async def _ask_at(self, api: Api, dummy: Dummy) -> None:
        status, content = await self._send("POST", api, body(dummy, api, self._rng))
        self._check(status, content, api)

    async def _send(self, method: str, path: str, content: Any) -> tuple[int, bytes]:
        self._sent += 1
        headers = {**self._headers, "X-Request-Id": f"{MARK}-{self._name}-{self._sent}"}
        try:
            async with self._session.request(
                method,
                self._url + path,
                json=content,
                headers=headers,
                allow_redirects=False,
                timeout=_NO_LIMIT,
            ) as answer:
                return answer.status, await read_limited(answer.content)
        except TooLargeError as error:
            raise RefusedError(f"{path}: {error}") from error
        except aiohttp.ClientConnectorCertificateError as error:
            why = why_unreachable(cast(OSError, error.certificate_error))
            raise FailedError(f"{path}: {why}") from error
        except aiohttp.ClientConnectorError as error:
            raise FailedError(f"{path}: {why_unreachable(error.os_error)}") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise FailedError(f"{path}: connection lost") from error

    def _check(self, status: int, content: bytes, path: str) -> None:
        if status == 200:
            return
        if status in _KEY_WANTED:
            has_one = "Authorization" in self._headers
            hint = "the key in engine[].api_key_file is refused" if has_one else _NO_KEY
            raise RefusedError(f"{path}: status {status}; {hint}")
        if status in _NOT_OFFERED:
            raise NotOfferedError(f"{path}: status {status}{_words(content, self._key)}")
        raise FailedError(f"{path}: status {status}")


def _words(content: bytes, key: str) -> str:
    """The server's own words, where it gives them as OpenAI's API does; fit for a log.

    Some repeat the key that they were sent: it is left out.
    """
    try:
        fault = msgspec.json.decode(content)
        message = str((fault.get("error") or fault)["message"])
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ""
    if key:
        message = message.replace(key, "***")
    plain = " ".join(message.encode("ascii", "backslashreplace").decode().split())
    return ": " + "".join(char if char.isprintable() else "?" for char in plain[:WORDS])
