"""Sources that are DNS names, asked of a name server on the loopback."""

from collections.abc import AsyncIterator

import pytest

from dns_server import DnsServer
from ullage_shared.discovery import names
from ullage_shared.discovery.listed import Found
from ullage_shared.discovery.names import LEAST_S, MOST_S, RETRY_S, Told, ask
from ullage_shared.discovery.source import parse_source

NAME = parse_source("dns+http://sidecars.example:9400")
SERVICE = parse_source("srv+https://_ullage._tcp.example")
A, AAAA, SRV = ("sidecars.example", "A"), ("sidecars.example", "AAAA"), (SERVICE.where, "SRV")


@pytest.fixture
async def dns() -> AsyncIterator[DnsServer]:
    async with DnsServer() as server:
        yield server


async def test_each_address_of_a_name_is_a_server_at_its_port(dns: DnsServer) -> None:
    dns.records = {A: ["10.0.0.2", "10.0.0.1"], AAAA: ["2001:db8::1"]}
    told = await ask(NAME, dns.resolver())
    urls = ("http://10.0.0.1:9400", "http://10.0.0.2:9400", "http://[2001:db8::1]:9400")
    assert told == Told(Found(urls), 60.0)


async def test_the_order_of_an_answer_is_no_change(dns: DnsServer) -> None:
    dns.records = {A: ["10.0.0.1", "10.0.0.2"]}
    one = await ask(NAME, dns.resolver())
    dns.records[A].reverse()
    assert await ask(NAME, dns.resolver()) == one


async def test_each_target_of_a_service_is_a_server_at_its_own_port(dns: DnsServer) -> None:
    dns.records = {SRV: ["0 5 9400 GPU-01.example.", "9 1 9401 gpu-02.example."]}
    told = await ask(SERVICE, dns.resolver())
    assert told.found == Found(("https://gpu-01.example:9400", "https://gpu-02.example:9401"))


async def test_a_service_that_says_it_is_not_there_means_it(dns: DnsServer) -> None:
    dns.records = {SRV: ["0 0 0 ."]}
    assert (await ask(SERVICE, dns.resolver())).found == Found((), meant=True)


@pytest.mark.parametrize(
    ("ttl_s", "holds_s"), [(0, LEAST_S), (4, LEAST_S), (30, 30.0), (86_400, MOST_S)]
)
async def test_an_answer_holds_for_its_time_to_live_within_limits(
    dns: DnsServer, ttl_s: int, holds_s: float
) -> None:
    dns.records, dns.ttl_s = {A: ["10.0.0.1"]}, ttl_s
    assert (await ask(NAME, dns.resolver())).holds_s == holds_s


async def test_a_name_without_records_names_nobody_and_does_not_say_so(dns: DnsServer) -> None:
    nobody = Told(Found(()), RETRY_S)
    assert await ask(NAME, dns.resolver()) == nobody
    dns.records = {("sidecars.example", "TXT"): ["x"]}
    assert await ask(NAME, dns.resolver()) == nobody


async def test_a_family_that_is_not_answered_is_not_taken_for_gone(dns: DnsServer) -> None:
    dns.records, dns.fails = {A: ["10.0.0.1"], AAAA: ["2001:db8::1"]}, {"AAAA"}
    told = await ask(NAME, dns.resolver())
    assert told == Told("sidecars.example: every name server failed", RETRY_S)


async def test_a_silent_name_server_is_waited_for_so_long_and_no_longer(
    dns: DnsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "WITHIN_S", 0.05)
    dns.silent = True
    told = await ask(NAME, dns.resolver())
    assert told == Told("sidecars.example: no answer from DNS within 0.05 s", RETRY_S)


async def test_a_target_that_is_no_host_is_refused_by_name(dns: DnsServer) -> None:
    dns.records = {SRV: [r"0 0 9400 a\064b.example.", "0 0 9400 gpu-01.example."]}
    found = (await ask(SERVICE, dns.resolver())).found
    assert isinstance(found, Found)
    assert found.urls == ("https://gpu-01.example:9400",)
    assert len(found.refused) == 1


async def test_the_systems_resolver_is_asked_when_no_other_is_named(
    dns: DnsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(names, "system", dns.resolver)
    dns.records = {A: ["10.0.0.1"]}
    assert (await ask(NAME)).found == Found(("http://10.0.0.1:9400",))
