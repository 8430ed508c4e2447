"""A name server on the loopback that answers what a test sets, over UDP."""

import asyncio
from typing import Self, cast

from dns import asyncresolver, flags, message, rcode, rdatatype, rrset

from ullage_shared.address import Address


class DnsServer:
    """Answers from `records`, by name and type; a context."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 60
        self.fails: set[str] = set()
        """Types to which it says SERVFAIL."""
        self.silent = False
        self.asked: list[tuple[str, str]] = []

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: _Protocol(self), ("127.0.0.1", 0)
        )
        host, port = self._transport.get_extra_info("sockname")
        self.address = Address(host, port)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._transport.close()

    def resolver(self) -> asyncresolver.Resolver:
        """One that asks this server and no other."""
        resolver = asyncresolver.Resolver(configure=False)
        resolver.nameservers, resolver.port = [self.address.host], self.address.port
        return resolver

    def answer(self, asked: bytes) -> bytes | None:
        """None: not a word."""
        query = message.from_wire(asked)
        name, kind = query.question[0].name, rdatatype.to_text(query.question[0].rdtype)
        text = name.to_text(omit_final_dot=True)
        self.asked.append((text, kind))
        if self.silent:
            return None
        answer = message.make_response(query)
        answer.flags |= flags.RA
        records = self.records.get((text, kind))
        if kind in self.fails:
            answer.set_rcode(rcode.SERVFAIL)
        elif records:
            answer.answer.append(rrset.from_text(name, self.ttl_s, "IN", kind, *records))
        elif not any(known == text for known, _ in self.records):
            answer.set_rcode(rcode.NXDOMAIN)
        return answer.to_wire()


class _Protocol(asyncio.DatagramProtocol):
    def __init__(self, server: DnsServer) -> None:
        self._server = server

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if answer := self._server.answer(data):
            self._transport.sendto(answer, addr)
