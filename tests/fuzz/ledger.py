"""Who sent which request: a token in each, that must come back in its own answer alone."""

from dataclasses import dataclass, field

import strict

TOKEN_BYTES = 16


@dataclass(frozen=True)
class Asked:
    """A request that some client sent."""

    client: int
    target: bytes
    body: bytes
    as_is: bool
    """It was sent as it is here, without faults."""


@dataclass
class Ledger:
    """All that was asked, and what was seen that must not be."""

    asked: dict[bytes, Asked] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def enter(self, asked: Asked) -> bytes:
        """Note a request; returns its token."""
        token = b"t%0*d" % (TOKEN_BYTES - 1, len(self.asked))
        self.asked[token] = asked
        return token

    def arrived(self, request: strict.Message, left_over: bytes) -> bytes:
        """A replica was sent this; returns its token, empty if it has none."""
        if left_over:
            self.wrong.append(f"more than one request at once: {left_over!r}")
        tokens = request.all(b"x-token")
        asked = self.asked.get(tokens[0]) if len(tokens) == 1 else None
        if asked is not None and asked.as_is:
            sent = (asked.target, asked.body)
            if (request.start[1], request.content) != sent:
                self.wrong.append(f"{tokens[0]!r} arrived as {request}")
        return tokens[0] if tokens else b""

    def answered(self, client: int, answer: strict.Message) -> None:
        """A client was sent this."""
        named = answer.all(b"x-token")
        content = answer.content[:TOKEN_BYTES]
        for token in {*named, *({content} if content in self.asked else ())}:
            asked = self.asked.get(token)
            if asked is not None and asked.client != client:
                self.wrong.append(f"client {client} got the answer to {token!r} of {asked.client}")
        known = len(named) == 1 and named[0] in self.asked and content in self.asked
        if known and content != named[0]:
            self.wrong.append(f"the head of {named[0]!r} came with the body of {content!r}")
