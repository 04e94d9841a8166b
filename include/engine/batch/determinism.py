"""What Spark's analysed plan tells of a transform: whether a replayed batch would come out the same."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

# Spark's classes for what SQL calls so. It holds these for deterministic, because they are constant within one query;
# a replay is another query.
CLOCKS = {
    "CurrentTimestamp": "current_timestamp",
    "CurrentDate": "current_date",
    "CurrentTime": "current_time",
    "LocalTimestamp": "localtimestamp",
    "Now": "now",
}
PYTHON = {"PythonUDF", "PythonUDAF", "PythonUDTF"}
# What Spark marks trees with that call a clock, a Python function, or a function that makes rows, of Python perhaps.
PATTERNS = ("CURRENT_LIKE", "PYTHON_UDF", "GENERATOR")
# Steps of a plan that look at one row at a time; what is not known to be one is refused.
ROW_WISE = {
    "CTERelationDef",
    "CTERelationRef",
    "Expand",
    "Filter",
    "Generate",
    "Project",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "SubqueryAlias",
    "Union",
    "View",
    "WithCTE",
}
# Those of them that read one relation, and make no second one of it.
OF_ONE_RELATION = {"Filter", "Generate", "Project", "SubqueryAlias", "View"}
# Relations of a plan that nobody can change.
CONSTANT = {"LocalRelation", "OneRowRelation"}


class AnalysedPlan:
    """The plan of `rows`, which were made of `sources`."""

    def __init__(self, rows: DataFrame, *sources: DataFrame) -> None:
        plan, self._origins = _plan(rows), [_plan(source) for source in sources]
        self._subqueries = items(plan.subqueriesAll())
        roots = (plan, *self._subqueries)
        self._nodes = [node for root in roots for node in _tree(root)]
        # To ask for each expression takes most of the time of a check, so only where Spark knows of such a one.
        patterns = rows.sparkSession._jvm.org.apache.spark.sql.catalyst.trees.TreePattern
        has_some = any(root.containsPattern(patterns.withName(name)) for root in roots for name in PATTERNS)
        expressions = [root for node in self._nodes for root in items(node.expressions())] if has_some else []
        self._calls = {call.nodeName() for root in expressions for call in _tree(root)}

    @property
    def runs_python(self) -> bool:
        return bool(self._calls & PYTHON)

    @property
    def clock(self) -> str | None:
        """The name of a function that it calls and that tells the time."""
        return next((name for call, name in CLOCKS.items() if call in self._calls), None)

    @property
    def is_deterministic(self) -> bool:
        # Which rows a sample takes hangs on how they are partitioned, whatever the seed; Spark holds it for
        # deterministic.
        return all(node.deterministic() and node.nodeName() != "Sample" for node in self._nodes)

    @property
    def reads_stored_rows(self) -> bool:
        """Whether it reads a relation that is not its source."""
        return any(name.endswith("Relation") for name in set(self._strange) - CONSTANT)

    @property
    def needs_other_rows(self) -> str | None:
        """The first step that looks at more than one row at a time, or at rows from elsewhere."""
        return next((name for name in self._strange if name not in ROW_WISE), "Subquery" if self._subqueries else None)

    @property
    def can_stream(self) -> bool:
        """Whether a stream of its one source needs no state for it, and reads that once."""
        return set(self._strange) <= OF_ONE_RELATION and not self._subqueries

    @property
    def _strange(self) -> list[str]:
        """Its steps, except the sources' own leaves, which pass for what they are."""
        own = [node for node in self._nodes if not any(node.sameResult(origin) for origin in self._origins)]
        return [node.nodeName() for node in own]


def _plan(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def _tree(node: Any) -> Iterator[Any]:
    """A node of a plan or of an expression, and all below it."""
    yield node
    for child in items(node.children()):
        yield from _tree(child)


def items(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(position) for position in range(sequence.size())]
