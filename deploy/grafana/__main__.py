"""The dashboard as Grafana reads it: written anew whenever what it shows has changed.

Usage: python -m grafana --write FILE    (make docs)
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from grafana.panel import Kind, Panel
from grafana.rows import ROWS

_WIDTH: Final = 24
_HEIGHTS: Final = {Kind.NUMBER: 4, Kind.LINES: 8, Kind.STATES: 8}
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_GOOD, _AMBER, _RED = "green", "orange", "red"
_VARIABLES: Final = (
    ("router", "Router", "label_values(ullage_router_build_info, instance)"),
    (
        "replica",
        "Replica",
        'label_values(ullage_router_replica_standing{instance=~"$router"}, replica)',
    ),
    ("node", "Sidecar", "label_values(ullage_sidecar_build_info, instance)"),
)


def dashboard() -> dict[str, Any]:
    """The whole, as Grafana 10 and later import and provision it."""
    return {
        "uid": "ullage",
        "title": "Ullage",
        "description": "Where vLLM requests go, and why.",
        "tags": ["ullage", "vllm"],
        "schemaVersion": 38,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "5s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "",
        "annotations": {"list": []},
        "templating": {"list": [_data_source(), *(_variable(*row) for row in _VARIABLES)]},
        "panels": list(_placed()),
    }


def _data_source() -> dict[str, Any]:
    return {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": name},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _placed() -> Iterator[dict[str, Any]]:
    """Rows below each other; in a row, panels from left to right as they fit."""
    number, y = 0, 0
    for row in ROWS:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": row.question,
            "collapsed": False,
            "panels": [],
            "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        }
        x, y, height = 0, y + 1, 0
        for panel in row.panels:
            number += 1
            if x + panel.width > _WIDTH:
                x, y, height = 0, y + height, 0
            place = {"x": x, "y": y, "w": panel.width, "h": _HEIGHTS[panel.kind]}
            height = max(height, place["h"])
            x += panel.width
            yield {"id": number, "gridPos": place, **_panel(panel)}
        y += height


def _panel(panel: Panel) -> dict[str, Any]:
    return {
        "type": panel.kind.value,
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _SOURCE,
                "expr": expression,
                "legendFormat": legend,
                "instant": panel.kind is Kind.NUMBER,
                "range": panel.kind is not Kind.NUMBER,
            }
            for index, (expression, legend) in enumerate(panel.queries)
        ],
        "fieldConfig": {"defaults": _field(panel), "overrides": []},
        "options": _options(panel),
    }


def _field(panel: Panel) -> dict[str, Any]:
    field: dict[str, Any] = {
        "unit": panel.unit,
        "color": {"mode": "palette-classic" if panel.kind is Kind.LINES else "thresholds"},
        "thresholds": {"mode": "absolute", "steps": _steps(panel)},
    }
    if panel.kind is Kind.LINES:
        field["min"] = 0
        field["custom"] = {
            "lineWidth": 1,
            "fillOpacity": 30 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
            "showPoints": "never",
            "spanNulls": False,
            "thresholdsStyle": {"mode": "off" if panel.amber is None else "dashed"},
        }
    if panel.most is not None:
        field["max"] = panel.most
    return field


def _steps(panel: Panel) -> list[dict[str, Any]]:
    """Colours from a value on. Grafana wants them rising."""
    amber, red = panel.amber, panel.red
    if panel.kind is Kind.STATES:
        return [{"color": "transparent", "value": None}, {"color": "blue", "value": 1}]
    if amber is None or red is None:
        return [{"color": _GOOD, "value": None}]
    if red < amber:
        rows = ((_RED, None), (_AMBER, red), (_GOOD, amber))
    else:
        rows = ((_GOOD, None), (_AMBER, amber), (_RED, red))
    return [{"color": color, "value": value} for color, value in rows]


def _options(panel: Panel) -> dict[str, Any]:
    match panel.kind:
        case Kind.NUMBER:
            return {
                "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
                "colorMode": "value",
                "graphMode": "none",
                "textMode": "value_and_name" if len(panel.queries) > 1 else "value",
            }
        case Kind.STATES:
            return {"showValue": "never", "mergeValues": True, "legend": {"showLegend": False}}
        case Kind.LINES:
            return {
                "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
                "tooltip": {"mode": "multi", "sort": "desc"},
            }


def text() -> str:
    """The file."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


def main() -> int:
    """Write it."""
    flags = argparse.ArgumentParser(prog="grafana", description="write the dashboard's JSON")
    flags.add_argument("--write", type=Path, required=True, metavar="FILE")
    path: Path = flags.parse_args().write
    path.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
