"""The analysed plan of a view as a tree: which tables each node reads."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from include.engine.batch.determinism import items

# Nodes without inputs whose plan shows their rows.
KNOWN_ROWS = {"LocalRelation", "OneRowRelation", "Range"}
# Nodes that choose rows, or number them, by an order that may have ties.
ORDERED = {"Deduplicate", "GlobalLimit", "LocalLimit", "Offset", "Tail", "Window", "WindowGroupLimit"}


@dataclass(frozen=True)
class PlanNode:
    """A node of an analysed plan, with CTEs in place. table: the source that it stands for. reads: tables below it."""

    plan: Any
    name: str
    inputs: tuple["PlanNode", ...]
    subqueries: tuple["PlanNode", ...]
    table: str | None
    reads: frozenset[str]

    @property
    def has_unknown_rows(self) -> bool:
        """Whether it has rows that are neither a table's nor shown by its plan."""
        is_unknown = not (self.inputs or self.table or self.name in KNOWN_ROWS)
        return is_unknown or any(node.has_unknown_rows for node in self.inputs + self.subqueries)

    @property
    def depends_on_order(self) -> bool:
        """Whether it may give other rows if Spark reads the same rows in another order."""
        is_float = self.name == "Aggregate" and any(
            column.dataType().typeName() in ("double", "float") for column in items(self.plan.output())
        )
        return is_float or self.name in ORDERED or any(node.depends_on_order for node in self.inputs + self.subqueries)


def tree_of(rows: DataFrame, sources: "Sources") -> PlanNode:
    """Returns the plan of `rows`, which are computed from those of these tables."""
    return _Builder(sources).node(rows._jdf.queryExecution().analyzed())


class Sources:
    """The rows of tables from which a plan is computed, by name of the table."""

    def __init__(self, tables: Mapping[str, DataFrame]) -> None:
        plans = {table: frame._jdf.queryExecution().analyzed() for table, frame in tables.items()}
        # A projection that changes nothing has the same result as a source, and another name.
        self._plans = {table: (plan, plan.nodeName()) for table, plan in plans.items()}

    def table_of(self, plan: Any) -> str | None:
        """Returns the table whose rows a node of a plan reads; None for a node that computes them."""
        name = plan.nodeName()
        found = (table for table, (source, own) in self._plans.items() if name == own and plan.sameResult(source))
        return next(found, None)


class _Builder:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._definitions: dict[int, PlanNode] = {}

    def node(self, plan: Any) -> PlanNode:
        name = plan.nodeName()
        if table := self._sources.table_of(plan):
            return PlanNode(plan, name, (), (), table, frozenset((table,)))
        if name == "WithCTE":
            for definition in items(plan.cteDefs()):
                self._definitions[definition.id()] = self.node(definition.child())
        if name == "CTERelationRef":
            inputs: tuple[PlanNode, ...] = (self._definitions[plan.cteId()],)
        else:
            children = [plan.plan()] if name == "WithCTE" else items(plan.children())
            inputs = tuple(self.node(child) for child in children)
        subqueries = tuple(self.node(subquery) for subquery in items(plan.subqueries()))
        reads = frozenset(table for node in inputs + subqueries for table in node.reads)
        return PlanNode(plan, name, inputs, subqueries, None, reads)
