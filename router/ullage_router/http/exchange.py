"""One request's life: choose, send, pass the answer on; while nothing is lost, try another.

Rules
* A second replica is tried only before the first byte reaches the client, within the budget, and
  never a third. A replica that answers 503, or says so in a stream's first event, has no room: that
  counts as a try. Any other answer is the client's.
* A connection that was reused and closed at once proves nothing about the replica (it may have been
  closed as idle just then): the request goes there once more, on a new connection.
* The in-flight count is held from the decision to the last byte, whatever the end.
* While nobody has room, the first try waits (see `waiting`); a second one never does.
* A client that has gone ends the exchange at once, so that vLLM stops generating.
"""

import asyncio
from math import inf
from time import perf_counter
from typing import TYPE_CHECKING, Final

from ullage_router.core.ask import Ask
from ullage_router.core.decision import Decision, Why
from ullage_router.core.fleet import Replica
from ullage_router.core.inflight import Hold
from ullage_router.core.usage import prompt_tokens_in
from ullage_router.http.answer import Answer
from ullage_router.http.asked import asked
from ullage_router.http.errors import (
    NO_CAPACITY,
    OVERLOADED,
    STOPPED,
    STOPPING,
    Refusal,
    broken_off,
    replica_failed,
    replica_full,
    replica_late,
)
from ullage_router.http.events import FirstEvent
from ullage_router.http.listener import NO_ROOM
from ullage_router.http.message import Head, Request, request_head, shown
from ullage_router.http.turns import LARGE_BYTES
from ullage_router.http.upstream import Failure, Upstream
from ullage_router.tally import Tally
from ullage_shared.peer import why_unreachable
from ullage_shared.snapshot import RequestClass

if TYPE_CHECKING:
    from ullage_router.http.downstream import Downstream
    from ullage_router.http.proxy import Proxy

_MOST_REPLICAS: Final = 2
_IDLE_CLOSE_S: Final = 1.0
"""Seconds. A busy machine may be late to hear of it."""
_OK: Final = 200
_FULL: Final = 503
_END_BYTES: Final = 4096
"""So much of an answer is looked at for its `usage`."""


