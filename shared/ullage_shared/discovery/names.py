"""Sources that are DNS names, asked of the resolvers of `/etc/resolv.conf`.

A and AAAA records are asked for together, and both must be answered: else what was known of one
family would go because its question was lost. Of SRV records priority and weight are ignored: all
targets are asked. `/etc/hosts` is not looked into, for it gives no time to live.
"""

from dataclasses import dataclass
from typing import Final

from dns import asyncresolver, exception, rdatatype, resolver

from ullage_shared.address import AddressError
from ullage_shared.discovery.listed import Found
from ullage_shared.discovery.source import Kind, Source, url_of

WITHIN_S: Final = 3.0
LEAST_S, MOST_S = 5.0, 300.0
"""An answer holds for its time to live, but so long at least, and at most."""
RETRY_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class Told:
    """An answer, and for how many seconds it holds."""

    found: Found | str
    holds_s: float


async def ask(source: Source, asked: asyncresolver.Resolver | None = None) -> Told:
    """Look the name up once. Whatever comes of it, nothing is raised. `asked`: None: `system`'s,
    made each time.
    """
    kinds = ["SRV"] if source.kind is Kind.SRV else ["A", "AAAA"]
    try:
        asked = asked or system()
        answers = [await _records(asked, source.where, kind) for kind in kinds]
    except exception.DNSException as error:
        return Told(f"{source.where}: {_why(error)}", RETRY_S)
    except OSError as error:
        return Told(f"{source.where}: {error.strerror or error}", RETRY_S)
    there = [answer for answer in answers if answer is not None and answer.rrset is not None]
    if not there:
        return Told(Found(()), RETRY_S)
    ttl_s = min(answer.rrset.ttl for answer in there if answer.rrset is not None)
    return Told(_found(source, there), min(max(LEAST_S, ttl_s), MOST_S))


def system() -> asyncresolver.Resolver:
    """One that asks whom `/etc/resolv.conf` names now. Raises `DNSException`."""
    return asyncresolver.Resolver()


async def _records(asked: asyncresolver.Resolver, name: str, kind: str) -> resolver.Answer | None:
    """None: there are no such records. Raises `DNSException`, `OSError`."""
    try:
        return await asked.resolve(name, kind, search=True, lifetime=WITHIN_S)
    except (resolver.NXDOMAIN, resolver.NoAnswer):
        return None


def _found(source: Source, answers: list[resolver.Answer]) -> Found:
    urls: dict[str, None] = {}
    refused, withdrawn = [], False
    for answer in answers:
        for record in answer:
            if record.rdtype == rdatatype.SRV:
                host, port = record.target.to_text(omit_final_dot=True), record.port
                if host == ".":  # Who says so has no such service (RFC 2782).
                    withdrawn = True
                    continue
            else:
                host, port = record.address, source.port
            try:
                urls[url_of(source.scheme, host, port)] = None
            except AddressError as error:
                refused.append(str(error))
    # Resolvers turn the records round at each answer; that is no change.
    return Found(tuple(sorted(urls)), tuple(refused), meant=withdrawn and not urls)


def _why(error: exception.DNSException) -> str:
    if isinstance(error, exception.Timeout):
        return f"no answer from DNS within {WITHIN_S:g} s"
    if isinstance(error, resolver.NoNameservers):
        return "every name server failed"
    return " ".join(str(error).split()) or type(error).__name__
