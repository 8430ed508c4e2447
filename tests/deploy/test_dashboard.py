"""The dashboard that we ship: what it asks for exists, and what it shows can be read."""

import json
import re
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from exposed import (
    labels_by_name,
    process_families,
    router_families,
    sidecar_families,
    values_by_label,
)
from grafana.__main__ import text
from grafana.panel import Kind, Panel
from grafana.rows import ROWS
from promql import asked_for

SHIPPED = Path(__file__).parents[2] / "deploy" / "grafana"
DASHBOARD: Any = json.loads((SHIPPED / "ullage.json").read_text())
PLACED = [panel["gridPos"] for panel in DASHBOARD["panels"]]
PANELS = {f"{row.question}: {panel.title}": panel for row in ROWS for panel in row.panels}
FAMILIES = [*router_families(), *sidecar_families(), *process_families()]
LABELS = labels_by_name(FAMILIES)
VALUES = set(values_by_label(FAMILIES))
OF_PROMETHEUS = {"instance", "job"}
OPEN = {("ullage_router_responses_total", "code")}
"""Whose values replicas make up."""
UNITS = {"short", "s", "reqps", "ops", "percentunit", "bytes", "Bps"}


def test_the_file_is_what_the_rows_say() -> None:
    assert (SHIPPED / "ullage.json").read_text() == text(), "run `make docs`"


def test_no_panel_lies_upon_another_or_outside() -> None:
    for a, b in combinations(PLACED, 2):
        beside = a["x"] + a["w"] <= b["x"] or b["x"] + b["w"] <= a["x"]
        below = a["y"] + a["h"] <= b["y"] or b["y"] + b["h"] <= a["y"]
        assert beside or below, (a, b)
    assert all(place["x"] >= 0 and place["x"] + place["w"] <= 24 for place in PLACED)


def test_every_panel_has_its_own_number_and_there_are_no_two_of_a_name() -> None:
    numbers = [panel["id"] for panel in DASHBOARD["panels"]]
    assert numbers == list(range(1, len(numbers) + 1))
    assert len(PANELS) == sum(len(row.panels) for row in ROWS)


def test_each_question_has_its_row() -> None:
    asked = " ".join(row.question for row in ROWS)
    for question in ("balanced", "disliked", "affinity", "capacity", "bottleneck"):
        assert question in asked


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)
def test_a_panel_says_what_it_shows_in_which_unit_and_whose_each_line_is(panel: Panel) -> None:
    assert panel.title
    assert panel.unit in UNITS
    assert len(panel.description) >= 12
    assert panel.description.endswith((".", ")"))
    assert panel.queries
    assert all(legend for _, legend in panel.queries)
    legends = Counter(legend for _, legend in panel.queries)
    assert max(legends.values()) == 1
    assert (panel.amber is None) == (panel.red is None)
    assert panel.unit != "percentunit" or panel.most == 1.0 or panel.kind is Kind.NUMBER


@pytest.mark.parametrize("panel", PANELS.values(), ids=PANELS)
def test_every_metric_label_and_value_of_a_panel_exists(panel: Panel) -> None:
    for expression, legend in panel.queries:
        named = list(asked_for(expression))
        assert named or "up{" in expression
        shown = set().union(*(LABELS[asked.name] for asked in named)) if named else set()
        assert set(re.findall(r"{{(\w+)}}", legend)) <= shown | OF_PROMETHEUS
        for clause in re.findall(r"\b(?:by|on|group_left) \(([^)]*)\)", expression):
            assert set(re.split(r",\s*", clause)) - {""} <= shown | OF_PROMETHEUS
        for asked in named:
            for label, values in asked.matchers:
                if label in OF_PROMETHEUS or (asked.name, label) in OPEN:
                    continue
                assert label in LABELS[asked.name], f"{asked.name} has no label {label}"
                for value in values:
                    assert (asked.name, label, value) in VALUES, f"{asked.name}: {value}"


def test_every_variable_that_is_used_can_be_chosen() -> None:
    offered = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    whole = (SHIPPED / "ullage.json").read_text()
    used = set(re.findall(r"\$\{?(\w+)", whole)) - {"__rate_interval", "__all"}
    assert used == offered


def test_colours_change_at_rising_values() -> None:
    for panel in DASHBOARD["panels"]:
        if panel["type"] != "row":
            steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            assert steps[0]["value"] is None
            assert all(a["value"] < b["value"] for a, b in pairwise(steps[1:]))


def test_grafana_is_told_where_the_dashboard_and_its_data_are() -> None:
    folder = SHIPPED / "provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text())["datasources"]
    assert source["type"] == "prometheus"
    (provider,) = yaml.safe_load((folder / "dashboards/ullage.yml").read_text())["providers"]
    assert provider["type"] == "file"
    assert provider["options"]["path"]
