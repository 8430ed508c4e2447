"""TLS, towards clients and towards replicas and sidecars, over real sockets."""

import ssl
import subprocess
from pathlib import Path

import msgspec
import pytest

from certificates import Authority, KeyType
from data_plane import eventually
from raw_client import CutError, request
from router_process import run_router
from scripted_backend import Backend, Call, answering, response
from serving import Serving, serving
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.config import Config, Limits, Tls
from ullage_router.tls import read
from ullage_shared.config import ConfigError

pytestmark = pytest.mark.slow

HELLO = answering(response(b"hello"))
NOBODY = "http://127.0.0.1:1"


@pytest.fixture(scope="module")
def ours() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def theirs() -> Authority:
    return Authority()


async def ask(running: Serving, tls: ssl.SSLContext, target: bytes = b"/v1/completions") -> bytes:
    """One request on a new connection."""
    client = await running.client(tls)
    answer = await client.ask(request(target, b"{}"))
    return answer.body


# Towards clients


async def test_clients_are_served_over_tls(ours: Authority, tmp_path: Path) -> None:
    async with (
        Backend(HELLO) as backend,
        serving(Config(replicas=(backend.url,), tls=ours.issue(tmp_path))) as running,
    ):
        client = await running.client(ours.client())
        for _ in range(2):
            assert (await client.ask(request(body=b"x" * 100_000))).body == b"hello"
        connection: ssl.SSLObject = client.writer.get_extra_info("ssl_object")
        assert connection.selected_alpn_protocol() == "http/1.1"


async def test_tls_older_than_1_2_is_refused(ours: Authority, tmp_path: Path) -> None:
    async with serving(Config(replicas=(NOBODY,), tls=ours.issue(tmp_path))) as running:
        old = ours.client()
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            await running.client(old)


async def test_a_client_without_tls_gets_nothing_and_disturbs_nobody(
    ours: Authority, tmp_path: Path
) -> None:
    async with (
        Backend(HELLO) as backend,
        serving(Config(replicas=(backend.url,), tls=ours.issue(tmp_path))) as running,
    ):
        plain = await running.client()
        with pytest.raises((CutError, ConnectionResetError)):
            await plain.ask(request(body=b"{}"))
        assert await ask(running, ours.client()) == b"hello"


async def test_a_request_that_is_refused_is_told_why_over_tls_too(
    ours: Authority, tmp_path: Path
) -> None:
    config = Config(
        replicas=(NOBODY,), tls=ours.issue(tmp_path), limits=Limits(max_body_bytes=1000)
    )
    async with serving(config) as running:
        client = await running.client(ours.client())
        answer = await client.ask(request(body=b"x" * 1001))
        assert (answer.status, answer.one(b"connection")) == (413, b"close")
        assert await client.closed() == b""


@pytest.mark.parametrize(
    ("before", "after"), [(KeyType.ECDSA, KeyType.ECDSA), (KeyType.RSA, KeyType.ECDSA)]
)
async def test_a_new_certificate_is_for_new_connections_and_open_ones_go_on(
    before: KeyType, after: KeyType, ours: Authority, tmp_path: Path
) -> None:
    """Of two kinds of key as well: what is loaded into one context twice stays in it twice."""
    async with Backend(HELLO) as backend:
        config = Config(replicas=(backend.url,), tls=ours.issue(tmp_path, key_type=before))
        async with serving(config) as running:
            rsa_first = ours.client()
            rsa_first.maximum_version = ssl.TLSVersion.TLSv1_2
            rsa_first.set_ciphers("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES128-GCM-SHA256")
            old = await running.client(rsa_first)
            assert (await old.ask(request(body=b"{}"))).body == b"hello"
            ours.issue(tmp_path, key_type=after)
            running.service.reload(lambda: config)
            new = await running.client(rsa_first)
            assert (await new.ask(request(body=b"{}"))).body == b"hello"
            assert new.certificate["serialNumber"] != old.certificate["serialNumber"]
            assert (await old.ask(request(body=b"{}"))).body == b"hello"


