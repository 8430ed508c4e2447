"""What a client gets of a replica's answer, once it has been decided to pass it on.

Rules
* The head goes out with the first of the body in one write; the rest passes by itself where it can.
* An answer that breaks off never looks whole; a stream of events says why, in a last event.
* Behind a change of protocol there is no answer any more but a tunnel: bytes both ways, unread.
"""

from time import perf_counter
from typing import TYPE_CHECKING

from ullage_router.http.errors import Refusal
from ullage_router.http.message import Head, Request, answer_head
from ullage_router.http.upstream import Upstream
from ullage_router.tally import Tally

if TYPE_CHECKING:
    from ullage_router.http.downstream import Downstream


class Answer:
    """One answer on its way."""

    __slots__ = (
        "_body_began",
        "_client",
        "_ends_by_close",
        "_head",
        "_passes_unseen",
        "_request_began_s",
        "_tally",
        "_upstream",
        "keep_alive",
        "tunnel",
    )

    def __init__(
        self,
        client: "Downstream",
        upstream: Upstream,
        tally: Tally,
        head: Head,
        request: Request,
        request_began_s: float,
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._tally = tally
        self._head = head
        self._request_began_s = request_began_s
        self._body_began = False
        self._passes_unseen = not request.http_1_0 and (head.chunked or head.until_close)
        self._ends_by_close = head.until_close or (head.chunked and request.http_1_0)
        """Is the end of the connection the only end that the client's answer has?"""
        self.keep_alive = request.keep_alive and not self._ends_by_close
        """May the client's connection carry another request?"""
        self.tunnel = head.switched

    def begin(
        self, request: Request, request_id: bytes, replica: str | None, why: str | None, body: bytes
    ) -> None:
        """Send the head, and what there is of the body. `replica` and `why`: if they are to be
        told."""
        begun = answer_head(
            self._head, request, request_id, replica, why, keep_alive=self.keep_alive
        )
        if body:
            self._count(body)
            begun += body
        self._client.write(begun)
        if self.tunnel:
            self._upstream.tunnel(self._client.writer, self._tally)
            self._client.tunnel()

    def data(self, data: bytes) -> None:
        """A piece of the body: the first one, one of known length, or one rid of its chunks."""
        self._count(data)
        self._client.write(data)

    def count_whole(self) -> None:
        """All of it has come."""
        self._tally.responses[self._head.status] += 1
        self._tally.duration_s.observe(perf_counter() - self._request_began_s)

    def break_off(self, why: Refusal) -> None:
        """No more of it will come: end it so that nobody takes it for a whole one."""
        self._tally.cut += 1
        events = self._head.event_stream and not self._ends_by_close
        if events and self._upstream.between_events():
            event = b"data: " + why.body + b"\n\n"
            self._client.write(b"%x\r\n%s\r\n" % (len(event), event))
        self._client.cut(reset=self._ends_by_close)

    def _count(self, data: bytes) -> None:
        tally = self._tally
        if not self._body_began:
            self._body_began = True
            tally.first_byte_s.observe(perf_counter() - self._request_began_s)
            if self._passes_unseen:
                self._upstream.pass_on(self._client.writer, tally)
        tally.chunks += 1
        tally.response_bytes += len(data)
