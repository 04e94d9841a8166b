"""The medallion graph with the lag on its edges: topics and folders, tables, temporary steps."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from include.catalog import Catalog
from include.monitoring import lag as lags
from include.monitoring import status
from include.monitoring.lag import Lag
from include.recovery import backfills
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table


@dataclass(frozen=True)
class Node:
    """kind: topic, folder, table or step. rows, quarantined: of a table that is stored, and of its quarantine; None
    where there is none. stale: whether it was made of rows that a backfill has replaced since.
    """

    name: str
    kind: str
    rows: int | None = None
    quarantined: int | None = None
    stale: bool = False


@dataclass(frozen=True)
class Edge:
    """What `target` reads. flow: which does it, and its lag; a view does it when it is refreshed, by the name of that
    source. A step is done by the flows of the tables that read it, so the edge into one has neither.
    """

    source: str
    target: str
    flow: str | None = None
    lag: Lag | None = None

    def as_json(self) -> dict[str, Any]:
        lag = self.lag and {**asdict(self.lag), "words": self.lag.words}
        return {"source": self.source, "target": self.target, "flow": self.flow, "lag": lag}


@dataclass(frozen=True)
class Graph:
    """nodes: each after those it reads."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    def text(self) -> str:
        """One line a node, indented below each that it reads; a node that several read stands below each of them."""
        read = {edge.target for edge in self.edges}
        return "\n".join(line for node in self.nodes if node.name not in read for line in self._branch(node, None, 0))

    def _branch(self, node: Node, edge: Edge | None, depth: int) -> Iterator[str]:
        yield "  " * depth + _line(node, edge)
        for out in self.edges:
            if out.source == node.name:
                below = next(one for one in self.nodes if one.name == out.target)
                yield from self._branch(below, out, depth + 1)


def look(tables: Catalog) -> Graph:
    """Raises nothing that a source that is away is to blame for: see `Lag.unknown`."""
    found = lags.look(tables.readers.values())
    edges: list[Edge] = []
    for flow in tables.readers.values():
        sources, steps = _sources(flow), [step.name for step in flow.steps]
        edges += [Edge(source, step) for step in steps[:1] for source in sources]
        edges += [Edge(before, after) for before, after in pairwise(steps)]
        edges += [Edge(source, flow.name, flow.flow, found[flow.flow]) for source in steps[-1:] or sources]
    # Several tables may read one step.
    edges = list({(edge.source, edge.target, edge.flow): edge for edge in edges}.values())
    origins = {edge.source: _kind(edge.source, tables) for edge in edges}
    nodes = [Node(name, kind) for name, kind in origins.items() if kind in ("topic", "folder")]
    nodes += [Node(name, "step") for name in tables.steps]
    stale = {one.table for one in backfills.stale_or_nothing()}
    nodes += [_table(table, table.name in stale) for table in tables.tables.values()]
    return Graph(tuple(nodes), tuple(edges))


def _sources(flow: Table) -> list[str]:
    match flow.source:
        case Kafka(pattern=None):
            return [f"kafka {name}" for name in flow.source.names]
        case Kafka():
            return [f"kafka /{flow.source.pattern}/"]
        case Files():
            return [settings().folder(flow.source.path)]
        case Delta():
            return [flow.source.table]
    raise AssertionError("a flow has one source")


def _kind(name: str, tables: Catalog) -> str:
    if name in tables.tables or name in tables.steps:
        return "table"
    return "topic" if name.startswith("kafka ") else "folder"


def _table(table: Table, stale: bool) -> Node:
    return Node(table.name, "table", status.rows_or_none(table.name), status.rows_or_none(table.quarantine), stale)


def _line(node: Node, edge: Edge | None) -> str:
    said = [node.name]
    if node.kind == "step":
        said.append("(a step, not stored)")
    if node.kind == "table":
        said.append("not stored yet" if node.rows is None else f"{node.rows:,} rows")
    if node.quarantined:
        said.append(f"{node.quarantined:,} quarantined")
    if node.stale:
        said.append("STALE: python -m include.ledger backfills says why")
    if edge and edge.lag:
        lag = edge.lag
        behind = "up to date" if lag.is_up_to_date else f"behind by {lag.words}" if not lag.unknown else lag.words
        said.append(behind if edge.flow == edge.target else f"{edge.flow} {behind}")
    return f"{said[0]}  {', '.join(said[1:])}".rstrip()
