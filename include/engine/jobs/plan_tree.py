"""The analysed plan of a view as a tree: which tables each node reads, and a text that determines its rows."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from include.engine.batch.determinism import items

# Longer lists of columns would be truncated.
MOST_FIELDS = 1_000_000
# Nodes without inputs whose text shows their rows.
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
    def text(self) -> str:
        """All that determines the result of the node."""
        own = self.plan.simpleString(MOST_FIELDS)
        if self.table or self.name == "CTERelationRef":
            # Its own text has the number of the CTE, which differs each time, and no columns.
            own = f"{self.table or 'CTE'} {[column.toString() for column in items(self.plan.output())]}"
        elif self.name == "LocalRelation":
            own += str([row.toString() for row in items(self.plan.data())])
        return f"{own} ({', '.join(node.text for node in self.inputs + self.subqueries)})"

    @property
    def has_unknown_rows(self) -> bool:
        """Whether it has rows that are neither a table's nor shown by its text."""
        is_unknown = not (self.inputs or self.table or self.name in KNOWN_ROWS)
        return is_unknown or any(node.has_unknown_rows for node in self.inputs + self.subqueries)

    @property
    def depends_on_order(self) -> bool:
        """Whether it may give other rows if Spark reads the same rows in another order."""
        is_float = self.name == "Aggregate" and any(
            column.dataType().typeName() in ("double", "float") for column in items(self.plan.output())
        )
        return is_float or self.name in ORDERED or any(node.depends_on_order for node in self.inputs + self.subqueries)


def tree_of(rows: DataFrame, tables: Mapping[str, DataFrame]) -> PlanNode:
    """Returns the plan of `rows`, which are computed from those of these tables."""
    plans = {table: frame._jdf.queryExecution().analyzed() for table, frame in tables.items()}
    return _Builder(plans).node(rows._jdf.queryExecution().analyzed())


class _Builder:
    def __init__(self, tables: Mapping[str, Any]) -> None:
        self._tables = tables
        self._definitions: dict[int, PlanNode] = {}

    def node(self, plan: Any) -> PlanNode:
        name = plan.nodeName()
        table = next((table for table, source in self._tables.items() if plan.sameResult(source)), None)
        # A projection that changes nothing has the same result.
        if table and name == self._tables[table].nodeName():
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


def renumbered(text: str) -> str:
    """Returns the text of a plan with its columns numbered in the order of their appearance."""
    numbers: dict[str, str] = {}
    return re.sub(r"#\d+", lambda match: numbers.setdefault(match[0], f"#{len(numbers)}"), text)