async def test_a_bad_certificate_at_a_reload_changes_nothing(
    ours: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(replicas=(NOBODY,), tls=ours.issue(tmp_path))
    async with serving(config) as running:
        before = await running.client(ours.client())
        (tmp_path / "key.pem").write_text("nonsense")
        changed = msgspec.structs.replace(config, replicas=("http://127.0.0.1:2",))
        running.service.reload(lambda: changed)
        assert caplog.messages[-1].startswith("reload_refused why=")
        assert config.tls.key in caplog.messages[-1]
        after = await running.client(ours.client())
        assert after.certificate["serialNumber"] == before.certificate["serialNumber"]
        rows = (await running.page("/replicas"))["replicas"]
        assert [row["url"] for row in rows] == [NOBODY]


# Towards replicas and sidecars


async def test_a_replica_is_checked_against_the_authorities_of_the_configuration(
    ours: Authority, tmp_path: Path
) -> None:
    ca = Tls(ca=ours.file(tmp_path / "ca.pem"))
    async with (
        Backend(HELLO, tls=ours.server()) as backend,
        serving(Config(replicas=(backend.url,), tls=ca)) as running,
    ):
        client = await running.client()
        for _ in range(2):
            assert (await client.ask(request(body=b"{}"))).body == b"hello"


@pytest.mark.parametrize(
    ("name", "trusted", "words"),
    [
        ("127.0.0.1", False, "unable to get local issuer certificate"),
        ("another.host", True, "not valid for '127.0.0.1'"),
    ],
)
async def test_a_replica_with_a_certificate_that_is_not_accepted_has_failed_and_the_log_says_why(
    name: str,
    trusted: bool,
    words: str,
    ours: Authority,
    theirs: Authority,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    issuer = ours if trusted else theirs
    ca = Tls(ca=ours.file(tmp_path / "ca.pem"))
    async with (
        Backend(HELLO, tls=issuer.server(name)) as backend,
        serving(Config(replicas=(backend.url,), tls=ca)) as running,
    ):
        client = await running.client()
        answer = await client.ask(request(body=b"{}"))
        assert answer.status in (502, 503)
        failing = next(m for m in caplog.messages if m.startswith("replica_failing"))
        assert "its certificate is not accepted" in failing
        assert words in failing
        assert not backend.requests


async def test_a_replica_that_speaks_no_tls_has_failed_and_the_log_says_why(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def speaks_first(call: Call) -> None:
        await call.send(response(b"no", 400, b"Bad Request"))

    async with Backend(speaks_first) as backend:
        url = backend.url.replace("http:", "https:")
        async with serving(Config(replicas=(url,))) as running:
            client = await running.client()
            assert (await client.ask(request(body=b"{}"))).status in (502, 503)
    assert any("no TLS with it" in m for m in caplog.messages if m.startswith("replica_failing"))


async def test_a_sidecar_over_tls_is_asked_and_its_replicas_are_too(
    ours: Authority, tmp_path: Path
) -> None:
    ca = Tls(ca=ours.file(tmp_path / "ca.pem"))
    async with (
        Backend(HELLO, tls=ours.server()) as backend,
        SidecarStandIn(document(snapshot(backend.url, 0.9)), tls=ours.server()) as sidecar,
        serving(Config(sidecars=(sidecar.url,), tls=ca)) as running,
    ):
        assert await ask(running, None) == b"hello"
        await eventually(lambda: any(r.target == b"/v1/models" for r in backend.requests))


async def test_a_sidecar_with_a_certificate_that_is_not_accepted_has_a_problem_with_words(
    theirs: Authority,
) -> None:
    """aiohttp's error for it has no `os_error` in some versions: the loop must not end of that."""
    async with (
        SidecarStandIn(document(), tls=theirs.server()) as sidecar,
        serving(Config(sidecars=(sidecar.url,), poll_interval_s=0.02)) as running,
    ):
        (row,) = (await running.page("/replicas"))["sidecars"]
        assert row["problem"].startswith("its certificate is not accepted: ")
        assert not sidecar.looks


async def test_an_authority_that_leaves_the_file_is_trusted_no_longer(
    ours: Authority, theirs: Authority, tmp_path: Path
) -> None:
    file = tmp_path / "ca.pem"
    async with Backend(HELLO, tls=ours.server()) as backend:
        config = Config(
            replicas=(backend.url,),
            tls=Tls(ca=ours.file(file)),
            limits=Limits(idle_upstream_s=0.001),
        )
        async with serving(config) as running:
            assert await ask(running, None) == b"hello"
            theirs.file(file)
            running.service.reload(lambda: config)
            assert b"certificate" in await ask(running, None)
            ours.file(file)
            running.service.reload(lambda: config)
            assert await ask(running, None) == b"hello"


# What operators get wrong


def broken(case: str, directory: Path) -> dict[str, str]:
    """What is written in the configuration in the place of what is right."""
    none, rubbish = str(directory / "none.pem"), str(directory / "rubbish.pem")
    locked, key = str(directory / "locked.pem"), str(directory / "key.pem")
    Path(rubbish).write_text("-----BEGIN NONSENSE-----\n")
    command = ["openssl", "pkey", "-in", key, "-out", locked, "-aes256", "-passout", "pass:x"]
    subprocess.run(command, check=True)
    return {
        "no certificate": {"certificate": none},
        "no key": {"key": none},
        "certificate is rubbish": {"certificate": rubbish},
        "key is rubbish": {"key": rubbish},
        "key of another": {"key": Authority().issue(directory / "other").key},
        "key is left out": {"key": ""},
        "key alone": {"certificate": ""},
        "key with a passphrase": {"key": locked},
        "no authorities": {"ca": none},
        "authorities are rubbish": {"ca": rubbish},
    }[case]


MISTAKES = {
    "no certificate": ("tls.certificate", "none.pem", "No such file"),
    "no key": ("tls.key", "none.pem", "No such file"),
    "certificate is rubbish": ("tls.certificate", "rubbish.pem", "wanted a certificate"),
    "key is rubbish": ("tls.key", "rubbish.pem", "wanted a private key in PEM form"),
    "key of another": ("tls.key", "other/key.pem", "wanted the key of"),
    "key is left out": ("tls.certificate", "cert.pem", "wanted a private key in PEM form"),
    "key alone": ("tls.key", "key.pem", "wanted tls.certificate with it"),
    "key with a passphrase": ("tls.key", "locked.pem", "without a passphrase"),
    "no authorities": ("tls.ca", "none.pem", "No such file"),
    "authorities are rubbish": ("tls.ca", "rubbish.pem", "wanted certificates in PEM form"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_file_that_cannot_be_used_is_named_with_its_key_and_fault(
    case: str, ours: Authority, tmp_path: Path
) -> None:
    tls = msgspec.structs.replace(ours.issue(tmp_path), **broken(case, tmp_path))
    with pytest.raises(ConfigError) as error:
        read(tls)
    key, file, fault = MISTAKES[case]
    assert str(error.value).startswith(f"{key} = ")
    assert file in str(error.value)
    assert fault in str(error.value)


async def test_a_bad_certificate_is_exit_status_2_and_one_clear_line(tmp_path: Path) -> None:
    config = tmp_path / "router.toml"
    config.write_text(f'replicas = ["{NOBODY}"]\n[tls]\ncertificate = "/none.pem"\n')
    status, said = await run_router("--config", str(config), "--listen", "127.0.0.1:0")
    assert status == 2
    assert said.startswith("ullage-router: tls.certificate = '/none.pem': cannot be read: No such")
    assert len(said.splitlines()) == 1
