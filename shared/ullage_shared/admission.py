"""Who may ask a sidecar or an aggregator over the network: whoever shows a token, a certificate, or
both; by default everybody.

Rules
* With a token every path wants it, those that do not exist as well: 401, and not a word of what is
  there. `/healthz` alone answers without, for load balancers ask it, and then says nothing but that
  the process runs.
* Without one nothing is looked at.
* A certificate is wanted of every connection, for `/healthz` too: the handshake settles it.
"""

import ssl
from collections.abc import Awaitable, Callable
from typing import Annotated, Final, NamedTuple

import msgspec
from aiohttp import web
from msgspec import Meta

from ullage_shared.config import at_once
from ullage_shared.secret import Secret, accepted, opens, private
from ullage_shared.tls import listening

HEALTH: Final = "/healthz"


class Access(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[access]`."""

    token: Annotated[
        str,
        Meta(
            description="File with the token that whoever asks must send (`Authorization: "
            "Bearer`), 16 characters or more; of several, one to a line, each opens. Not readable "
            "by everybody. Empty: everybody may ask. `/healthz` wants none."
        ),
    ] = ""


class Tls(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`[tls]`, of whoever serves snapshots."""

    certificate: Annotated[
        str,
        Meta(
            description="PEM file with the certificate chain to serve `listen` with. Empty: plain "
            "HTTP."
        ),
    ] = ""
    key: Annotated[
        str,
        Meta(
            description="PEM file with its private key, not readable by everybody. Empty: it is in "
            "`certificate`."
        ),
    ] = ""
    client_ca: Annotated[
        str,
        Meta(
            description="PEM file with the authorities of which whoever asks must show a "
            "certificate (mTLS, by TLS 1.3). Empty: nobody must."
        ),
    ] = ""


class Admission(NamedTuple):
    """What the files hold."""

    tokens: tuple[Secret, ...] = ()
    """Each opens; empty: everybody may ask."""
    tls: ssl.SSLContext | None = None
    """None: plain HTTP."""


def read(access: Access, tls: Tls) -> Admission:
    """Read and check all files. Raises `ConfigError`, with all that is wrong."""
    with at_once() as each:
        with each():
            tokens = accepted("access.token", access.token)
        with each():
            if tls.key:
                private("tls.key", tls.key)
            context = listening(tls.certificate, tls.key, tls.client_ca)
    return Admission(tokens, context)


def told(access: Access, tls: Tls) -> str:
    """Who may ask, in words."""
    ways = []
    if tls.certificate:
        ways.append("TLS, with a certificate of theirs" if tls.client_ca else "TLS")
    if access.token:
        ways.append("with a token")
    return f" ({', '.join(ways)})" if ways else ""


def guard(app: web.Application, tokens: Callable[[], tuple[Secret, ...]]) -> None:
    """Have an app answer only those who show a token. `tokens`: those that open now."""

    @web.middleware
    async def with_token(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        said = request.headers.getall("Authorization", [])
        if opens(tokens(), said[0] if len(said) == 1 else None):
            return await handler(request)
        if request.path == HEALTH:
            return web.Response(text="runs\n")
        return web.Response(
            status=401, text="wanted a token\n", headers={"WWW-Authenticate": "Bearer"}
        )

    app.middlewares.append(with_token)
