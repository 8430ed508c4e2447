"""Replicas that refuse, by status or by a stream's first event; and streams that never begin."""

from conformance.checks import (
    body,
    field,
    on_two_replicas,
    openai_error,
    status,
    stays_open,
    times,
    whole,
)
from conformance.promise import (
    ASK_STREAM,
    DONE,
    LAST,
    LLM,
    REPLY,
    WELL,
    Row,
    Script,
    Seen,
    Then,
    chunk,
    event,
    post,
    says,
    stream,
    tries,
)
from conformance.promises.failures import ERROR, answers_no

WELL_STREAM = stream() + chunk(event(1)) + chunk(DONE) + LAST


def says_no(code: int) -> Script:
    """A stream whose first event is vLLM's error."""
    return says(stream(), chunk(b"data: " + ERROR % code + b"\n\n") + chunk(DONE) + LAST)


def served_or_cut(seen: Seen) -> str | None:
    """Never a part that looks whole, and never two parts in one."""
    answer = seen.answers[0]
    if answer.flaw:
        return "[DONE]" if DONE in answer.body else None
    return None if answer.body == event(1) + DONE else f"other body: {answer.body[:40]!r}"


ROWS = (
    Row(
        name="A replica's 503 sends the request to another one.",
        source="README; a replica that is full or stops",
        sends=(post(),),
        replica=tries(answers_no(503, b"Service Unavailable"), WELL),
        client=(status(200), body(REPLY), stays_open),
        upstream=(on_two_replicas,),
        peers=LLM,
    ),
    Row(
        name="503 of both is passed on as it is, after two sends.",
        source="report 15",
        sends=(post(),),
        replica=answers_no(503, b"Service Unavailable"),
        client=(status(503), body(ERROR % 503), field(b"retry-after", b"7"), stays_open),
        upstream=(times(1, 2),),
        ours=(times(2),),
        peers=LLM,
    ),
    Row(
        name="A stream that begins with a 503 event sends the request to another replica.",
        source="peers.md: found in none; vLLM says so with 200",
        sends=(post(ASK_STREAM),),
        replica=tries(says_no(503), says(WELL_STREAM)),
        client=(status(200), body(event(1) + DONE), whole, stays_open),
        upstream=(on_two_replicas,),
        peers=LLM,
    ),
    Row(
        name="If both begin so, the client gets a real 503.",
        source="peers.md: found in none",
        sends=(post(ASK_STREAM),),
        replica=says_no(503),
        client=(status(503), openai_error(), stays_open),
        ours=(times(2),),
        peers=LLM,
    ),
    Row(
        name="A stream that begins with a 400 event is the client's as it is.",
        source="report 16",
        sends=(post(ASK_STREAM),),
        replica=says_no(400),
        client=(
            status(200),
            body(b"data: " + ERROR % 400 + b"\n\n" + DONE),
            whole,
            stays_open,
        ),
        upstream=(times(1),),
    ),
    Row(
        name="A stream that dies before its first event: another replica serves.",
        source="report 15",
        sends=(post(ASK_STREAM),),
        replica=tries(says(stream(), Then.PAUSE, Then.CLOSE), says(WELL_STREAM)),
        client=(status(200), body(event(1) + DONE), whole, stays_open),
        upstream=(on_two_replicas,),
        peers=LLM,
    ),
    Row(
        name="A stream that dies within its first event: another replica serves, or it is cut.",
        source="report 15",
        sends=(post(ASK_STREAM),),
        replica=tries(
            says(stream(), chunk(event(1)[:20]), Then.PAUSE, Then.CLOSE), says(WELL_STREAM)
        ),
        client=(served_or_cut,),
    ),
)
