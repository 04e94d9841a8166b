"""Analyses the plan of a transform: whether a replayed batch gives the same rows."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.util import PythonEvalType

from include.engine.session import jvm_of

# Catalyst classes and their SQL names. Spark calls them deterministic, because they are constant within one query; a
# replay is another query.
CLOCKS = {
    "CurrentTimestamp": "current_timestamp",
    "CurrentDate": "current_date",
    "CurrentTime": "current_time",
    "LocalTimestamp": "localtimestamp",
    "Now": "now",
}
PYTHON = {"PythonUDF", "PythonUDAF", "PythonUDTF"}
# Python functions that get batches of rows, and return something for each row by itself.
OF_ROW_BATCHES = {
    PythonEvalType.SQL_SCALAR_ARROW_UDF,
    PythonEvalType.SQL_SCALAR_ARROW_ITER_UDF,
    PythonEvalType.SQL_SCALAR_PANDAS_UDF,
    PythonEvalType.SQL_SCALAR_PANDAS_ITER_UDF,
    PythonEvalType.SQL_MAP_ARROW_ITER_UDF,
    PythonEvalType.SQL_MAP_PANDAS_ITER_UDF,
}
# Catalyst's tree patterns of clocks, Python functions and generators, which may be Python functions.
PATTERNS = ("CURRENT_LIKE", "PYTHON_UDF", "GENERATOR")
# Plan nodes that treat each row alone. Unknown nodes count as others.
ROW_WISE = {
    "CTERelationDef",
    "CTERelationRef",
    "Expand",
    "Filter",
    "Generate",
    "MapInArrow",
    "MapInPandas",
    "Project",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "SubqueryAlias",
    "Union",
    "View",
    "WithCTE",
}
# Those that read one relation once.
OF_ONE_RELATION = {"Filter", "Generate", "Project", "SubqueryAlias", "View"}
# Relations whose rows never change.
CONSTANT = {"LocalRelation", "OneRowRelation"}


class AnalysedPlan:
    """The analysed plan of `rows`, which a transform computes from `sources`."""

    def __init__(self, rows: DataFrame, *sources: DataFrame) -> None:
        plan, self._sources = _plan(rows), [_plan(source) for source in sources]
        self._subqueries = items(plan.subqueriesAll())
        roots = (plan, *self._subqueries)
        self._nodes = [node for root in roots for node in _tree(root)]
        # Visiting every expression takes most of a check's time, so it happens only if Spark reports such a pattern.
        patterns = jvm_of(rows.sparkSession).org.apache.spark.sql.catalyst.trees.TreePattern
        has_some = any(root.containsPattern(patterns.withName(name)) for root in roots for name in PATTERNS)
        expressions = [root for node in self._nodes for root in items(node.expressions())] if has_some else []
        calls = [call for root in expressions for call in _tree(root)]
        self._calls = {call.nodeName() for call in calls}
        self._python_calls = [call for call in calls if call.nodeName() in PYTHON]

    @property
    def runs_python(self) -> bool:
        return bool(self._python_calls)

    @property
    def refused_python(self) -> str | None:
        """The name of a Python function in the plan that gets single rows, groups or windows of rows."""
        for call in self._python_calls:
            if call.nodeName() != "PythonUDF" or call.evalType() not in OF_ROW_BATCHES:
                return str(call.name())
        return None

    @property
    def clock(self) -> str | None:
        """The SQL name of a function in the plan that returns the current time."""
        return next((name for call, name in CLOCKS.items() if call in self._calls), None)

    @property
    def is_deterministic(self) -> bool:
        # A sample depends on the partitioning, whatever its seed, but Spark calls it deterministic.
        return all(node.deterministic() and node.nodeName() != "Sample" for node in self._nodes)

    @property
    def reads_stored_rows(self) -> bool:
        """Whether it reads a relation other than its sources."""
        return any(name.endswith("Relation") for name in set(self._own_steps) - CONSTANT)

    @property
    def needs_other_rows(self) -> str | None:
        """The first node that needs more than one row at a time, or rows of another relation."""
        return next(
            (name for name in self._own_steps if name not in ROW_WISE), "Subquery" if self._subqueries else None
        )

    @property
    def can_stream(self) -> bool:
        """Whether a stream of its single source needs no state and reads it once."""
        return set(self._own_steps) <= OF_ONE_RELATION and not self._subqueries

    @property
    def _own_steps(self) -> list[str]:
        """Names of the nodes that do not belong to the sources' own plans."""
        nodes = [node for node in self._nodes if not any(node.sameResult(source) for source in self._sources)]
        return [node.nodeName() for node in nodes]


def _plan(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def _tree(node: Any) -> Iterator[Any]:
    """Yields a node of a plan or an expression, and all nodes below it."""
    left = [node]
    while left:
        yield (found := left.pop())
        left += items(found.children())


def items(sequence: Any) -> list[Any]:
    """Returns a Scala sequence as a list."""
    return [sequence.apply(position) for position in range(sequence.size())]
