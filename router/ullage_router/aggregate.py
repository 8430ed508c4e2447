"""Several workers' admin pages as one: pure, no process and no socket.

Rules
* Counts only grow: those of a worker that has ended, or does not answer, are added as last seen.
* What is now (a gauge, a row of `/replicas`) comes from workers that answer, and from no other.
* A series of a replica, a sidecar or a source that no worker knows any more vanishes, as it does in
  a worker.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from ullage_router.families import LARGEST

Series = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and labels."""
_BOUNDED: Final = ("replica", "sidecar", "source")
_MOST_DECISIONS: Final = 256


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with all its series."""

    kind: str
    help: str
    samples: dict[Series, float] = field(default_factory=dict)


Families = Mapping[str, Family]
"""By name, without `_total`."""


def parse(text: str) -> Families:
    """A worker's `/metrics`."""
    return {
        metric.name: Family(
            metric.type,
            metric.documentation,
            {(s.name, tuple(s.labels.items())): s.value for s in metric.samples},
        )
        for metric in text_string_to_metric_families(text)
    }


def total(parts: Iterable[Families]) -> Families:
    """The counts of all, added up. No gauges: they are nobody's any more."""
    return merge([], list(parts))


def merge(answered: Sequence[Families], others: Sequence[Families] = ()) -> Families:
    """What `answered` say now, and the counts that `others` had."""
    merged: dict[str, Family] = {}
    for families in answered:
        for name, family in families.items():
            _add(merged, name, family, family.samples)
    known = {pair for f in merged.values() for _, labels in f.samples for pair in labels}
    for families in others:
        for name, family in families.items():
            if family.kind == "gauge":
                continue
            kept = {
                series: value
                for series, value in family.samples.items()
                if not answered or all(p in known for p in series[1] if p[0] in _BOUNDED)
            }
            _add(merged, name, family, kept)
    return merged


def _add(
    merged: dict[str, Family], name: str, family: Family, samples: Mapping[Series, float]
) -> None:
    into = merged.setdefault(name, Family(family.kind, family.help)).samples
    largest = family.kind == "gauge" and name in LARGEST
    for series, value in samples.items():
        before = into.get(series)
        if before is None:
            into[series] = value
        else:
            into[series] = max(before, value) if largest else before + value


def metrics(families: Families) -> Iterator[Metric]:
    """In the form that is written out."""
    for name, family in families.items():
        metric = Metric(name, family.help, family.kind)
        for (sample, labels), value in family.samples.items():
            metric.add_sample(sample, dict(labels), value)
        yield metric


def replicas(pages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`/replicas`: each as the worker sees it that heard of it last, with the counts of all."""
    rows: dict[tuple[str, int | None], dict[str, Any]] = {}
    for row in (row for page in pages for row in page["replicas"]):
        key = row["url"], row["dp_rank"]
        known = rows.get(key)
        if known is None:
            rows[key] = dict(row)
            continue
        rows[key] = {**(row if _age(row) < _age(known) else known), **_counts(known, row)}
    sidecars: dict[str, dict[str, Any]] = {}
    for sidecar in (sidecar for page in pages for sidecar in page["sidecars"]):
        known = sidecars.setdefault(sidecar["url"], sidecar)
        if sidecar["problem"] and not known["problem"]:
            sidecars[sidecar["url"]] = sidecar
    sources: dict[tuple[str, str], dict[str, Any]] = {}
    for source in (source for page in pages for source in page["sources"]):
        known = sources.setdefault((source["list"], source["source"]), source)
        if source["problem"] and not known["problem"]:
            sources[source["list"], source["source"]] = source
    ways = {page["routing_by"] for page in pages}
    return {
        "routing_by": "mixed" if len(ways) > 1 else next(iter(ways), "score"),
        "replicas": [rows[key] for key in sorted(rows, key=str)],
        "sidecars": list(sidecars.values()),
        "sources": list(sources.values()),
    }


def _counts(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Those of both rows together, as far as there are any."""
    counts: dict[str, Any] = {
        name: one[name] + other[name]
        for name in ("in_flight", "dispatched", "ejections")
        if name in one
    }
    if "failures" in one:  # In `/status`.
        failures = one["failures"], other["failures"]
        kinds = {
            kind: sum(each.get(kind, 0) for each in failures)
            for kind in {**failures[0], **failures[1]}
        }
        pairs = zip(one["first_byte_counts"], other["first_byte_counts"], strict=True)
        counts |= {"failures": kinds, "first_byte_counts": [sum(pair) for pair in pairs]}
    return counts


def _age(row: Mapping[str, Any]) -> float:
    return float("inf") if row["age_s"] is None else float(row["age_s"])


def decisions(pages: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """`/decisions`: the latest of all workers, newest first, each with its worker's number."""
    rows = [{**row, "worker": number} for number, page in pages.items() for row in page]
    return sorted(rows, key=lambda row: row["at"], reverse=True)[:_MOST_DECISIONS]


def health(pages: Sequence[Mapping[str, Any]], *, stopping: bool) -> tuple[int, dict[str, Any]]:
    """`/healthz`: 200 while a worker knows a replica that serves, and the router goes on."""
    nothing = {"eligible": 0, "serving": 0, "replicas": 0}
    best = max(pages, key=lambda page: page["serving"], default=nothing)
    content = {**best, "stopping": stopping}
    return (200 if content["serving"] and not stopping else 503), content
