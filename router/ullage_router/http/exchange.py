"""One request's life: choose, send, pass the answer on; while nothing is lost, try another.

Rules
* A second replica is tried only before the first byte reaches the client, and never a third.
* A connection that was reused and closed at once proves nothing about the replica (it may have been
  closed as idle just then): the request goes there once more, on a new connection.
* The in-flight count is held from the decision to the last byte, whatever the end.
* A client that has gone ends the exchange at once, so that vLLM stops generating.
"""

import asyncio
import errno
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ullage_router.core.decide import Why
from ullage_router.core.fleet import Replica
from ullage_router.core.inflight import Hold
from ullage_router.http.errors import OVERLOADED, Refusal, refused, replica_failed
from ullage_router.http.message import (
    Header,
    Request,
    header_value,
    request_head,
    response_head,
    value_of,
)
from ullage_router.http.response import Head, ResponseReader
from ullage_router.http.upstream import Failure, Upstream
from ullage_router.tally import Tally
from ullage_shared.peer import why_unreachable

if TYPE_CHECKING:
    from ullage_router.http.downstream import Downstream
    from ullage_router.http.proxy import Proxy

_MOST_REPLICAS: Final = 2
_IDLE_CLOSE_S: Final = 0.25
_OUR_WANT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CHUNKING: Final = frozenset({b"transfer-encoding"})
_NOTHING: Final[frozenset[bytes]] = frozenset()


class Exchange:
    """One request and its answer."""

    def __init__(self, proxy: "Proxy", client: "Downstream", request: Request) -> None:
        self._proxy = proxy
        self._client = client
        self._request = request
        self._id = value_of(request.headers, b"x-request-id") or proxy.new_request_id()
        self._began_s = perf_counter()
        self._tried: list[str] = []
        self._failure: Refusal | None = None
        self._replica: Replica
        self._tally: Tally
        self._hold: Hold | None = None
        self._upstream: Upstream | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._status = 0
        self._first_byte = True
        self._cut_needs_reset = False

    def start(self) -> None:
        """Choose a replica and send the request there, or refuse it."""
        decision = self._proxy.router.choose(self._request.body, self._tried)
        if decision.replica is None:
            nobody_left = decision.why is Why.NO_REPLICA
            self._refuse(self._failure if self._failure and nobody_left else refused(decision.why))
            return
        self._replica = decision.replica
        self._tried.append(decision.replica.key)
        self._dispatch(self._proxy.pool.take(decision.replica.address))

    def abandon(self) -> None:
        """The client has gone."""
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.abort()
        if self._hold is not None:
            self._tally.client_gone += 1
        self._let_go()

    def pause(self) -> None:
        """The client reads slowly."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._upstream is not None:
            self._upstream.resume()

    def _dispatch(self, upstream: Upstream | None) -> None:
        self._hold, self._tally = self._proxy.router.dispatch(self._replica)
        if upstream is not None:
            self._send(upstream)
        else:
            self._connecting = self._proxy.loop.create_task(self._connect())

    async def _connect(self) -> None:
        try:
            upstream = await self._proxy.pool.connect(self._replica.address)
        except TimeoutError:
            self._connecting = None
            self.broken(Failure.CONNECT, "no connection in time")
        except OSError as error:
            self._connecting = None
            if error.errno in _OUR_WANT:
                self._proxy.out_of_descriptors(error)
                self._refuse(OVERLOADED)
            else:
                self.broken(Failure.CONNECT, why_unreachable(error))
        else:
            self._connecting = None
            self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        self._upstream = upstream
        request = self._request
        head = request_head(request, self._id, str(self._replica.address), self._replica.dp_rank)
        reader = ResponseReader(bodiless=request.method == b"HEAD", dechunk=request.http_1_0)
        self._sent_s = perf_counter()
        upstream.send(self, reader, head, request.body)
        if self._client.slow:
            upstream.pause()

    # The answer

    def head(self, head: Head, body: bytes) -> None:
        """Pass the head on, with the replica's name and what came of the body with it."""
        request = self._request
        self._status = head.status
        chunked = value_of(head.headers, b"transfer-encoding") is not None
        without_end = head.until_close or (chunked and request.http_1_0)
        if without_end:
            self._cut_needs_reset = True
        self._keep_alive = request.keep_alive and not without_end and not self._proxy.stopping
        extra: list[Header] = [(b"x-ullage-replica", header_value(self._replica.id))]
        if value_of(head.headers, b"x-request-id") is None:
            extra.append((b"X-Request-Id", self._id))
        passed_on = response_head(
            head.status,
            head.reason,
            head.headers,
            extra,
            keep_alive=self._keep_alive,
            http_1_0=request.http_1_0,
            drop=_CHUNKING if request.http_1_0 else _NOTHING,
        )
        if body:
            self._count(body)
            passed_on += body
        self._client.write(passed_on)

    def data(self, data: bytes) -> None:
        """Pass a piece of the body on."""
        self._count(data)
        self._client.write(data)

    def _count(self, data: bytes) -> None:
        if self._first_byte:
            self._first_byte = False
            self._tally.first_byte_s.observe(perf_counter() - self._began_s)
        self._tally.chunks += 1
        self._tally.response_bytes += len(data)

    def finished(self) -> None:
        """All has come: the connection may serve another."""
        assert self._upstream is not None
        self._proxy.pool.give(self._upstream)
        self._proxy.router.answered(self._replica)
        self._tally.responses[self._status] += 1
        self._tally.duration_s.observe(perf_counter() - self._began_s)
        self._let_go()
        self._client.done(keep_alive=self._keep_alive)

    def broken(self, failure: Failure, problem: str) -> None:
        """The replica failed."""
        upstream, self._upstream = self._upstream, None
        self._let_go()
        if self._status:
            self._tally.cut += 1
            self._client.cut(reset=self._cut_needs_reset)
        elif failure is Failure.CLOSED and upstream is not None and self._was_idle(upstream):
            self._dispatch(None)
        else:
            self._proxy.router.failed(self._replica, failure, problem)
            self._failure = replica_failed(self._replica.id, problem)
            if len(self._tried) < _MOST_REPLICAS:
                self.start()
            else:
                self._refuse(self._failure)

    def _was_idle(self, upstream: Upstream) -> bool:
        return upstream.reused and perf_counter() - self._sent_s < _IDLE_CLOSE_S

    def _refuse(self, refusal: Refusal) -> None:
        self._let_go()
        self._proxy.router.refusals[refusal.code] += 1
        request = self._request
        keep_alive = request.keep_alive and not self._proxy.stopping and not request.http_1_0
        self._client.write(
            refusal.render(self._id, keep_alive=keep_alive, with_body=request.method != b"HEAD")
        )
        self._client.done(keep_alive=keep_alive)

    def _let_go(self) -> None:
        if self._hold is not None:
            self._hold.release()
            self._hold = None
