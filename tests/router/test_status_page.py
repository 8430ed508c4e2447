"""The status page in a real browser: what it shows, how soon, and that it shows text as text."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from browser import Tab, chromium
from data_plane import eventually
from explained_site import Site, site
from raw_client import Client, request
from router_process import router_process
from scripted_backend import Backend, answering, response
from sidecar_stand_in import SidecarStandIn
from snapshots import document, snapshot
from ullage_router.core.fleet import hear
from ullage_shared.snapshot import Parts, State

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

SOON_S = 2.0
"""Within so long whatever has changed shows."""
ROWS = "[...document.querySelectorAll('#fleet tbody tr:not(.detail)')]"
HOSTILE = "</script><img src=x onerror=document.title='mine'><b>\u202e&amp;"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def tab() -> AsyncIterator[Tab]:
    async with chromium() as it:
        await it.look(1280)
        yield it


async def opened(tab: Tab, it: Site, rows: int) -> None:
    await tab.open(it.admin + "/")
    await tab.becomes(f"{ROWS}.length === {rows}")


async def table(tab: Tab) -> list[dict[str, str]]:
    """The rows of the table of replicas, by its columns' names."""
    heads = await tab.js("[...document.querySelectorAll('#fleet thead th')].map(h => h.innerText)")
    rows = await tab.js(f"{ROWS}.map(row => [...row.cells].map(cell => cell.textContent))")
    names = [head.split(" ▲")[0].split(" ▼")[0] for head in heads]
    return [dict(zip(names, row, strict=True)) for row in rows]


async def text(tab: Tab, of: str) -> str:
    return str(await tab.js(f"document.querySelector({of!r}).innerText"))


async def test_it_loads_alone_and_the_console_has_nothing_to_say(tab: Tab) -> None:
    async with site(3, scores=(0.9, 0.5, 0.3)) as it:
        await opened(tab, it, 3)
        await eventually(lambda: tab.asked.count(f"{it.admin}/status") >= 2)
        assert set(tab.asked) - {"data:,"} == {f"{it.admin}/", f"{it.admin}/status"}
        assert tab.complaints == []
        assert "Nothing is wrong" in await text(tab, "#wrong")


async def test_its_numbers_are_those_of_replicas(tab: Tab) -> None:
    parts = Parts(0.1, 0.1, 0.1, 0.5, 1.0)
    async with site(3, scores=(0.9, 0.15, None)) as it:
        it.hear(0.9, 0.15, None, parts=parts, waiting=3)
        for _ in range(4):
            await it.ask()
        await opened(tab, it, 3)
        async with it.session.get(f"{it.admin}/replicas") as page:
            rows = {row["id"]: row for row in (await page.json())["replicas"]}
        shown = await table(tab)
        assert len(shown) == 3
        for row in shown:
            of: dict[str, Any] = rows[row["replica"]]
            score = of["capacity_score"]
            assert row["score"] == ("–" if score is None else f"{score:.2f}")
            assert row["in flight"] == str(of["in_flight"])
            assert row["running"] == f"{of['running']}/{of['max_num_seqs']}"
            assert row["waiting"] == str(of["waiting"])
            assert row["why not, or what else"] == of["why_not"]
        standings = {row["state"] for row in shown}
        assert standings == {"● serving", "■ full", "○ silent"}
        decisions = await tab.js("document.querySelectorAll('#recent tbody tr').length")
        assert decisions == 4


async def test_the_detail_says_what_the_hatched_part_is_and_when_blocks_are_gone(tab: Tab) -> None:
    async with site(1, scores=(0.9,)) as it:
        parts = Parts(0.1, 0.1, 0.1, 1.0, 0.0)
        it.hear(0.0, state=State.DRAINING, parts=parts, exhaustion_s=299.0)
        await opened(tab, it, 1)
        await tab.press("ArrowDown", "Enter")
        await tab.becomes("document.querySelector('.detail')")
        told = await tab.js("document.querySelector('.detail').textContent")
        assert "× 0 for its state (draining) = 0" in told
        assert "gone in 299 s if they go on falling" in told
        title = await tab.js(f"{ROWS}[0].cells[2].title")
        assert "for its state (draining)" in title
        it.hear(0.0, state=State.DRAINING, parts=parts, exhaustion_s=300.0)
        await tab.becomes(
            "document.querySelector('.detail').textContent.includes('they fall slowly')", SOON_S
        )


