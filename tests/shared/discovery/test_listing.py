"""A list that is kept up to date, from files and names at once."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from data_plane import eventually
from dns_server import DnsServer
from ullage_shared.address import AddressError
from ullage_shared.discovery import listing as module
from ullage_shared.discovery import names
from ullage_shared.discovery.listing import Listing, Look

A, B, C = "http://a:1", "http://b:1", "http://c:1"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for where, name in ((module, "LOOK_EVERY_S"), (names, "LEAST_S"), (names, "RETRY_S")):
        monkeypatch.setattr(where, name, 0.01)


@pytest.fixture
async def listing() -> AsyncIterator[Listing]:
    listing = Listing("sidecars", lambda: None)
    yield listing
    await listing.stop()


def write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "s.yml"
    path.write_text("[{targets: [a:1, b:1]}]")
    return path


async def test_servers_named_one_by_one_are_there_at_once(listing: Listing) -> None:
    listing.apply(["HTTP://A:1/", B, A])
    assert listing.urls == (A, B)
    assert listing.seekers == {}


async def test_all_sources_are_one_list_each_server_once(listing: Listing, file: Path) -> None:
    listing.apply([C, f"file:{file}", A])
    await listing.first_looks()
    assert listing.urls == (C, A, B)


async def test_a_list_that_is_wrong_changes_nothing(listing: Listing) -> None:
    listing.apply([A])
    with pytest.raises(AddressError):
        listing.apply([B, "nonsense"])
    assert listing.urls == (A,)


async def test_a_change_is_told_and_logged_once(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    seen: list[tuple[str, ...]] = []
    listing = Listing("sidecars", lambda: seen.append(listing.urls))
    listing.apply([f"file:{file}"])
    await listing.first_looks()
    write(file, "[{targets: [b:1, c:1]}]")
    await eventually(lambda: listing.urls == (B, C))
    seeker = listing.seekers[f"file:{file}"]
    looks = seeker.looks[Look.UNCHANGED]
    await eventually(lambda: seeker.looks[Look.UNCHANGED] > looks + 2)
    await listing.stop()
    assert seen == [(A, B), (B, C)]
    told = [message for message in caplog.messages if "discovery" in message]
    assert told == [
        f"discovery_changed source=file:{file} list=sidecars joined=2 left=0 now=2",
        f"discovery_changed source=file:{file} list=sidecars joined=1 left=1 now=2",
    ]
    assert seeker.looks[Look.CHANGED] == 2


async def test_a_problem_is_logged_when_it_begins_and_when_it_ends(
    listing: Listing, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    listing.apply([f"file:{file}"])
    await listing.first_looks()
    seeker = listing.seekers[f"file:{file}"]
    write(file, "")
    await eventually(lambda: seeker.looks[Look.FAILED] > 3)
    assert listing.urls == (A, B)
    write(file, "[{targets: [a:1, b:1]}]")
    await eventually(lambda: not seeker.known.problem)
    told = [message.split()[0] for message in caplog.messages]
    assert told == ["discovery_changed", "discovery_problem", "discovery_well"]
    assert "wanted a list" in caplog.messages[1]


async def test_a_name_is_looked_up_again_when_its_answer_has_expired(
    listing: Listing, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with DnsServer() as dns:
        monkeypatch.setattr(names, "system", dns.resolver)
        dns.records, dns.ttl_s = {("s.example", "A"): ["10.0.0.1"]}, 0
        listing.apply(["dns+http://s.example:9400"])
        await listing.first_looks()
        assert listing.urls == ("http://10.0.0.1:9400",)
        dns.records["s.example", "A"] = ["10.0.0.2"]
        await eventually(lambda: listing.urls == ("http://10.0.0.2:9400",))
        dns.records.clear()
        seeker = listing.seekers["dns+http://s.example:9400"]
        await eventually(lambda: seeker.looks[Look.FAILED] > 1)
        assert listing.urls == ("http://10.0.0.2:9400",)
        assert seeker.known.problem == "it names nobody, the 1 of before are kept"


async def test_a_reload_keeps_the_old_list_until_the_new_source_was_read_well(
    listing: Listing, file: Path
) -> None:
    late = file.with_name("late.yml")
    listing.apply([C, f"file:{file}"])
    await listing.first_looks()
    listing.apply([f"file:{late}"])
    assert listing.urls == (C, A, B)
    await listing.first_looks()
    assert listing.urls == (C, A, B), "it could not be read"
    write(late, "[{targets: [b:1]}]")
    await eventually(lambda: listing.urls == (B,))


async def test_a_reload_takes_off_at_once_whom_no_new_source_can_name(
    listing: Listing, file: Path
) -> None:
    never = f"file:{file.with_name('never.yml')}"
    listing.apply([A, C, never])
    assert listing.urls == (A, C)
    await listing.first_looks()
    listing.apply([C, never])
    assert listing.urls == (C,)


async def test_a_reload_looks_at_every_source_at_once(
    listing: Listing, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 60.0)
    listing.apply([f"file:{file}"])
    await listing.first_looks()
    write(file, "[{targets: [c:1]}]")
    listing.apply([f"file:{file}"])
    await eventually(lambda: listing.seekers[f"file:{file}"].looks.total() == 2)
    listing.apply([f"file:{file}"])
    await eventually(lambda: listing.urls == (C,))


async def test_a_source_that_is_dropped_is_looked_at_no_more(listing: Listing, file: Path) -> None:
    listing.apply([C, f"file:{file}"])
    await listing.first_looks()
    seeker = listing.seekers[f"file:{file}"]
    listing.apply([C])
    assert listing.urls == (C,)
    looks = seeker.looks.total()
    await asyncio.sleep(0.05)
    assert seeker.looks.total() == looks
