"""What became of one request, kept for those who want to be told: the access log, and traces.

Where nobody does, requests run as `Exchange`, and nothing here is in their way. Else they run as
`ToldExchange`, which is the same and takes notes at its turning points; bytes pass through one more
call each.

Rule: each request is told once, when it has ended, however it ended.
"""

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from time import perf_counter
from typing import TYPE_CHECKING, Final, Protocol, cast

import msgspec

from ullage_router.core.decision import Decision
from ullage_router.core.fleet import Replica
from ullage_router.http.answer import Answer
from ullage_router.http.errors import Refusal
from ullage_router.http.exchange import Exchange
from ullage_router.http.message import MOST_SHOWN, Request, shown, split_target
from ullage_router.http.upstream import Failure

if TYPE_CHECKING:
    from ullage_router.http.downstream import Downstream
    from ullage_router.http.proxy import Proxy

TRACEPARENT: Final = b"traceparent"
TRACESTATE: Final = b"tracestate"
NOTED: Final = frozenset({TRACEPARENT, TRACESTATE})
"""Fields whose values stories are about."""
_REQUEST_ID: Final = b"x-request-id"
_TRACE: Final = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}.*", re.DOTALL)


class End(StrEnum):
    """How a request ended, where the router did not refuse it; then it is the refusal's code."""

    WHOLE = "whole"
    CUT = "cut"
    """Its replica broke off in the midst of the answer."""
    CLIENT_GONE = "client_gone"
    STOPPED = "stopped"
    """The router would not wait for the rest."""


class Story(msgspec.Struct):
    """One request's."""

    request_id: str | None = None
    client: str | None = None
    """Its IP address, as this router sees it: with a proxy before, that one's."""
    method: str | None = None
    path: str | None = None
    """Without its query, which may hold a key. None, as those above: what came was no request."""
    trace_id: str | None = None
    """32 hexadecimal digits, where the client sent a `traceparent` or a span was begun."""
    model: str | None = None
    prompt_tokens: int | None = None
    """Estimated."""
    replica: str | None = None
    """The last that it was sent to."""
    why: str | None = None
    score: float | None = None
    waited_s: float = 0.0
    """In the queue, before its first try; where it had none, until it ended."""
    tries: int = 0
    status: int | None = None
    """What the client was told; None: nothing."""
    end: str = ""
    sent_bytes: int = 0
    """To the client, head included."""
    ttft_s: float | None = None
    """From the whole request to the first byte of a replica's answer; None: there was none."""
    duration_s: float = 0.0


class Witness(Protocol):
    """Who wants to be told."""

    def begins(self, story: Story, request: Request | None) -> Callable[[Story], None]:
        """A request begins; None: what came was none. What is returned is called once, at its end.

        `request.fields` may be replaced.
        """


def story_of(request: Request, request_id: bytes | None) -> Story:
    """How every story of a request begins."""
    path = split_target(request.target)[1].partition(b"?")[0]
    named = None if request_id is None else shown(request_id)
    client, method = shown(request.client), shown(request.method)
    return Story(named, client, method, shown(path), trace_id=trace_in(request))


def tell_short(
    witnesses: Iterable[Witness],
    client: bytes,
    request: Request | None,
    status: int,
    end: str,
    sent_bytes: int,
) -> None:
    """Of what the router answers itself, at once."""
    story = Story() if request is None else story_of(request, request.fields.first(_REQUEST_ID))
    story.client, story.status, story.end = shown(client), status, end
    story.sent_bytes = sent_bytes
    for tell in [each.begins(story, request) for each in witnesses]:
        tell(story)


def trace_in(request: Request) -> str | None:
    """The trace that the client says its request belongs to."""
    said = request.fields.first(TRACEPARENT)
    found = _TRACE.fullmatch(said) if said else None
    return found[1].decode() if found else None


class ToldExchange(Exchange):
    """An exchange that takes notes."""

    def __init__(self, proxy: "Proxy", client: "Downstream", request: Request) -> None:
        self._counted = _Counted(client)
        super().__init__(proxy, cast("Downstream", self._counted), request)
        self._story = story_of(request, self._id)
        self._tellers = [each.begins(self._story, request) for each in proxy.witnesses]

    def _go_to(self, replica: Replica, decision: Decision) -> None:
        story = self._story
        if not story.tries:
            story.waited_s = perf_counter() - self._began_s
        story.tries += 1
        story.replica, story.why, story.score = replica.id, decision.why, decision.score
        super()._go_to(replica, decision)

    def _pass(self, body: bytes) -> Answer:
        self._story.ttft_s = perf_counter() - self._began_s
        self._story.status = self._head.status
        return super()._pass(body)

    # The ends

    def finished(self) -> None:
        """All has come."""
        if self._answer is None:
            self._pass(self._held())
        self._tell(End.WHOLE)
        super().finished()

    def refuse(self, refusal: Refusal) -> None:
        """Answer in a replica's place."""
        self._story.status = refusal.status
        super().refuse(refusal)
        self._tell(refusal.code)

    def broken(self, failure: Failure, problem: str) -> None:
        """The replica failed: that may be the end, or not."""
        answer = self._answer
        super().broken(failure, problem)
        if answer is not None:
            self._tell(End.WHOLE if answer.tunnel else End.CUT)

    def abandon(self) -> None:
        """The client has gone."""
        answer = self._answer
        super().abandon()
        self._tell(End.WHOLE if answer is not None and answer.tunnel else End.CLIENT_GONE)

    def stop(self) -> None:
        """The router will not wait for the rest."""
        super().stop()
        self._tell(End.STOPPED)

    def _tell(self, end: str) -> None:
        tellers, self._tellers = self._tellers, []
        if not tellers:
            return
        story, ask = self._story, getattr(self, "_ask", None)
        if ask is not None:
            story.model = None if ask.model is None else ask.model[:MOST_SHOWN]
            story.prompt_tokens = self._proxy.router.prompt_tokens(ask)
        story.end = end
        story.sent_bytes = self._counted.sent_bytes
        story.duration_s = perf_counter() - self._began_s
        if ask is not None and not story.tries:
            story.waited_s = story.duration_s
        for tell in tellers:
            tell(story)


class _Counted:
    """A client, and how much it was sent."""

    def __init__(self, client: "Downstream") -> None:
        self.sent_bytes = 0
        self._client = client
        self.done = client.done
        self.cut = client.cut
        self.tunnel = client.tunnel
        self.pause_reading = client.pause_reading

    @property
    def slow(self) -> bool:
        return self._client.slow

    @property
    def due_s(self) -> float:
        return self._client.due_s

    @due_s.setter
    def due_s(self, due_s: float) -> None:
        self._client.due_s = due_s

    @property
    def writer(self) -> Callable[[bytes], None]:
        write = self._client.writer

        def counted(data: bytes) -> None:
            self.sent_bytes += len(data)
            write(data)

        return counted

    def write(self, data: bytes) -> None:
        self.sent_bytes += len(data)
        self._client.write(data)
