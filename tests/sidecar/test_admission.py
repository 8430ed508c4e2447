"""Who may ask a sidecar: `access.token`, TLS and client certificates, of the whole process."""

import ssl
from pathlib import Path

import aiohttp
import pytest

from certificates import Authority
from guarded import HEADER, TOKEN, issued, token_file
from sidecar_process import run
from ullage_sidecar.__main__ import main

pytestmark = pytest.mark.slow

PATHS = ("/v1/snapshots", "/v1/snapshots?watch", "/v1/steps", "/v1/orca", "/metrics", "/nothing")


@pytest.fixture
def file(tmp_path):
    return tmp_path / "sidecar.toml"


async def test_every_path_but_the_health_check_wants_the_token(sidecar, engine_url, file, tmp_path):
    file.write_text(f"[access]\ntoken = '{token_file(tmp_path)}'")
    await sidecar.start("--config", str(file), "--engine", engine_url)
    for path in PATHS:
        for headers in ({}, {"Authorization": f"Bearer {TOKEN}x"}):
            status, said, body = await sidecar.get(path, **headers)
            assert (status, body) == (401, b"wanted a token\n")
            assert said["WWW-Authenticate"] == "Bearer"
    assert await body_of(sidecar, "/healthz") == b"runs\n"
    for path, holds in (
        ("/v1/snapshots", b"n/vllm"),
        ("/metrics", b"ullage_"),
        ("/healthz", b"vllm"),
    ):
        assert holds in await body_of(sidecar, path, Authorization=HEADER)


async def test_commands_over_the_unix_socket_want_none(sidecar, engine_url, file, tmp_path):
    file.write_text(f"[access]\ntoken = '{token_file(tmp_path)}'")
    await sidecar.start("--config", str(file), "--engine", engine_url)
    for command in ("status", "drain", "undrain"):
        status, said, _ = await run(sidecar, command)
        assert (status, "vllm" in said) == (0, True)


async def test_with_client_ca_nobody_else_gets_in(sidecar, engine_url, file, tmp_path):
    ours, theirs = Authority(), Authority()
    shown, strange = issued(ours, tmp_path / "ours"), issued(theirs, tmp_path / "theirs")
    ca = ours.file(tmp_path / "ca.pem")
    file.write_text(
        f"[tls]\ncertificate = '{shown.certificate}'\nkey = '{shown.key}'\nclient_ca = '{ca}'"
    )
    await sidecar.start("--config", str(file), "--engine", engine_url)
    assert "n/vllm" in await over_tls(sidecar, ours.client(), shown)
    for certificate in (None, strange):
        with pytest.raises((aiohttp.ClientError, OSError)):
            await over_tls(sidecar, ours.client(), certificate)
    with pytest.raises((aiohttp.ClientError, OSError)):
        await sidecar.get()


async def body_of(sidecar, path, **headers):
    status, _, body = await sidecar.get(path, **headers)
    assert status == 200
    return body


async def over_tls(sidecar, client: ssl.SSLContext, certificate):
    if certificate is not None:
        client.load_cert_chain(certificate.certificate, certificate.key)
    url = f"https://{sidecar.listen}/v1/snapshots"
    async with aiohttp.ClientSession() as session, session.get(url, ssl=client) as answer:
        return await answer.text()


def test_check_reads_all_of_these_files(file, tmp_path, capsys):
    ours = issued(Authority(), tmp_path / "ours")
    other = issued(Authority(), tmp_path / "other")
    token = token_file(tmp_path)
    engine = "[[engine]]\nurl = 'http://gpu-01:8000'\n"
    names = {"certificate": ours.certificate, "key": ours.key}

    def said(token: str, **tls: str) -> tuple[int, str]:
        rows = "".join(f"{key} = '{value}'\n" for key, value in tls.items())
        file.write_text(f"{engine}[access]\ntoken = '{token}'\n[tls]\n{rows}")
        status = main(["check", str(file)])
        return status, "".join(capsys.readouterr())

    status, told = said(token, **names, client_ca=ours.certificate)
    assert (status, "(TLS, with a certificate of theirs, with a token)" in told) == (0, True)
    for wanted, *files in (
        ("access.token = ", f"{token}-none", names),
        ("the key of", token, {**names, "key": other.key}),
        ("a private key in PEM form", token, {**names, "key": private_copy(ours.certificate)}),
        ("wanted tls.certificate with it", token, {"client_ca": ours.certificate}),
        ("wanted certificates in PEM form", token, {**names, "client_ca": token}),
        ("tls.client_ca = ", token, {**names, "client_ca": f"{token}-none"}),
    ):
        status, told = said(files[0], **files[1])
        assert (status, wanted in told, told.count("\n")) == (2, True, 1)
    Path(ours.key).chmod(0o644)
    assert "tls.key = " in said(token, **names)[1]
    status, told = said(f"{token}-none", **names)
    assert (status, told.count("\n")) == (2, 2)  # Both at once.


def private_copy(file: str) -> str:
    copy = Path(f"{file}.copy")
    copy.touch(0o600)
    copy.write_bytes(Path(file).read_bytes())
    return str(copy)