async def test_what_is_worst_is_said_first(tab: Tab) -> None:
    more = "{stopping: true, sidecars: [{url: 'u', problem: 'p', faults: [], watched: true}]}"
    async with site(1, scores=(0.9,)) as it:
        await opened(tab, it, 1)
        await tab.js(
            "void (window.fetch = (ask => async (...all) => new Response(JSON.stringify("
            f"{{...await (await ask(...all)).json(), ...{more}}})))(window.fetch))"
        )
        lines = "[...document.querySelectorAll('#wrong li')].map(line => line.innerText[0])"
        await tab.becomes(f"{lines}.join('') === '✕▲'", SOON_S)


async def test_what_changes_shows_without_a_reload_and_so_does_what_was_sent(tab: Tab) -> None:
    async with site(2, scores=(0.9, 0.1)) as it:
        await opened(tab, it, 2)
        it.hear(0.42, 0.1)
        await tab.becomes(f"{ROWS}.some(row => row.cells[2].textContent === '0.42')", SOON_S)
        for _ in range(5):
            await it.ask()
        await tab.becomes(f"{ROWS}.some(row => row.cells[4].textContent === '100 %')", SOON_S)
        first_byte = await tab.js(f"{ROWS}.map(row => row.cells[7].textContent)")
        assert sorted(map(bool, first_byte)) == [False, True]
        assert tab.asked.count(f"{it.admin}/") == 1


async def test_a_fleet_without_headroom_is_said_on_top(tab: Tab) -> None:
    async with site(2, scores=(0.1, 0.1)) as it:
        await opened(tab, it, 2)
        assert "2 of 2 replicas get nothing: 2 full" in await text(tab, "#wrong")
        await it.ask()
        await tab.becomes("document.querySelector('#wrong').innerText.includes('refusing')", SOON_S)
        assert "1 refused in the last 60 s" in await text(tab, "#wrong")
        assert await text(tab, "#recent td.bad") == "refused: no replica has headroom"


async def test_names_are_text_whatever_they_say(tab: Tab) -> None:
    async with site(1, scores=(0.9,)) as it:
        changes = {"id": HOSTILE, "reason": HOSTILE, "models": (HOSTILE,)}
        it.hear(0.9, state=State.RAMPING, **changes)
        await it.ask()
        await opened(tab, it, 1)
        await tab.press("ArrowDown", "Enter")
        await tab.becomes("document.querySelector('.detail')")
        (row,) = await table(tab)
        assert row["replica"] == row["why not, or what else"] == HOSTILE
        assert HOSTILE in await tab.js("document.querySelector('.detail').textContent")
        assert HOSTILE in await tab.js("document.querySelector('#recent tbody').textContent")
        assert await tab.js("document.querySelectorAll('img, b b').length") == 0
        assert (tab.complaints, await tab.js("document.title !== 'mine'")) == ([], True)


async def test_it_is_used_by_keyboard(tab: Tab) -> None:
    focused = "document.activeElement"
    async with site(3, scores=(0.9, 0.5, 0.1)) as it:
        await opened(tab, it, 3)
        full = (await table(tab))[[row["state"] for row in await table(tab)].index("■ full")]
        await tab.press("/")
        assert await tab.js(f"{focused}.id") == "filter"
        await tab.press(*"full")
        assert await tab.js(f"{ROWS}.length") == 1
        await tab.press("Escape")
        assert await tab.js(f"{ROWS}.length") == 3
        await tab.press("ArrowDown", "End", "ArrowUp", "Home")
        assert await tab.js(f"{focused} === {ROWS}[0]")
        await tab.press("p")
        assert [row["replica"] for row in await table(tab)] == [full["replica"]]
        await tab.press("p", "ArrowDown", "Enter")
        assert await tab.js(f"{focused}.nextSibling.className") == "detail"
        await asyncio.sleep(1.2)  # It is drawn anew meanwhile.
        assert await tab.js(f"{focused}.nextSibling.className") == "detail"
        await tab.press("Escape")
        assert not await tab.js("document.querySelector('.detail')")
        await tab.js("document.querySelectorAll('#fleet thead button')[2].focus()")
        await tab.press("Enter")
        assert [row["score"] for row in await table(tab)] == ["0.90", "0.50", "0.10"]
        await tab.press("Enter")
        assert [row["score"] for row in await table(tab)] == ["0.10", "0.50", "0.90"]