class Exchange:
    """One request and its answer."""

    _hold: Hold | None = None
    _upstream: Upstream | None = None
    _connecting: asyncio.Task[None] | None = None
    _first_event: FirstEvent | None = None
    _answer: Answer | None = None
    """What the client has been given something of: from then on, nobody else is tried."""
    _head: Head
    _ask: Ask
    _undecided = Decision(None, Why.FULL)
    """The latest word while it waits; that of others, if it never came to be asked about."""
    _replica: Replica
    _prompt_tokens: int
    _uncached: int
    _unseen_ttft_s: float | None
    _why: Why
    _tally: Tally

    def __init__(self, proxy: "Proxy", client: "Downstream", request: Request) -> None:
        self._proxy = proxy
        self._client = client
        self._request = request
        self._id = request.fields.first(b"x-request-id") or proxy.new_request_id()
        self._began_s = perf_counter()
        self._tried: list[str] = []

    def start(self) -> None:
        """Begin: at once, or when it is this one's turn."""
        if len(self._request.body) < LARGE_BYTES:
            self.begin()
        else:
            self._proxy.turns.wait(self)

    def begin(self) -> None:
        """Send the request to a replica, as soon as one has room; or refuse it."""
        proxy, request = self._proxy, self._request
        proxy.budget.request(proxy.router.now_s())
        ask = asked(request.target, request.fields, request.body, proxy.session_header)
        if isinstance(ask, Refusal):
            self.refuse(ask)
            return
        self._ask = ask
        proxy.waiting.arrive(self)

    # Called by the waiting room

    @property
    def priority(self) -> int:
        """Lower is served earlier, as vLLM has it."""
        return self._ask.priority

    @property
    def lane(self) -> tuple[str | None, RequestClass]:
        """What a replica must have headroom for: the model, if they differ, and the size."""
        need = self._proxy.router.need(self._ask)
        return need.model, need.size

    @property
    def size_bytes(self) -> int:
        """What it holds in memory; its head is small."""
        return len(self._request.body)

    def go(self) -> Why | None:
        """Choose a replica and send the request there; else: why not."""
        router, ask = self._proxy.router, self._ask
        waited_s, need = perf_counter() - self._began_s, router.need(ask)
        self._prompt_tokens = need.prompt_tokens
        decision = router.choose(ask, (), self._id, waited_s, need=need, may_wait=True)
        if decision.replica is None:
            self._undecided = decision
            return decision.why
        self._go_to(decision.replica, decision)
        return None

    def refuse(self, refusal: Refusal) -> None:
        """Answer in a replica's place."""
        self._client.due_s = inf
        self._give_back()
        self._let_go()
        router, request = self._proxy.router, self._request
        router.refusals[refusal.code] += 1
        if refusal.code == NO_CAPACITY and not self._tried:
            waited_s = perf_counter() - self._began_s
            router.decided(self._undecided, self._ask, self._id, waited_s)
        keep_alive = request.keep_alive and not self._proxy.stopping and not request.http_1_0
        with_body = request.method != b"HEAD"
        self._client.write(refusal.render(self._id, keep_alive=keep_alive, with_body=with_body))
        self._client.done(keep_alive=keep_alive)

    # Called by the client's connection

    def abandon(self) -> None:
        """The client has gone."""
        self._leave()
        upstream, self._upstream = self._upstream, None
        if self._connecting is not None:
            self._connecting.cancel()
        answer = self._answer
        if upstream is not None and answer is not None and answer.tunnel:
            upstream.leave()
            answer.count_whole()
        elif self._hold is not None:
            if upstream is not None:
                upstream.abort()
            self._tally.client_gone += 1
        self._made_room()

    def pause(self) -> None:
        """The client reads slowly."""
        if self._upstream is not None:
            self._upstream.pause()

    def resume(self) -> None:
        """The client has caught up."""
        if self._upstream is not None:
            self._upstream.resume()

    def overdue(self) -> None:
        """The answer has not begun in time."""
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.abort()
            limit_s = self._proxy.limits.first_byte_timeout_s
            self.broken(Failure.TIMEOUT, f"no answer within {limit_s:g} s")

    def stop(self) -> None:
        """The router will not wait for the rest."""
        self._leave()
        upstream, self._upstream = self._upstream, None
        answer = self._answer
        if answer is None:
            self.refuse(STOPPING)
        elif answer.tunnel:
            self._client.cut(reset=False)
        else:
            answer.break_off(STOPPED)
        if self._connecting is not None:
            self._connecting.cancel()
        if upstream is not None:
            upstream.abort()
        self._let_go()

    def _leave(self) -> None:
        """Wait no longer for anything."""
        self._proxy.turns.leave(self)
        self._proxy.waiting.leave(self)

    def _go_to(self, replica: Replica, decision: Decision) -> None:
        self._replica, self._why = replica, decision.why
        self._uncached = decision.uncached
        self._unseen_ttft_s = None if self._ask.stream else decision.ttft_s
        # A second replica gets a new connection: an old one might be just closing, too.
        upstream = None if self._tried else self._proxy.pool.take(replica.address)
        self._tried.append(replica.key)
        self._dispatch(upstream)

    def _dispatch(self, upstream: Upstream | None) -> None:
        self._hold, self._tally = self._proxy.router.dispatch(
            self._replica, self._prompt_tokens, self._uncached, self._unseen_ttft_s
        )
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
            if error.errno in NO_ROOM:
                self._proxy.out_of_descriptors(error)
                self.refuse(OVERLOADED)
            else:
                self.broken(Failure.CONNECT, why_unreachable(error))
        else:
            self._connecting = None
            self._send(upstream)

    def _send(self, upstream: Upstream) -> None:
        self._upstream = upstream
        request, replica = self._request, self._replica
        head = request_head(request, self._id, replica.address, replica.dp_rank)
        self._sent_s = perf_counter()
        if request.websocket:
            upstream.send_websocket(self, head)
        else:
            bodiless = request.method == b"HEAD"
            dechunk = request.http_1_0
            upstream.send(self, head, request.body, bodiless=bodiless, dechunk=dechunk)
        limit_s = self._proxy.limits.first_byte_timeout_s
        if limit_s:
            self._client.due_s = self._proxy.loop.time() + limit_s
        if self._client.slow:
            upstream.pause()

    # The answer

    def head(self, head: Head, body: bytes) -> None:
        """Look whether it is a refusal; else pass it on, with what came of the body with it."""
        self._head = head
        if head.status == _FULL and self._elsewhere_if_full():
            return
        if head.event_stream and self._request.method != b"HEAD":
            self._first_event = FirstEvent(chunked=head.chunked and not self._request.http_1_0)
            if body:
                self._hold_back(body)
        else:
            self._pass(body)

    def data(self, data: bytes) -> None:
        """A piece of the body: to be looked at first, or the first one, or to be rid of chunks."""
        if self._answer is not None:
            self._answer.data(data)
        else:
            self._hold_back(data)

    def finished(self) -> None:
        """All has come: the connection may serve another."""
        answer = self._answer or self._pass(self._held())
        self._learn()
        self._give_back()
        self._proxy.router.answered(self._replica, self._head.status)
        answer.count_whole()
        if self._head.status == _FULL:
            self._let_go()
        else:
            self._made_room()
        self._client.done(keep_alive=answer.keep_alive)

    def broken(self, failure: Failure, problem: str) -> None:
        """The replica failed."""
        upstream, self._upstream = self._upstream, None
        answer = self._answer
        if answer is not None:
            self._made_room()
            if answer.tunnel:
                answer.count_whole()
                self._client.cut(reset=False)
            else:
                self._proxy.router.broke_off(self._replica, problem)
                self._proxy.answer_cut(self._replica.id, self._id, problem)
                answer.break_off(broken_off(self._called, problem))
        elif failure is Failure.CLOSED and upstream is not None and self._was_idle(upstream):
            self._let_go()
            self._dispatch(None)
        else:
            self._first_event = None
            self._proxy.router.failed(self._replica, failure, problem, shown(self._id))
            late = failure is Failure.TIMEOUT
            refusal = (replica_late if late else replica_failed)(self._called, problem.rstrip("."))
            why_not = self._elsewhere(server_gone=not late)
            if why_not is not None:
                full = why_not is Why.FULL
                self.refuse(self._proxy.waiting.second_try_refused() if full else refusal)

    # In a tunnel

    def replica_slow(self) -> None:
        """So must its client send."""
        if self._answer is not None and self._answer.tunnel:
            self._client.pause_reading(paused=True)

    def replica_caught_up(self) -> None:
        """No longer."""
        if self._answer is not None and self._answer.tunnel:
            self._client.pause_reading(paused=False)

    def from_client(self, data: bytes) -> None:
        """What the client sent."""
        if self._upstream is not None:
            self._upstream.write(data)

    # Refusals

    def _hold_back(self, body: bytes) -> None:
        event = self._first_event
        assert event is not None
        if not event.feed(body):
            return
        problem = event.refusal
        if problem is None:
            self._pass(self._held())
        elif not self._elsewhere_if_full():
            self._tally.failures[Failure.FULL] += 1
            self.refuse(replica_full(self._called, problem))

    def _held(self) -> bytes:
        event, self._first_event = self._first_event, None
        return b"" if event is None else bytes(event.raw)

    def _elsewhere_if_full(self) -> bool:
        """The replica has no room. Has another?"""
        self._proxy.router.full(self._replica)
        tally = self._tally
        if self._elsewhere() is not None:
            return False
        tally.failures[Failure.FULL] += 1
        return True

    @property
    def _called(self) -> str:
        """The replica, as the client may know it."""
        return f"Replica {self._replica.id}" if self._proxy.name_replica else "A replica"

    def _elsewhere(self, *, server_gone: bool = False) -> Why | None:
        """Try another replica, if there is one and the budget allows; else: why not.

        The other ranks of a server that is gone are no way out, unless there is no other server.
        """
        router, budget = self._proxy.router, self._proxy.budget
        replicas, tried = router.fleet.replicas, set(self._tried)
        if len(tried) >= _MOST_REPLICAS or replicas.keys() <= tried:
            return Why.NO_REPLICA
        if server_gone and self._replica.dp_rank is not None:
            with_it = {key for key, replica in replicas.items() if replica.url == self._replica.url}
            tried = tried if replicas.keys() <= with_it else with_it
        now_s = router.now_s()
        if not budget.allows(now_s):
            router.tries_denied += 1
            return Why.NO_REPLICA
        decision = router.choose(self._ask, tried, self._id)
        if decision.replica is None:
            return decision.why
        budget.spend(now_s)
        router.second_tries += 1
        self._first_event = None
        self._give_back()
        self._let_go()
        self._go_to(decision.replica, decision)
        return None

    # The ends

    def _pass(self, body: bytes) -> Answer:
        """Give the client the answer, from here on as it comes."""
        proxy, request, upstream = self._proxy, self._request, self._upstream
        assert upstream is not None
        client = self._client
        client.due_s = inf
        request.body = b""  # It will not be sent again.
        if self._hold is not None:
            self._hold.begun()
        answer = Answer(client, upstream, self._tally, self._head, request, self._began_s)
        self._answer = answer
        if proxy.stopping:
            answer.keep_alive = False
        replica = self._replica.id if proxy.name_replica else None
        answer.begin(request, self._id, replica, self._why if proxy.name_why else None, body)
        return answer

    def _learn(self) -> None:
        """How many tokens the prompt had, if the answer says so."""
        upstream, ask, tokens = self._upstream, self._ask, self._proxy.router.tokens
        if upstream is None or self._head.status != _OK or not tokens.wants(ask.prompt_bytes):
            return
        prompt_tokens = prompt_tokens_in(upstream.tail[-_END_BYTES:])
        if prompt_tokens is not None:
            tokens.learn(ask.model, ask.prompt_bytes, prompt_tokens)

    def _was_idle(self, upstream: Upstream) -> bool:
        """Had the replica closed the connection before it saw the request?"""
        unseen = upstream.reused and upstream.silent
        return unseen and perf_counter() - self._sent_s < _IDLE_CLOSE_S

    def _give_back(self) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            self._proxy.pool.give(upstream)

    def _let_go(self) -> None:
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.release()

    def _made_room(self) -> None:
        """Let go of a replica that worked on this until now. (A try that failed made no room.)"""
        if self._hold is not None:
            self._proxy.waiting.ended()
            self._let_go()
