"""The words in which a row says what must be seen."""

from collections.abc import Iterable

import orjson

from conformance.arrival import CUT
from conformance.promise import Check, Seen

# At the client.


def status(*wanted: int) -> Check:
    """The statuses of all answers, in order."""

    def check(seen: Seen) -> str | None:
        for answer in seen.answers:
            if answer.flaw and not answer.status:
                return answer.flaw
        got = [answer.status for answer in seen.answers]
        return None if got == list(wanted) else f"status {_list(got)}"

    return check


def whole(seen: Seen) -> str | None:
    """Every answer came to its end."""
    return next((answer.flaw for answer in seen.answers if answer.flaw), None)


def cut(seen: Seen) -> str | None:
    """The last answer came without its end, and says so by its framing."""
    return None if seen.answers[-1].flaw else "it looks whole"


def body(*wanted: bytes) -> Check:
    """The bodies of all answers, in order."""

    def check(seen: Seen) -> str | None:
        got = [answer.body for answer in seen.answers]
        if got == list(wanted):
            return None
        wrong = next((g for g, w in zip(got, wanted, strict=False) if g != w), b"")
        return f"other body: {wrong[:50]!r}"

    return check


def field(name: bytes, *values: bytes) -> Check:
    """The last answer has exactly these values of a field; none: it is not there."""

    def check(seen: Seen) -> str | None:
        got = seen.answers[-1].all(name)
        return None if got == list(values) else f"{name.decode()}: {_list(got)}"

    return check


def has(name: bytes) -> Check:
    """The last answer has this field, once."""

    def check(seen: Seen) -> str | None:
        return None if len(seen.answers[-1].all(name)) == 1 else f"no {name.decode()}"

    return check


def framed(*how: str) -> Check:
    """How the last answer's body is delimited: one of these."""

    def check(seen: Seen) -> str | None:
        framing = seen.answers[-1].framing
        return None if framing in how else f"framed by: {framing}"

    return check


def openai_error(code: str | None = None) -> Check:
    """The last answer is an error in OpenAI's form."""

    def check(seen: Seen) -> str | None:
        answer = seen.answers[-1]
        if answer.error is None or answer.all(b"content-type") != [b"application/json"]:
            return f"not OpenAI's form: {answer.body[:40]!r}"
        if code is not None and answer.error["code"] != code:
            return f"code {answer.error['code']}"
        return None

    return check


def refused(*statuses: int) -> Check:
    """The last answer is one of these, in OpenAI's form."""

    def check(seen: Seen) -> str | None:
        got = seen.answers[-1]
        if got.status not in statuses:
            return got.flaw or f"status {got.status}"
        return openai_error()(seen)

    return check


def closed(seen: Seen) -> str | None:
    """The proxy has closed the client's connection in good order."""
    return None if seen.end == "closed" else f"connection {seen.end or 'left open'}"


def stays_open(seen: Seen) -> str | None:
    """The client's connection carries a further request."""
    return seen.reusable or None


# At the replica.


def nothing(seen: Seen) -> str | None:
    """No replica saw any of it."""
    return f"the replica saw {_first(seen)}" if seen.requests else None


def times(*wanted: int) -> Check:
    """How many requests the replicas saw: one of these numbers."""

    def check(seen: Seen) -> str | None:
        return None if len(seen.requests) in wanted else f"sent {len(seen.requests)} times"

    return check


def clean(seen: Seen) -> str | None:
    """What a replica saw has one meaning only. A request cut short has none, and does no harm."""
    flaws = [request.flaw for request in seen.requests if request.flaw not in ("", CUT)]
    return f"the replica saw: {flaws[0]}" if flaws else None


def meant(*bodies: bytes) -> Check:
    """The replicas saw nothing, or clean requests with these bodies, and no further ones."""

    def check(seen: Seen) -> str | None:
        if (wrong := clean(seen)) is not None:
            return wrong
        got = [_meaning(request.body) for request in seen.requests if not request.flaw]
        wanted = [_meaning(each) for each in bodies]
        return None if got in ([], wanted) else f"the replica saw {_first(seen)}"

    return check


def _meaning(body: bytes) -> object:
    """A question's messages, since some proxies write its JSON anew; else the bytes."""
    try:
        return orjson.loads(body)["messages"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return body


def targets(*wanted: bytes) -> Check:
    """The targets of all requests, in order."""

    def check(seen: Seen) -> str | None:
        if (wrong := clean(seen)) is not None:
            return wrong
        got = [request.target for request in seen.requests]
        return None if got == list(wanted) else f"target {_list(got)}"

    return check


def method(wanted: bytes) -> Check:
    """The method of the one request."""

    def check(seen: Seen) -> str | None:
        got = [request.method for request in seen.requests]
        return None if got == [wanted] else f"method {_list(got)}"

    return check


def arrived(*bodies: bytes) -> Check:
    """The bodies of all requests, byte for byte, in order."""

    def check(seen: Seen) -> str | None:
        if (wrong := clean(seen)) is not None:
            return wrong
        got = [request.body for request in seen.requests]
        if got == list(bodies):
            return None
        if len(got) != len(bodies):
            return f"{len(got)} requests arrived"
        wrong_body = next(g for g, w in zip(got, bodies, strict=True) if g != w)
        return f"rewritten: {wrong_body[:60]!r}"

    return check


def brings(name: bytes, *values: bytes) -> Check:
    """The last request has exactly these values of a field; none: it is not there."""

    def check(seen: Seen) -> str | None:
        if not seen.requests:
            return "nothing arrived"
        got = seen.requests[-1].all(name)
        return None if got == list(values) else f"{name.decode()}: {_list(got)}"

    return check


def lacks(*names: bytes) -> Check:
    """None of these fields is in any request."""

    def check(seen: Seen) -> str | None:
        if not seen.requests:
            return "nothing arrived"
        there = {n for request in seen.requests for n in names if request.all(n)}
        return f"forwarded: {_list(sorted(there))}" if there else None

    return check


def on_two_replicas(seen: Seen) -> str | None:
    """Two requests, each at a replica of its own."""
    got = [request.replica for request in seen.requests]
    if len(got) != 2:
        return f"sent {len(got)} times"
    return None if sorted(got) == [0, 1] else "sent to the same replica again"


def _list(items: Iterable[object]) -> str:
    shown = [item.decode("latin-1") if isinstance(item, bytes) else str(item) for item in items]
    return ", ".join(shown)[:70] or "none"


def _first(seen: Seen) -> str:
    request = seen.requests[0]
    more = f" and {len(seen.requests) - 1} more" if len(seen.requests) > 1 else ""
    if request.flaw and request.flaw != CUT:
        return request.flaw + more
    line = (request.method + b" " + request.target).decode("latin-1")
    return f"{line[:40]}, {len(request.body)} bytes{', cut' if request.flaw else ''}{more}"
