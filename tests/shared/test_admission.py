"""Who may ask: tokens and certificates between aggregator, router and sidecars, by real sockets."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

import ullage_router.config as of_router
from aggregators import aggregator
from certificates import Authority
from data_plane import eventually
from guarded import HEADER, TOKEN, issued, token_file
from serving import serving
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_shared.aggregator.config import Access, Tls
from ullage_shared.snapshot import LINES_TYPE

A = "http://127.0.0.1:1"
PATHS = ("/v1/snapshots", "/v1/snapshots?watch", "/metrics", "/", "/v1/nothing", "/healthz/x")


@pytest.fixture(scope="module")
def ours() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def theirs() -> Authority:
    return Authority()


@pytest.fixture
async def one() -> AsyncIterator[SidecarStandIn]:
    async with SidecarStandIn(document(snapshot(A))) as sidecar:
        yield sidecar


async def get(
    url: str, said: str | None = None, tls: ssl.SSLContext | bool = True
) -> tuple[int, str, Any]:
    """Status, head of the body and headers."""
    headers = {} if said is None else {"Authorization": said}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=tls) as answer,
    ):
        return answer.status, (await answer.content.readany()).decode(), answer.headers


async def test_without_a_token_no_path_says_anything_and_the_health_check_only_that_it_runs(
    one: SidecarStandIn, tmp_path: Path
) -> None:
    access = Access(token=token_file(tmp_path))
    async with aggregator(one.url, access=access) as agg:
        answers = [
            await get(agg.url + path, said)
            for path in PATHS
            for said in (None, "Bearer " + TOKEN[:-1], f"Basic {TOKEN}", "")
        ]
        assert {(status, body) for status, body, _ in answers} == {(401, "wanted a token\n")}
        assert {headers["WWW-Authenticate"] for _, _, headers in answers} == {"Bearer"}
        assert (await get(f"{agg.url}/healthz"))[:2] == (200, "runs\n")
        assert '"sidecars":1' in (await get(f"{agg.url}/healthz", HEADER))[1]
        assert (await get(f"{agg.url}/v1/nothing", HEADER))[0] == 404
        assert A in (await get(f"{agg.url}/v1/snapshots", HEADER))[1]
        status, first, headers = await get(f"{agg.url}/v1/snapshots?watch", HEADER)
        assert (status, headers["Content-Type"]) == (200, LINES_TYPE)
        assert A in first


async def test_without_a_token_in_the_configuration_nothing_is_looked_at(
    one: SidecarStandIn,
) -> None:
    async with aggregator(one.url) as agg:
        assert (await get(f"{agg.url}/v1/snapshots", "Bearer nonsense"))[0] == 200
        assert '"sidecars":1' in (await get(f"{agg.url}/healthz"))[1]


async def test_a_router_with_the_token_watches_and_one_without_says_what_is_wrong(
    one: SidecarStandIn, tmp_path: Path
) -> None:
    file = token_file(tmp_path)
    async with aggregator(one.url, access=Access(token=file)) as agg:
        config = of_router.Config(sidecars=(agg.url,), access=of_router.Access(sidecar_token=file))
        async with serving(config) as router:
            page = await router.page("/replicas")
            assert [row["url"] for row in page["replicas"]] == [A]
            assert [(s["watched"], s["problem"]) for s in page["sidecars"]] == [(True, "")]
        async with serving(of_router.Config(sidecars=(agg.url,))) as router:
            page = await router.page("/replicas")
            assert page["replicas"] == []
            (sidecar,) = page["sidecars"]
            wanted = "/v1/snapshots answered 401: does it want another token?"
            assert sidecar["problem"] == wanted


async def test_polling_carries_the_token_too(tmp_path: Path) -> None:
    """The stand-in knows of no watch: it is asked again and again."""
    async with SidecarStandIn(document(snapshot(A))) as sidecar:
        sidecar.token = TOKEN
        access = of_router.Access(sidecar_token=token_file(tmp_path))
        config = of_router.Config(sidecars=(sidecar.url,), poll_interval_s=0.02, access=access)
        async with serving(config) as router:
            await eventually(lambda: sidecar.looks >= 3)
            page = await router.page("/replicas")
            assert [row["url"] for row in page["replicas"]] == [A]
            assert not page["sidecars"][0]["watched"]


async def test_the_token_goes_to_sidecars_only(tmp_path: Path) -> None:
    access = of_router.Access(sidecar_token=token_file(tmp_path))
    async with SidecarStandIn(b"", paths=("/v1/models", "/health")) as replica:
        config = of_router.Config(replicas=(replica.url,), access=access)
        async with serving(config):
            await eventually(lambda: replica.looks)
            assert set(replica.authorizations) == {None}


async def test_a_token_is_exchanged_while_both_are_in_use(
    one: SidecarStandIn, tmp_path: Path
) -> None:
    token, new = token_file(tmp_path), "another-token-of-ours-for-next-year"
    async with aggregator(one.url, access=Access(token=token)) as agg:
        config = agg.config

        async def opens(*said: str) -> list[bool]:
            url = f"{agg.url}/v1/snapshots"
            return [(await get(url, f"Bearer {text}"))[0] == 200 for text in said]

        assert await opens(TOKEN, new) == [True, False]
        token_file(tmp_path, TOKEN, new)
        agg.it.reload(lambda: config)
        assert await opens(TOKEN, new) == [True, True]
        token_file(tmp_path, new)
        agg.it.reload(lambda: config)
        assert await opens(TOKEN, new) == [False, True]
        token_file(tmp_path, "short")
        agg.it.reload(lambda: config)  # Refused, and nothing has changed.
        assert await opens(TOKEN, new) == [False, True]
        agg.it.reload(lambda: msgspec.structs.replace(config, access=Access()))
        assert await opens(TOKEN, new) == [False, True]


async def test_a_router_takes_another_token_at_a_reload(tmp_path: Path) -> None:
    async with SidecarStandIn(document(snapshot(A))) as sidecar:
        sidecar.token = TOKEN
        file = token_file(tmp_path, "some-token-that-is-not-theirs")
        access = of_router.Access(sidecar_token=file)
        config = of_router.Config(sidecars=(sidecar.url,), poll_interval_s=0.02, access=access)
        async with serving(config) as router:
            assert (await router.page("/replicas"))["replicas"] == []
            token_file(tmp_path, "short")
            assert "line 1: wanted 16 characters" in router.service.reload(lambda: config)
            token_file(tmp_path)
            assert router.service.reload(lambda: config) == ""
            looks = sidecar.looks
            await eventually(lambda: sidecar.looks >= looks + 3)
            assert [row["url"] for row in (await router.page("/replicas"))["replicas"]] == [A]


async def test_with_client_ca_only_those_with_a_certificate_of_it_get_in(
    one: SidecarStandIn, ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    """mTLS: of the aggregator's side, and of a router's that is shown to it."""
    shown, strange = issued(ours, tmp_path / "ours"), issued(theirs, tmp_path / "theirs")
    ca = ours.file(tmp_path / "ca.pem")
    tls = Tls(certificate=shown.certificate, key=shown.key, client_ca=ca)
    async with aggregator(one.url, tls=tls) as agg:
        url = f"https://{agg.listen}"
        for certificate in (None, strange):
            client = ours.client()
            if certificate is not None:
                client.load_cert_chain(certificate.certificate, certificate.key)
            with pytest.raises((aiohttp.ClientError, OSError)):
                await get(f"{url}/healthz", tls=client)
        for certificate, seen in ((shown, [A]), (strange, [])):
            config = of_router.Config(
                sidecars=(url,),
                tls=of_router.Tls(
                    ca=ca, client_certificate=certificate.certificate, client_key=certificate.key
                ),
            )
            async with serving(config) as router:
                page = await router.page("/replicas")
                assert [row["url"] for row in page["replicas"]] == seen
                assert bool(page["sidecars"][0]["problem"]) is not bool(seen)
        with pytest.raises((aiohttp.ClientError, OSError)):
            await get(f"http://{agg.listen}/healthz")


async def test_an_aggregator_shows_its_sidecars_a_certificate_and_a_token(
    ours: Authority, tmp_path: Path
) -> None:
    shown = issued(ours, tmp_path / "ours")
    ca = ours.file(tmp_path / "ca.pem")
    server = ours.server()
    server.load_verify_locations(cafile=ca)
    server.verify_mode = ssl.CERT_REQUIRED
    async with SidecarStandIn(document(snapshot(A)), tls=server) as sidecar:
        sidecar.token = TOKEN
        tls = Tls(ca=ca, client_certificate=shown.certificate, client_key=shown.key)
        access = Access(sidecar_token=token_file(tmp_path))
        async with aggregator(sidecar.url, tls=tls, access=access) as agg:
            page = await agg.get("/v1/snapshots")
            assert [replica["url"] for replica in page["replicas"]] == [A]
        async with aggregator(sidecar.url, tls=Tls(ca=ca), access=access) as agg:
            assert (await agg.get("/v1/snapshots"))["replicas"] == []
            assert sidecar.url in (await agg.get("/healthz"))["silent"]


async def test_an_aggregators_new_certificate_is_for_new_connections(
    one: SidecarStandIn, ours: Authority, tmp_path: Path
) -> None:
    shown = issued(ours, tmp_path)
    tls = Tls(certificate=shown.certificate, key=shown.key)
    async with aggregator(one.url, tls=tls) as agg:

        def seen() -> str:
            host, _, port = agg.listen.partition(":")
            return ssl.get_server_certificate((host, int(port)))

        before = await asyncio.to_thread(seen)
        issued(ours, tmp_path)
        agg.it.reload(lambda: agg.config)
        assert await asyncio.to_thread(seen) != before


async def test_whom_a_former_authority_vouched_for_gets_in_no_more(
    one: SidecarStandIn, ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    """Nor by a session of before: there is none to go on with."""
    shown = issued(ours, tmp_path)
    ca = ours.file(tmp_path / "ca.pem")
    tls = Tls(certificate=shown.certificate, key=shown.key, client_ca=ca)
    async with aggregator(one.url, tls=tls) as agg:
        client = ours.client()
        client.load_cert_chain(shown.certificate, shown.key)
        before = await session_of(agg.listen, client, None)
        assert not before.has_ticket
        client.maximum_version = ssl.TLSVersion.TLSv1_2  # It has sessions without tickets.
        with pytest.raises(ssl.SSLError):
            await session_of(agg.listen, client, None)
        client.maximum_version = ssl.TLSVersion.TLSv1_3
        theirs.file(tmp_path / "ca.pem")
        agg.it.reload(lambda: agg.config)
        for session in (None, before):
            with pytest.raises((OSError, ValueError)):
                await session_of(agg.listen, client, session)


async def session_of(
    listen: str, tls: ssl.SSLContext, session: ssl.SSLSession | None
) -> ssl.SSLSession:
    """Ask once, going on with this session; the one that it was."""

    def ask() -> ssl.SSLSession:
        host, _, port = listen.partition(":")
        with (
            socket.create_connection((host, int(port)), 5.0) as plain,
            tls.wrap_socket(plain, server_hostname=host, session=session) as secure,
        ):
            secure.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            if not secure.recv(1):
                raise ConnectionResetError("closed")
            assert secure.session is not None
            return secure.session

    return await asyncio.to_thread(ask)
