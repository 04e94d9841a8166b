"""The graph: who reads whom, with the state of each table and the lag of each flow.

Tables stand in columns: each right of all that it reads, near what it reads. A large graph is shown around one table;
what does not fit is counted.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from include.console import states, words
from include.console.board import FlowLine
from include.console.pages import Query
from include.console.readings import Look, Readings

MOST_NODES = 60
COLUMN, ROW = 320, 56
BOX_WIDTH, BOX_HEIGHT = 210, 36
MARGIN = 8


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
    drawing = layout(kinds, [(edge.source, edge.target) for edge in edges], center)
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


@dataclass(frozen=True)
class Placed:
    """A node in the drawing. folded: how many of its neighbours are not in it."""

    name: str
    x: int
    y: int
    folded: int = 0


@dataclass(frozen=True)
class Line:
    source: str
    target: str
    path: str
    x: int
    y: int


@dataclass(frozen=True)
class Layout:
    """nodes, lines: what is drawn. left_out: the nodes of the graph that are not."""

    nodes: list[Placed]
    lines: list[Line]
    width: int
    height: int
    left_out: int


def layout(names: Iterable[str], edges: Iterable[tuple[str, str]], center: str | None = None) -> Layout:
    """edges: pairs of what is read and what reads it. center: the table around which a large graph is shown.

    Without one, a large graph is shown around the nodes with most neighbours.
    """
    names, edges = list(dict.fromkeys(names)), sorted(set(edges))
    neighbours: dict[str, set[str]] = {name: set() for name in names}
    for source, target in edges:
        neighbours[source].add(target)
        neighbours[target].add(source)
    shown = _around(center, names, neighbours)
    inside = [(source, target) for source, target in edges if source in shown and target in shown]
    columns = _columns([name for name in names if name in shown], inside)
    places = {
        name: (MARGIN + number * COLUMN, MARGIN + row * ROW)
        for number, column in enumerate(columns)
        for row, name in enumerate(column)
    }
    return Layout(
        [Placed(name, x, y, len(neighbours[name] - shown)) for name, (x, y) in places.items()],
        [_line(source, target, places) for source, target in inside],
        2 * MARGIN + max(0, len(columns) - 1) * COLUMN + BOX_WIDTH,
        2 * MARGIN + max(map(len, columns), default=0) * ROW,
        len(names) - len(shown),
    )


def _around(center: str | None, names: list[str], neighbours: Mapping[str, set[str]]) -> set[str]:
    """The nearest nodes of the center, at most `MOST_NODES`; all, if they fit and nobody asks for a center."""
    is_known = center in neighbours
    if not is_known and len(names) <= MOST_NODES:
        return set(names)
    by_degree = sorted(names, key=lambda name: (name != center, -len(neighbours[name]), name))
    shown: set[str] = set()
    for start in by_degree[:1] if is_known else by_degree:
        ahead = [] if start in shown or len(shown) == MOST_NODES else [start]
        shown.update(ahead)
        while ahead and len(shown) < MOST_NODES:
            nearest = sorted(neighbours[ahead.pop(0)] - shown)[: MOST_NODES - len(shown)]
            shown.update(nearest)
            ahead += nearest
    return shown


def _columns(names: list[str], edges: list[tuple[str, str]]) -> list[list[str]]:
    sources: dict[str, list[str]] = {name: [] for name in names}
    for source, target in edges:
        sources[target].append(source)
    depths: dict[str, int] = {}
    # As many passes as the longest way: the catalog refuses a cycle, and a drawing survives one.
    for _ in names:
        deeper = {name: 1 + max((depths.get(source, 0) for source in sources[name]), default=-1) for name in names}
        if deeper == depths:
            break
        depths = deeper
    columns: list[list[str]] = [[] for _ in range(max(depths.values(), default=-1) + 1)]
    rows: dict[str, int] = {}
    for depth, column in enumerate(columns):
        members = sorted(name for name in names if depths[name] == depth)
        column += sorted(
            members, key=lambda name: (_mean([rows[source] for source in sources[name] if source in rows]), name)
        )
        rows.update({name: row for row, name in enumerate(column)})
    return columns


def _mean(rows: list[int]) -> float:
    return sum(rows) / len(rows) if rows else 0.0


def _line(source: str, target: str, places: Mapping[str, tuple[int, int]]) -> Line:
    (x1, y1), (x2, y2) = places[source], places[target]
    x1, y1, y2 = x1 + BOX_WIDTH, y1 + BOX_HEIGHT // 2, y2 + BOX_HEIGHT // 2
    middle = (x1 + x2) // 2
    return Line(source, target, f"M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}", middle, (y1 + y2) // 2 - 4)
