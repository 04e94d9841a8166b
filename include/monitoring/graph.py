"""Builds the medallion graph, with the lag on its edges: topics, folders, tables and temporary steps."""

from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from include.catalog import Catalog
from include.flows.lag import Lag
from include.monitoring import lag as lags
from include.monitoring import stale_rows, status
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table


@dataclass(frozen=True)
class Node:
    """A node. kind: topic, folder, table or step. stale: whether a backfill has replaced the rows it was made of.

    rows, quarantined: the rows of a stored table and of its quarantine, else None.
    """

    name: str
    kind: str
    rows: int | None = None
    quarantined: int | None = None
    stale: bool = False


@dataclass(frozen=True)
class Edge:
    """An edge: `target` reads `source`. flow, lag: the flow that reads, and its lag.

    A view reads when it is refreshed; its flow is named after that source. An edge into a step, or of a lookup, has no
    flow and no lag.
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
    """The graph. nodes: each after the nodes that it reads."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]


def build_graph(tables: Catalog) -> Graph:
    """Builds the graph. It does not raise where a source does not answer: see `Lag.unknown`."""
    flow_lags = lags.measure(tables.readers.values())
    edges = [replace(edge, lag=flow_lags[edge.flow]) if edge.flow else edge for edge in edges_of(tables)]
    origins = {edge.source: kind_of(edge.source, tables) for edge in edges}
    nodes = [Node(name, kind) for name, kind in origins.items() if kind in ("topic", "folder")]
    nodes += [Node(name, "step") for name in tables.steps]
    stale = {mark.table for mark in stale_rows.marks()[0]}
    nodes += [_table(table, table.name in stale) for table in tables.tables.values()]
    return Graph(tuple(nodes), tuple(edges))


def edges_of(tables: Catalog) -> list[Edge]:
    """Returns all edges, without lags."""
    edges: list[Edge] = []
    for flow in tables.readers.values():
        sources, steps = _sources(flow), [step.name for step in flow.steps]
        edges += [Edge(source, step) for step in steps[:1] for source in sources]
        edges += [Edge(before, after) for before, after in pairwise(steps)]
        edges += [Edge(source, flow.name, flow.flow) for source in steps[-1:] or sources]
        edges += [Edge(lookup.table, flow.name) for lookup in flow.lookups]
    # Several tables may read the same step.
    return list({(edge.source, edge.target, edge.flow): edge for edge in edges}.values())


def _sources(flow: Table) -> list[str]:
    match flow.source:
        case Kafka():
            names = [f"/{flow.source.pattern}/"] if flow.source.pattern is not None else flow.source.names
            suffix = f" of {flow.source.cluster}" if flow.source.cluster else ""
            return [f"kafka {name}{suffix}" for name in names]
        case Files():
            return [settings().folder(flow.source.path)]
        case Delta():
            return [flow.source.table]
    raise AssertionError("a flow has one source")


def kind_of(name: str, tables: Catalog) -> str:
    """Returns topic, folder, table or step."""
    if name in tables.steps:
        return "step"
    if name in tables.tables:
        return "table"
    return "topic" if name.startswith("kafka ") else "folder"


def _table(table: Table, stale: bool) -> Node:
    return Node(table.name, "table", status.rows_or_none(table.name), status.rows_or_none(table.quarantine), stale)
