"""The report of a query in groups, as Spark's own page shows them: durations, rates, sources, state, sink."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from include.monitoring.snapshot import FlowReport

RATES = ("numInputRows", "inputRowsPerSecond", "processedRowsPerSecond")


@dataclass(frozen=True)
class Group:
    """title, and lines of a name and a value."""

    title: str
    lines: list[tuple[str, str]]


@dataclass(frozen=True)
class ShownReport:
    """raw: the whole report as indented JSON."""

    batch: str
    at: str
    groups: list[Group]
    raw: str


def shown(report: FlowReport | None) -> ShownReport | None:
    """Returns None without a report, and where it is no JSON object."""
    if report is None:
        return None
    try:
        document = json.loads(report.raw)
    except ValueError:
        return None
    if not isinstance(document, dict) or not document:
        return None
    at = f"{datetime.fromtimestamp(report.at, UTC):%Y-%m-%d %H:%M:%S}Z"
    batch = f"{report.generation}/{report.batch}"
    return ShownReport(batch, at, list(_groups(document)), json.dumps(document, indent=2, ensure_ascii=False))


def _groups(document: Mapping[str, Any]) -> Iterator[Group]:
    yield Group("Durations, ms", _lines(document.get("durationMs")))
    rates = {name: document.get(name) for name in RATES if document.get(name) is not None}
    yield Group("Rows and rates", _lines({**rates, "counted by the driver": document.get("driver")}))
    yield Group("Sources", _of_list(document.get("sources"), "description"))
    yield Group("State operators", _of_list(document.get("stateOperators"), "operatorName"))
    sink = {"sink": document.get("sink"), "observed": document.get("observedMetrics")}
    yield Group("Sink and observed metrics", _lines(sink))


def _of_list(parts: Any, name: str) -> list[tuple[str, str]]:
    """Returns the lines of each part; the name of the part before them where there are several."""
    listed = [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    if len(listed) == 1:
        return _lines(listed[0])
    return [(f"{part.get(name)}: {line}", value) for part in listed for line, value in _lines(part)]


def _lines(values: Any, prefix: str = "") -> list[tuple[str, str]]:
    """Returns the values of an object, those of objects in it with the names of both."""
    if not isinstance(values, Mapping):
        return []
    found: list[tuple[str, str]] = []
    for name, value in values.items():
        if isinstance(value, Mapping) and not _is_offset(name):
            found += _lines(value, f"{prefix}{name} ")
        elif value is not None and value != {}:
            found.append((prefix + name, _text(value)))
    return found


def _is_offset(name: str) -> bool:
    return name.endswith("Offset")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.1f}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
