"""When a server is asked for its `/metrics`, how often, and what becomes of what it says."""

import asyncio
import logging

import pytest

from metrics_server import MetricsServer
from ullage_shared.snapshot import State
from ullage_sidecar.channel import encode_hello, encode_step
from ullage_sidecar.config import Config, EngineEntry
from ullage_sidecar.core.health import HealthSettings, Probe
from ullage_sidecar.core.reading import Hello
from ullage_sidecar.node import Node
from ullage_sidecar.sources.scrape import Scraper, machine_start, session
from ullage_sidecar.sources.scraped import Server
from ullage_sidecar.sources.settings import ScrapeSettings

T, WALL_S = 10_000.0, 1.8e9
GOOD, REFUSED = Probe(None), Probe("Connection refused", gone=True)


@pytest.fixture
async def fake():
    async with MetricsServer.started() as server:
        server.began_s = WALL_S - 3600.0
        yield server


@pytest.fixture
async def client():
    async with session(HealthSettings()) as client:
        yield client


@pytest.fixture
def scene(fake):
    return Scene(fake.url)


class Scene:
    """A node with one server, its scraper, and the clock of both."""

    def __init__(self, url, **settings):
        self.now_s, self.wall_s = T, WALL_S
        entry = EngineEntry(url=url, max_num_seqs=8)
        self.node = Node(Config(node="n", engine=(entry,)), T - 100.0)
        self.scraper = Scraper(
            Server("vllm", 7, "m", 8), url, ScrapeSettings(**settings), self.node,
            lambda: self.now_s, lambda: self.wall_s,
        )  # fmt: skip

    def probed(self, probe):
        self.node.probed("vllm", probe, self.now_s)
        self.scraper.probed(probe)

    def plugin_speaks(self):
        hello = Hello(1, "vllm", "boot-1", 11, T - 500.0, total_blocks=101, max_num_seqs=8)
        self.node.hear(encode_hello(hello), self.now_s)
        step = encode_step(1, 5, self.now_s, (6, 0, 0.5, 0, 0, 0, 0, 0))
        self.node.hear(step, self.now_s)

    @property
    def replica(self):
        self.now_s += 0.1  # The document is rendered every 20 ms at most.
        return self.node.published(self.now_s, self.wall_s).replicas[0]


async def test_a_page_reaches_the_snapshot(fake, scene, client):
    scene.probed(GOOD)
    await scene.scraper.ask(client)
    replica = scene.replica
    assert (replica.state, replica.running, replica.waiting) == (State.SERVING, 2, 0)
    assert (replica.free_blocks, replica.total_blocks, replica.models) == (50, 101, ("tiny",))
    assert replica.capacity_score == pytest.approx(0.5 * 0.5 + 0.3 * 0.75 + 0.2)
    assert (scene.node.scrapes["vllm"].made, scene.node.scrapes["vllm"].failed) == (1, 0)


async def test_the_page_is_asked_for_as_plain_text_uncompressed(fake, scene, client):
    scene.probed(GOOD)
    await scene.scraper.ask(client)
    headers = fake.asked[0].headers
    assert headers["Accept"] == "text/plain;version=0.0.4"
    assert headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize(
    ("ranks", "ids", "asked_for_as"),
    [
        ((0,), ["n/vllm"], [None]),
        ((0, 1), ["n/vllm:0", "n/vllm:1"], [0, 1]),
        ((3,), ["n/vllm:3"], [None]),
        ((2, 3), ["n/vllm:2", "n/vllm:3"], [0, 1]),
    ],
)
async def test_a_server_that_has_some_of_the_ranks_is_asked_for_their_places_among_its_own(
    fake, scene, client, ranks, ids, asked_for_as
):
    """With external balancing it says 400 to a rank that is none of its own; also where the plugin
    has spoken before."""
    fake.text = fake.page.replace('engine="0"', 'engine="RANK"')
    fake.text = "".join(fake.text.replace("RANK", str(rank)) for rank in ranks)
    scene.probed(GOOD)
    for spoken in (False, True):
        if spoken:
            for place, rank in enumerate(ranks):
                hello = Hello(
                    place, "vllm", "boot-1", 11, T - 500.0, rank, max(ranks) + 1,
                    first_rank=ranks[0], ranks_here=len(ranks),
                )  # fmt: skip
                scene.node.hear(encode_hello(hello), scene.now_s)
            scene.now_s += 3.5
        await scene.scraper.ask(client)
        scene.now_s += 0.1
        replicas = scene.node.published(scene.now_s, scene.wall_s).replicas
        assert [replica.id for replica in replicas] == ids
        assert [replica.dp_rank for replica in replicas] == asked_for_as
        assert [replica.running for replica in replicas] == [2] * len(ids)


# Whether to ask


async def test_a_server_is_not_asked_before_it_answers_nor_once_it_is_gone(fake, scene, client):
    await scene.scraper.ask(client)
    scene.probed(REFUSED)
    await scene.scraper.ask(client)
    assert fake.asked == []
    scene.probed(GOOD)
    await scene.scraper.ask(client)
    scene.probed(Probe("no answer in time", certain=False))
    await scene.scraper.ask(client)
    assert len(fake.asked) == 2
    scene.probed(REFUSED)
    await scene.scraper.ask(client)
    assert len(fake.asked) == 2


async def test_a_plugin_has_its_time_to_speak_first(fake, client):
    scene = Scene(fake.url)
    scene.node = scene.scraper._node = Node(scene.node.config, T)
    scene.probed(GOOD)
    for after_s, asked in ((0.1, 0), (2.9, 0), (3.1, 1)):
        scene.now_s = T + after_s
        await scene.scraper.ask(client)
        assert len(fake.asked) == asked


