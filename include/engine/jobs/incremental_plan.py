"""Decides from Spark's analysed plan of a view whether rows appended to its sources are enough to refresh it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.delta.commit_history import RecomputeNeeded
from include.engine.jobs.plan_text import PlanText
from include.engine.rows.transform import OF_ONE_RELATION, AnalysedPlan, items

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


# Plan nodes by which each row of their input adds its own rows to the result, whatever the other rows are.
ROW_BY_ROW = OF_ONE_RELATION | {"CTERelationRef", "Repartition", "RepartitionByExpression", "ResolvedHint", "WithCTE"}
# Those that have the columns of their input, in the same places.
SAME_COLUMNS = {"CTERelationRef", "SubqueryAlias", "View", "WithCTE"}
# Join types, with the sides whose new rows only add rows to the result: 0 for left, 1 for right.
ADDING_SIDES = {
    "INNER": (0, 1),
    "CROSS": (0, 1),
    "LEFT OUTER": (0,),
    "LEFT SEMI": (0,),
    "LEFT ANTI": (0,),
    "RIGHT OUTER": (1,),
}
# Aggregate functions, with the function that combines two of their results.
COMBINING = {"count": "sum", "max": "max", "min": "min", "sum": "sum"}
REASONS = {
    "Aggregate": "it filters, joins or computes with the results of its aggregates",
    "Deduplicate": "it removes duplicates",
    "Distinct": "it removes duplicates",
    "GlobalLimit": "it takes a limited number of rows",
    "Sort": "it sorts its rows",
    "Union": "a union in it has rows of its own, or joined with others",
    "Window": "it has window functions",
}


@dataclass(frozen=True)
class Grouping:
    """How rows of an aggregate are combined. functions: by column, the SQL function that combines two results."""

    keys: tuple[str, ...]
    functions: dict[str, str]

    def combined(self, rows: DataFrame) -> DataFrame:
        """Returns one row for each key, with the types of `rows`. rows: several results of the same aggregate."""
        # A GROUP BY takes NULL keys as equal, and its sum keeps the scale of a decimal, which `+` may reduce.
        values = [F.expr(f"{function}(`{column}`)").alias(column) for column, function in self.functions.items()]
        # Without an aggregate function, `agg` has nothing to do.
        keys = [f"`{key}`" for key in self.keys]
        groups = rows.groupBy(*keys).agg(*values) if values else rows.select(*keys).distinct()
        return groups.select(*[F.col(f"`{field.name}`").cast(field.dataType) for field in rows.schema])


class ViewPlan:
    """The plan of a view over its tables. schema: of its rows. text: determines the rows, the same in any process.

    grouping: set if the view is an aggregate whose rows can be combined.
    """

    def __init__(
        self, spark: SparkSession, schemas: Mapping[str, StructType], compute: Callable[..., DataFrame]
    ) -> None:
        """schemas: of the tables, by name. compute: returns the view's rows from the rows of these tables, by name.

        Raises RecomputeNeeded for a view that no appended rows can refresh.
        """
        placeholders = {table: _unreadable_rows(spark, table, schema) for table, schema in schemas.items()}
        try:
            rows = compute(placeholders)
        except (PySparkException, Py4JJavaError) as error:
            raise RecomputeNeeded("its transform cannot be analysed without rows") from error
        analysed = AnalysedPlan(rows, *placeholders.values())
        if analysed.clock or not analysed.is_deterministic:
            raise RecomputeNeeded("its transform is not deterministic")
        if analysed.runs_python:
            raise RecomputeNeeded("it runs Python functions, whose code its plan does not show")
        if analysed.reads_stored_rows:
            raise RecomputeNeeded("its transform reads more than its sources")
        sources = Sources(placeholders)
        self._root = tree_of(rows, sources)
        if self._root.reads != schemas.keys():
            raise RecomputeNeeded("its transform does not use all its sources")
        if self._root.has_unknown_rows:
            raise RecomputeNeeded("its plan does not show all rows that it is made of")
        self.schema = rows.schema
        self.text = PlanText(spark, sources.table_of).of(rows._jdf.queryExecution().analyzed())
        self.grouping: Grouping | None = None
        if aggregate := _find_aggregate(self._root, {column: place for place, column in enumerate(rows.columns)}):
            self._root, self.grouping = aggregate[0].inputs[0], _grouping(*aggregate)
        obstacles = [_obstacle(self._root, changed) for changed in (*({table} for table in schemas), set(schemas))]
        if all(obstacles):
            raise RecomputeNeeded(obstacles[0])

    def tables_to_read_appended(self, changed: set[str]) -> set[str]:
        """Returns the tables of which appended rows alone are read. changed: those to which rows were appended.

        Raises RecomputeNeeded if these are not enough.
        """
        obstacle = _obstacle(self._root, changed)
        # Of a union, an unchanged table gives no new row.
        if obstacle and _obstacle(self._root, set(self._root.reads)):
            raise RecomputeNeeded(obstacle)
        return set(self._root.reads) if obstacle else changed


def _obstacle(node: PlanNode, changed: set[str]) -> str | None:
    """Returns why new rows of the changed tables do more than add rows to the node's result; None if they do not.

    node: reads one of these tables.
    """
    if node.table:
        return None
    tables, name = " or ".join(sorted(changed)), node.name
    reading = [place for place, below in enumerate(node.inputs) if below.reads & changed]
    if any(subquery.reads & changed for subquery in node.subqueries):
        return f"a subquery in it reads {tables}"
    if any(below.depends_on_order for below in node.inputs + node.subqueries if not below.reads & changed):
        return "one side of a join depends on the order of its rows"
    if name == "Join":
        join_type = node.plan.joinType().sql()
        if len(reading) > 1:
            return f"both sides of a join read {tables}"
        if reading[0] not in ADDING_SIDES.get(join_type, ()):
            return f"a new row of {tables} changes other rows of its {join_type} JOIN"
    elif not (name in ROW_BY_ROW or (name == "Union" and len(reading) == len(node.inputs))):
        return REASONS.get(name, f"it needs other rows ({name})")
    return next(filter(None, (_obstacle(node.inputs[place], changed) for place in reading)), None)


def _find_aggregate(node: PlanNode, columns: dict[str, int]) -> tuple[PlanNode, dict[str, int]] | None:
    """Returns the aggregate whose results are the view's columns, and their places in it; None for other views.

    columns: places of the view's columns in the node's output.
    """
    if node.subqueries:
        return None
    if node.name == "Aggregate":
        return node, columns
    if node.name == "Project":
        ids = {column.exprId().id(): place for place, column in enumerate(items(node.plan.child().output()))}
        places = [_place(expression, ids) for expression in items(node.plan.projectList())]
        moved = {column: place for column, old in columns.items() if (place := places[old]) is not None}
        return _find_aggregate(node.inputs[0], moved) if len(moved) == len(columns) else None
    return _find_aggregate(node.inputs[0], columns) if node.name in SAME_COLUMNS else None


def _unreadable_rows(spark: SparkSession, table: str, schema: StructType) -> DataFrame:
    """Returns rows with these columns that no query can read. Its plan is the same for the same table only."""
    columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in schema]
    return spark.range(1).select(*columns).where(F.raise_error(F.lit(f"rows of {table}")).isNull())


def _place(expression: Any, ids: dict[int, int]) -> int | None:
    """Returns the place of the column that the expression renames at most; None for anything else."""
    column = _unnamed(expression)
    return ids.get(column.exprId().id()) if column.nodeName() == "AttributeReference" else None


def _unnamed(expression: Any) -> Any:
    return expression.child() if expression.nodeName() == "Alias" else expression


def _grouping(aggregate: PlanNode, columns: dict[str, int]) -> Grouping:
    """columns: places of the view's columns in the results of the aggregate. Raises RecomputeNeeded."""
    expressions, groups = items(aggregate.plan.aggregateExpressions()), items(aggregate.plan.groupingExpressions())
    keys: dict[str, int] = {}
    functions: dict[str, str] = {}
    for column, place in columns.items():
        value = _unnamed(expressions[place])
        key = next((number for number, group in enumerate(groups) if value.semanticEquals(group)), None)
        if key is None:
            functions[column] = _combining(value)
        else:
            keys[column] = key
    if set(keys.values()) != set(range(len(groups))):
        raise RecomputeNeeded("it groups by more than its columns")
    return Grouping(tuple(keys), functions)


def _combining(value: Any) -> str:
    """Returns the function that combines two results of an aggregate function. Raises RecomputeNeeded."""
    if value.nodeName() != "AggregateExpression":
        raise RecomputeNeeded(REASONS["Aggregate"])
    function = value.aggregateFunction()
    name = function.prettyName()
    if value.isDistinct() or name not in COMBINING:
        raise RecomputeNeeded(f"results of {name}({'DISTINCT' if value.isDistinct() else ''}) cannot be combined")
    if name == "sum":
        type_name = function.dataType().typeName()
        if not type_name.startswith(("long", "decimal")):
            raise RecomputeNeeded(f"a sum of {function.dataType().sql()} depends on the order of its rows")
        if function.evalContext().evalMode().toString() != "ANSI":
            raise RecomputeNeeded("an overflow of its sums is no error")
    return COMBINING[name]
