"""The alerts that we ship: each fires when it should, stays silent when it should, and says what
to do. Each has a file of promtool's tests, named like itself."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

import system_packages
from exposed import (
    aggregator_families,
    labels_by_name,
    process_families,
    router_families,
    sidecar_families,
    values_by_label,
)
from promql import asked_for

SHIPPED = Path(__file__).parents[2] / "deploy" / "prometheus"
TESTS = Path(__file__).parent / "prometheus"
GROUPS = yaml.safe_load((SHIPPED / "alerts.yml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
FAMILIES = [
    *router_families(),
    *sidecar_families(),
    *aggregator_families(),
    *process_families(),
]
LABELS = labels_by_name(FAMILIES)
VALUES = set(values_by_label(FAMILIES))
OF_PROMETHEUS = {"instance", "job"}


def promtool(*arguments: str) -> str:
    """Run it; what it said, if it found nothing wrong."""
    system_packages.ensure({"prometheus"})
    done = subprocess.run(
        [str(system_packages.find("promtool")), *arguments], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_configuration_is_valid_and_names_these_rules() -> None:
    said = promtool("check", "config", "--lint=all", str(SHIPPED / "prometheus.yml"))
    assert f"{len(RULES)} rules found" in said


@pytest.mark.slow
@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_fires_when_it_should_and_stays_silent_when_it_should(alert: str) -> None:
    file = TESTS / f"{alert}.yml"
    asked = [
        (case["expr"], case["exp_samples"])
        for test in yaml.safe_load(file.read_text())["tests"]
        for case in test["promql_expr_test"]
    ]
    assert all(f'ALERTS{{alertname="{alert}", alertstate="firing"}}' in expr for expr, _ in asked)
    assert any(samples for _, samples in asked), "nothing has it fire"
    assert any(not samples for _, samples in asked), "nothing has it stay silent"
    promtool("test", "rules", str(file))


def test_every_file_of_tests_is_an_alerts() -> None:
    assert {file.stem for file in TESTS.glob("*.yml")} == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_says_how_bad_it_is_what_it_means_and_what_to_do(alert: str) -> None:
    rule = ALERTS[alert]
    assert alert.startswith("Ullage")
    assert set(rule["labels"]) == {"severity"}
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    told = rule["annotations"]
    assert set(told) == {"summary", "description", "runbook"}
    assert "{{" in told["summary"], "which one is it?"
    assert all(len(words) > 20 for words in told.values())


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_that_refers_to_another_means_one_that_exists(alert: str) -> None:
    words = " ".join(ALERTS[alert]["annotations"].values())
    assert set(re.findall(r"Ullage[A-Z]\w+", words)) <= set(ALERTS) - {alert}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert", "recorded"))
def test_every_metric_label_and_value_of_a_rule_exists(rule: dict[str, str]) -> None:
    for asked in asked_for(rule["expr"]):
        assert asked.name in LABELS, asked.name
        for label, values in asked.matchers:
            if label not in OF_PROMETHEUS:
                assert label in LABELS[asked.name], f"{asked.name} has no label {label}"
                for value in values:
                    assert (asked.name, label, value) in VALUES, f"{asked.name}: {value}"


def test_every_metric_that_a_runbook_names_exists() -> None:
    told = " ".join(words for rule in ALERTS.values() for words in rule["annotations"].values())
    named = {asked.name for asked in asked_for(told)}
    assert named
    assert named <= set(LABELS)


def test_targets_are_looked_for_where_there_are_some() -> None:
    config = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    jobs = {job["job_name"]: job["file_sd_configs"] for job in config["scrape_configs"]}
    assert set(jobs) == {"ullage-router", "ullage-sidecar", "ullage-aggregator"}
    for job, ((files,),) in ((job, [of["files"] for of in found]) for job, found in jobs.items()):
        (group,) = yaml.safe_load((SHIPPED / files).read_text())
        assert bool(group["targets"]) is (job != "ullage-aggregator")  # Few have any.