async def test_it_is_asked_only_while_the_plugin_is_silent(fake, scene, client, caplog):
    caplog.set_level(logging.INFO)
    scene.probed(GOOD)
    scene.plugin_speaks()
    await scene.scraper.ask(client)
    assert fake.asked == []
    scene.now_s += 3.5
    await scene.scraper.ask(client)
    assert (len(fake.asked), scene.replica.running) == (1, 2)
    scene.plugin_speaks()
    await scene.scraper.ask(client)
    assert (len(fake.asked), scene.replica.running) == (1, 6)
    sources = [line for line in caplog.messages if line.startswith("source ")]
    assert sources == [
        "source engine=vllm was=- now=plugin",
        "source engine=vllm was=plugin now=scrape",
        "source engine=vllm was=scrape now=plugin",
    ]
    assert scene.node.strays.rival == 0


async def test_a_plugin_that_speaks_while_the_page_is_on_its_way_is_believed(
    fake, scene, client, until
):
    scene.probed(GOOD)
    fake.delay_s = 0.05
    asking = asyncio.create_task(scene.scraper.ask(client))
    await until(lambda: fake.asked)
    scene.plugin_speaks()
    await asking
    assert scene.replica.running == 6
    assert scene.node.strays.rival == 0


async def test_a_handover_does_not_zero_a_serving_replica(fake, scene, client):
    scene.probed(GOOD)
    scene.plugin_speaks()
    before = scene.replica
    scene.now_s += 3.5
    await scene.scraper.ask(client)
    after = scene.replica
    assert (after.state, after.boot_id) == (before.state, before.boot_id)
    assert after.capacity_score > 0.5
    scene.plugin_speaks()
    again = scene.replica
    assert (again.state, again.boot_id) == (before.state, before.boot_id)


async def test_a_restarted_server_warms_up(fake, scene, client):
    scene.probed(GOOD)
    await scene.scraper.ask(client)
    assert scene.replica.state is State.SERVING
    scene.probed(REFUSED)
    scene.now_s += 20.0
    scene.probed(REFUSED)
    scene.probed(GOOD)
    fake.began_s = WALL_S + 1.0
    await scene.scraper.ask(client)
    assert scene.replica.state is State.WARMING


@pytest.mark.parametrize("fault", ["status 503", "Connection refused"])
async def test_only_where_nobody_listened_a_server_that_tells_no_start_has_started_anew(
    fake, scene, client, fault
):
    fake.text = fake.page.replace("process_start", "x")
    scene.probed(GOOD)
    await scene.scraper.ask(client)
    before = scene.replica
    scene.node.drain("vllm", scene.now_s)
    scene.now_s += 5.0
    scene.probed(Probe(fault, gone=fault == "Connection refused"))
    await scene.scraper.ask(client)
    scene.now_s += 1.0
    scene.probed(GOOD)
    await scene.scraper.ask(client)
    anew = fault == "Connection refused"
    assert (scene.replica.boot_id != before.boot_id) is anew
    assert (scene.replica.state is State.DRAINING) is not anew


# Faults


async def test_a_fault_is_in_the_snapshot_and_in_one_line_when_it_begins_and_ends(
    fake, scene, client, caplog
):
    caplog.set_level(logging.INFO)
    scene.probed(GOOD)
    fake.status = 404
    for _ in range(15):
        await scene.scraper.ask(client)
        scene.now_s += 1.0
    replica = scene.replica
    assert replica.state is State.SERVING
    assert replica.capacity_score is None
    assert "its /metrics does not help: status 404; set ULLAGE_SOCKET" in replica.reason
    fake.status = 200
    for _ in range(15):
        await scene.scraper.ask(client)
        scene.now_s += 1.0
    lines = [line for line in caplog.messages if line.startswith("scrape_")]
    assert len(lines) == 2
    assert lines[0].startswith('scrape_fails server=vllm why="status 404" fix=')
    assert lines[1] == "scrape_works server=vllm"
    assert (scene.node.scrapes["vllm"].made, scene.node.scrapes["vllm"].failed) == (30, 15)
    assert scene.node.scrapes["vllm"].last_s is not None


async def test_faults_in_turns_are_no_flood_of_lines(fake, scene, client, caplog):
    caplog.set_level(logging.INFO)
    scene.probed(GOOD)
    for second in range(20):
        fake.status = (404, 200)[second % 2]
        await scene.scraper.ask(client)
        scene.now_s += 1.0
    assert len([line for line in caplog.messages if line.startswith("scrape_")]) <= 2


async def test_a_page_whose_work_stands_still_is_a_hang(fake, scene, client):
    scene.probed(GOOD)
    for _ in range(33):
        await scene.scraper.ask(client)
        scene.now_s += 1.0
    assert scene.replica.state is State.HUNG
    fake.running = 1
    await scene.scraper.ask(client)
    assert scene.replica.state is State.SERVING


# How often


async def test_it_asks_at_fixed_times_and_at_once_when_a_server_comes(fake, client, until):
    loop = asyncio.get_running_loop()
    node = Node(Config(node="n", engine=(EngineEntry(url=fake.url),)), loop.time() - 100.0)
    settings = ScrapeSettings(interval_s=0.2)
    scraper = Scraper(Server("vllm", 7, "m"), fake.url, settings, node, loop.time, lambda: WALL_S)
    begun_s = loop.time()
    task = asyncio.create_task(scraper.run(client))
    await asyncio.sleep(0)
    scraper.probed(GOOD)
    await until(lambda: fake.asked)
    first_s = loop.time() - begun_s
    await until(lambda: len(fake.asked) >= 4)
    task.cancel()
    assert first_s < settings.interval_s
    assert loop.time() - begun_s >= 3 * settings.interval_s


def test_the_machines_start_has_a_name_that_does_not_change():
    assert machine_start() == machine_start()
