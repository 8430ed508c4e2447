"""The folder of a report: a page that needs nothing but itself, and its figures."""

import re
import struct
from collections import Counter
from html.parser import HTMLParser

import pytest

from synthetic_runs import SLOWNESS, experiment_rows, summary
from ullage_tune.grid import GOODPUT, OMNISCIENT, OURS, TTFT_P99, Cell, Grid, Measured
from ullage_tune.measure import Slo
from ullage_tune.plots import SIZE_PX, busy_plot, load_plot, save_png, strokes, ttft_plot
from ullage_tune.report import write_report
from ullage_tune.results import Experiment, read_json

pytestmark = pytest.mark.slow

CELLS = (
    Cell("chat", load=0.5),
    Cell("chat", load=1.1),
    Cell("<b>&\"'", 4, "half speed", 0.85),
)
POLICIES = (*tuple(SLOWNESS)[:3], "a <script>alert(1)</script> & policy")
VOID = {"meta", "br", "path", "use", "image", "rect", "circle", "line"}


@pytest.fixture(scope="module")
def experiment():
    rows = experiment_rows(CELLS, POLICIES[:3], seeds=2)
    rows += tuple(Measured(c, POLICIES[3], s, summary(1.0, None)) for c in CELLS for s in range(2))
    return Experiment(Slo(3.0, 0.1), {"what <they> did": "6 <of> them"}, {"vllm": "0.11.1"}, rows)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, experiment):
    folder = tmp_path_factory.mktemp("out") / "new" / "report"
    assert write_report(folder, experiment) == folder / "report.html"
    return folder


class Page(HTMLParser):
    """What stands in a page; a tag that is closed out of turn fails."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.attributes: list[tuple[str, str, str]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags[tag] += 1
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture(scope="module")
def page(folder):
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_the_page_is_well_formed_and_has_every_policy_and_cell(page):
    text = "\n".join(page.text)
    for name in (
        *POLICIES,
        *(cell.kind for cell in CELLS),
        "what <they> did",
        "6 <of> them",
        "0.11.1",
    ):
        assert name in text
    assert page.tags["table"] == 1 + len(CELLS)
    assert page.tags["svg"] == page.tags["figure"] == page.tags["figcaption"] == 2 * len(CELLS) + 2


def test_the_page_refers_to_nothing_but_itself(page, folder):
    for tag, name, value in page.attributes:
        if name in ("href", "xlink:href", "src", "srcset", "action", "data"):
            assert value.startswith("#"), (tag, name, value)
        for target in re.findall(r"url\(([^)]*)\)", value):
            assert target.startswith("#"), (tag, name, value)
    assert not page.tags.keys() & {"script", "link", "iframe", "img", "object", "base", "form"}
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "@import" not in text
    assert not re.findall(r"https?://(?!www\.w3\.org/)", text)


def test_no_id_is_there_twice_and_each_reference_has_its_id(page):
    ids = Counter(value for _, name, value in page.attributes if name == "id")
    assert [name for name, count in ids.items() if count > 1] == []
    for _, name, value in page.attributes:
        targets = [value] if name.endswith("href") else re.findall(r"url\((#[^)]*)\)", value)
        assert all(target.removeprefix("#") in ids for target in targets)


def test_the_page_is_light_or_dark_as_its_reader_is(page, folder):
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "prefers-color-scheme: dark" in text
    assert "currentColor" in text
    drawn = [value for tag, name, value in page.attributes if name == "style"]
    assert not [style for style in drawn if re.search(r"(fill|stroke): #(000000|ffffff)", style)]


def png_size(path):
    head = path.read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", head[16:24])


def test_each_figure_is_a_png_of_the_size_that_is_promised(folder):
    files = sorted(folder.glob("*.png"))
    assert len(files) == 2 * len(CELLS) + 2
    assert {png_size(file) for file in files} == {SIZE_PX}
    assert [file.name for file in files][-2:] == [
        "007-ttft-chat-110-load.png",
        "008-busy-chat-110-load.png",
    ]


def test_the_folder_holds_the_results_that_it_was_made_from(folder, experiment):
    assert read_json(folder / "results.json") == experiment


def test_without_ours_there_is_a_report_without_the_bar_and_the_same_whenever_it_is_made(tmp_path):
    rows = experiment_rows((CELLS[0],), ("dynamo",), seeds=1)
    text = write_report(tmp_path, Experiment(Slo(), {}, {}, rows)).read_text(encoding="utf-8")
    assert "The bar" not in text
    again = write_report(tmp_path, Experiment(Slo(), {}, {}, rows))
    assert again.read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    "summaries",
    [
        {OURS: summary()},
        {OURS: summary(None), "rival": summary(0.0)},
        {"rival": summary(1.0)},
        {OMNISCIENT: summary(2.0)},
    ],
)
def test_figures_are_drawn_of_nothing_of_never_and_of_one(tmp_path, summaries):
    cell = Cell("chat")
    grid = Grid(Measured(cell, name, 0, value) for name, value in summaries.items())
    for figure in (
        ttft_plot(grid, cell),
        busy_plot(grid, cell),
        load_plot(grid, [cell], TTFT_P99),
        load_plot(grid, [cell], GOODPUT),
    ):
        save_png(figure, tmp_path / "figure.png")
        assert png_size(tmp_path / "figure.png") == SIZE_PX


def test_no_two_of_twenty_policies_look_alike():
    names = [f"rival {i}" for i in range(18)]
    looks = strokes([OURS, *names, OMNISCIENT])
    assert len(set(looks.values())) == 20
    assert looks[OURS].linewidth > 2 * looks["rival 0"].linewidth