async def test_three_hundred_replicas_are_drawn_in_less_than_a_second(tab: Tab) -> None:
    async with site(1, scores=(0.9,)) as it:
        for seq in (2, 3):
            many = (
                snapshot(f"http://10.0.0.1:{port}", 1 / (port - 8000 + seq), seq=seq)
                for port in range(8000, 8300)
            )
            fleet = hear(it.router.fleet, "http://many:9400", document(*many), it.clock.now_s)[0]
            it.router.fleet = fleet
            if seq == 2:
                await opened(tab, it, 301)
                await tab.js(
                    "window.longest = 0; new PerformanceObserver(list => { for (const e of "
                    "list.getEntries()) longest = Math.max(longest, e.duration); })"
                    ".observe({ type: 'longtask', buffered: true })"
                )
        await tab.becomes(f"{ROWS}.some(row => row.cells[2].textContent === '0.33')", SOON_S)
        assert await tab.js("longest") < 1000.0
        height = await tab.js(f"{ROWS}[1].offsetHeight")
        assert height <= 24


async def test_a_page_that_nobody_sees_asks_nobody(tab: Tab) -> None:
    hidden = "Object.defineProperty(document, 'hidden', {{ value: {}, configurable: true }});"
    changed = "document.dispatchEvent(new Event('visibilitychange'))"
    async with site(1, scores=(0.9,)) as it:
        await opened(tab, it, 1)
        await tab.js(hidden.format("true") + changed)
        assert await text(tab, "#live") == "paused"
        await asyncio.sleep(0.1)  # What was asked before may be answered.
        before = tab.asked.count(f"{it.admin}/status")
        await asyncio.sleep(1.2)
        assert tab.asked.count(f"{it.admin}/status") == before
        await tab.js(hidden.format("false") + changed)
        await tab.becomes("document.querySelector('#live').innerText === '● live'", SOON_S)


async def test_of_several_workers_all_shows_a_dead_replica_too_and_a_dead_router(tab: Tab) -> None:
    async with Backend(answering(response(b"{}"))) as one, Backend(answering(b"")) as other:
        well = [snapshot(one.url, 0.9, id="one"), snapshot(other.url, 0.1, id="other")]
        async with (
            SidecarStandIn(document(*well)) as sidecar,
            router_process("--workers", "2", "--sidecar", sidecar.url) as router,
        ):
            await tab.open(f"http://{router.admin}/")
            await tab.becomes(f"{ROWS}.length === 2")
            assert "2 workers" in await text(tab, "#about")
            for _ in range(3):
                client = await Client.connect(router.address)
                await client.ask(request(b"/v1/completions", b"{}"))
                client.close()
            await tab.becomes("document.querySelectorAll('#recent tbody tr').length === 3", SOON_S)
            dead = snapshot(other.url, 0.0, id="other", seq=2, state=State.DOWN, reason="gone")
            sidecar.published = document(well[0], dead)
            await tab.becomes(
                f"{ROWS}.some(row => row.innerText.includes('✕ down') && "
                "row.innerText.includes('it is down; gone'))",
                SOON_S,
            )
            assert "1 of 2 replicas gets nothing: 1 down" in await text(tab, "#wrong")
            assert tab.complaints == []
            router.process.terminate()
            await router.ended(10.0)
            await tab.becomes("!document.querySelector('#lost').hidden", SOON_S)
            assert await text(tab, "#live") == "✕ no answer"
            said = await text(tab, "#lost")
            assert "does not answer since" in said
            assert "What stands below is as of then" in said
            assert await tab.js("document.title") == "✕ no answer · Ullage router"
