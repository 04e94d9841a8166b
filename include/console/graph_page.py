"""The graph: who reads whom, with the state of each table and the lag of each flow."""

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from include.console import graph_layout, states, words
from include.console.board import FlowLine
from include.console.pages import Query
from include.console.readings import Look, Readings


@dataclass(frozen=True)
class Node:
    """label: below the name. words: of a tooltip. href: the page of a table, or the neighbourhood of a source."""

    state: str | None
    label: str
    words: str
    href: str


@dataclass(frozen=True)
class Edge:
    label: str
    words: str
    severity: str


def graph(readings: Readings, query: Query) -> dict[str, Any]:
    look, center = readings.look(), query.get("table") or None
    edges = look.snapshot.edges
    kinds = {edge.source: edge.source_kind for edge in edges} | {edge.target: edge.target_kind for edge in edges}
    kinds |= {table.table: "table" for table in look.snapshot.tables}
    lines = {line.flow: line for line in look.lines}
    drawing = graph_layout.layout(kinds, [(edge.source, edge.target) for edge in edges], center)
    return {
        **look.times,
        "here": "graph",
        "center": center if center in kinds else None,
        "tables": sorted(kinds),
        "drawing": drawing,
        "nodes": {name: _node(name, kind, look) for name, kind in kinds.items()},
        "edges": {(edge.source, edge.target): _edge(lines.get(edge.flow or "")) for edge in edges},
    }


def _node(name: str, kind: str, look: Look) -> Node:
    table = next((table for table in look.snapshot.tables if table.table == name), None)
    if table is None:
        return Node(None, kind, f"{kind} {name}", f"graph?{urlencode({'table': name})}")
    lines = [line for line in look.lines if line.flow in table.flows]
    state = min((line.state for line in lines), key=states.severity, default=None)
    rows = "not stored yet" if not table.is_stored else f"{words.count(table.rows)} rows"
    quarantined = f", {words.count(table.quarantined)} set aside" if table.quarantined else ""
    return Node(state, rows + quarantined, f"{name}: {state or table.kind}, {rows}", f"table/{words.in_url(name)}")


def _edge(line: FlowLine | None) -> Edge:
    if line is None:
        return Edge("", "no flow of its own", "quiet")
    return Edge(
        "" if line.behind == "0" else line.behind, f"{line.flow} behind by {line.behind}", states.css_class(line.state)
    )
