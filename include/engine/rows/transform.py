"""Applies a table's transform: a function of DataFrames, or a SQL query that refers to them by name.

`AnalysedPlan` tells what may be done with its rows: whether a replayed batch gives the same, say.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, StructType
from pyspark.util import PythonEvalType

from include.engine import python_limits, struct_type
from include.engine.commit import read_table
from include.engine.rows import (
    deduplicate,
    lookup,
    merge_changes,
    parse,
    parse_avro,
    parse_debezium,
    pseudonyms,
    storable,
)
from include.engine.rows.merge_changes import flags
from include.engine.session import jvm_of
from include.spec import Avro, Bucket, Debezium, Flow, Parse, Table, Transform, Upsert, ddl

SOURCE = "source"


def apply(rows: DataFrame, transform: Transform | Mapping[str, Transform]) -> Any:
    """Returns what the transform computes from `rows`; a SQL query names them `source`."""
    assert not isinstance(transform, Mapping), "a flow has the transform of its branch"
    return _query({SOURCE: rows}, transform) if isinstance(transform, str) else transform(rows)


def apply_join(frames: Mapping[str, DataFrame], transform: Callable[..., Any] | str | Mapping[str, Transform]) -> Any:
    """Returns what the transform of a view computes from its sources, by name."""
    assert not isinstance(transform, Mapping), "a view has no branches"
    return _query(frames, transform) if isinstance(transform, str) else transform(**frames)


def tables_read(spark: SparkSession, text: str) -> set[str]:
    """Returns the names of all tables that a query reads, `source` among them, whether or not they exist."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(_as_subquery(text))
    return set(_relations(plan, frozenset()))


def _query(frames: Mapping[str, DataFrame], text: str) -> DataFrame:
    # Each streaming query has its own session, and a temporary view exists in one session only.
    spark = next(iter(frames.values())).sparkSession
    for name, rows in frames.items():
        rows.createOrReplaceTempView(name)
    try:
        return spark.sql(_as_subquery(text))
    finally:
        for name in frames:
            spark.catalog.dropTempView(name)


def _as_subquery(text: str) -> str:
    """Wraps the text in a subquery, where Spark accepts only a query: it would execute a command."""
    return f"SELECT * FROM (\n{text}\n)"


def _relations(plan: Any, cte_names: frozenset[str]) -> Iterator[str]:
    """Yields the tables of a parsed plan. cte_names: the names that WITH defines."""
    if plan.nodeName() == "UnresolvedWith":
        for pair in items(plan.cteRelations()):
            yield from _relations(pair._2(), cte_names)
            cte_names = cte_names | {pair._1().lower()}
    if plan.nodeName() == "UnresolvedRelation":
        name = ".".join(items(plan.multipartIdentifier())).lower()
        yield from () if name in cte_names else (name,)
    for child in (*items(plan.children()), *items(plan.subqueries())):
        yield from _relations(child, cte_names)


# Most rows that a batch writes as one file; larger batches use all cores and write several.
ROWS_PER_FILE = 100_000
# A source row as JSON: its column, and how much of it is kept.
RECORD, RECORD_CHARACTERS = "_record", 1_000_000
# Times in JSON with all of their digits.
JSON_TIMES = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def apply_transform(rows: DataFrame, table: Table) -> DataFrame:
    """Returns source rows as rows of the table, in the columns of its schema: parsed, looked up and transformed.

    Lookups read the newest versions. Changes of keys have the columns of `names_of_changes`, and `_is_known`.
    """
    return transformed(parsed(rows, table), table)


def parsed(rows: DataFrame, table: Table) -> DataFrame:
    """Returns source rows with the typed columns of the table's `parse`."""
    if not table.parse:
        return rows
    rows = _typed(rows, table, table.parse, struct_type.from_ddl(table.schema))
    return parse.strict(rows) if table.parse.fails else rows


def transformed(rows: DataFrame, table: Table, dimensions: Sequence[DataFrame] | None = None) -> DataFrame:
    """Returns parsed rows as `apply_transform` does. dimensions: the rows of the tables of its lookups, in their order;
    None for the newest ones.
    """
    if table.lookups:
        if dimensions is None:
            dimensions = lookup.dimensions(rows.sparkSession, table, None)
        rows = lookup.join(rows, table, dimensions)
    if table.transform:
        python_limits.limit_memory(rows.sparkSession, table)
        rows = apply(rows, table.transform)
        python_limits.require_limits(rows, table)
    rows = pseudonyms.applied(rows, table)
    columns = [F.col(f"`{name}`") for name in names_of_rows(table)]
    if table.merges_changes:
        may_be_tombstone = has_tombstones(table) and "_op" in rows.columns
        is_tombstone = F.col("_op").eqNullSafe(parse_debezium.TOMBSTONE) if may_be_tombstone else None
        columns += merge_changes.with_flags(table.write, is_tombstone, _has_errors(rows))
    return rows.select(*columns)


def _has_errors(rows: DataFrame) -> Column | None:
    """Whether a value of a row could not be typed; None if the rows do not tell."""
    if "_errors" not in rows.columns or not isinstance(rows.schema["_errors"].dataType, ArrayType):
        return None
    return F.coalesce(F.size("_errors") > 0, F.lit(False))


def has_tombstones(table: Table) -> bool:
    """Whether changes of the table may be tombstones, which change nothing."""
    return any(isinstance(part.parse, Debezium) for part in (*table.steps, table))


def _typed(rows: DataFrame, table: Table, declared: Parse, schema: StructType) -> DataFrame:
    match declared:
        case Avro():
            return parse_avro.typed(rows, table, declared, schema)
        case Debezium():
            return parse_debezium.typed(rows, declared, schema, table.write.partial)
        case _:
            return parse.typed(rows, table, declared, schema)


def names_of_rows(table: Table) -> list[str]:
    """Returns the columns that the transform makes: those of the table, without those that a merge computes."""
    computed = ddl.columns(table.computed_schema) if table.computed_schema else []
    return [name for name in struct_type.from_ddl(table.schema).fieldNames() if name not in computed]


def names_of_changes(table: Table) -> list[str]:
    """Returns the columns of a batch: those of `names_of_rows`, and for changes of keys what each change does."""
    return [*names_of_rows(table), *flags(table.write)]


def names_of_retained(table: Table) -> list[str]:
    """Returns the columns of `names_of_changes` that are retained of a change that no row shows."""
    return merge_changes.retained_columns(table.write_as(Upsert), names_of_changes(table))


def apply_steps(rows: DataFrame, table: Table) -> DataFrame:
    """Returns source rows as rows of the last temporary step before the table."""
    for step in table.steps:
        rows = apply_transform(rows, step)
    return rows


def starts(rows: DataFrame, bucket: Bucket) -> DataFrame:
    """Returns the bucket of each row, in column `start`, in seconds since 1970."""
    return rows.select(F.unix_seconds(deduplicate.bucket(bucket.of, bucket.unit)).alias("start"))


def count_by_bucket(starts: DataFrame) -> dict[int | None, int]:
    """Counts the rows of each bucket. starts: column `start`, as `starts` returns it."""
    return {row["start"]: row["count"] for row in starts.groupBy("start").count().collect()}


@dataclass(frozen=True)
class Buckets:
    """The buckets that an aggregate recomputes, as SQL conditions: of the source rows to read, and of its rows."""

    source: str = "true"
    rows: str = "true"

    @classmethod
    def at(
        cls, starts: Iterable[int | None], bucket: Bucket, write: Upsert, failing: Collection[int | None] = ()
    ) -> "Buckets":
        """The buckets with these starts, in seconds since 1970, and maybe some between them, but none of `failing`."""
        starts, reach = set(starts), write.reach_seconds
        source = deduplicate.condition(bucket.of, starts, bucket.unit, reach)
        # Rows within reach belong to other buckets, which are not complete.
        rows = deduplicate.condition(bucket.name, starts, bucket.unit) if reach else "true"
        if numbers := ", ".join(str(start) for start in failing if start is not None):
            time = f"`{bucket.name}`" if reach else f"date_trunc('{bucket.unit}', `{bucket.of}`)"
            others = f"coalesce(unix_seconds({time}) NOT IN ({numbers}), true)"
            source, rows = (source, f"{rows} AND {others}") if reach else (f"{source} AND {others}", rows)
        return cls(source, rows)


def recomputed(
    spark: SparkSession,
    flow: Flow,
    write: Upsert,
    version: int,
    buckets: Buckets = Buckets(),
    left_out: Collection[str] = (),
) -> DataFrame:
    """Returns rows of an aggregate, computed from all source rows at a version. left_out: rows as JSON."""
    source = read_table(spark, flow.source.table, version)
    return aggregated(without(source, left_out), flow, write, buckets)


def of_buckets(source: DataFrame, table: Table, buckets: Buckets) -> DataFrame:
    """Returns the source rows that buckets are made of; with steps, which may add their time, all rows. For an
    aggregate without buckets, the rows of the oldest files come first.
    """
    if table.write.recompute is None:
        return source.orderBy(F.col("_metadata.file_modification_time"))
    return source if table.steps else source.filter(buckets.source)


def record(names: Iterable[str]) -> Column:
    """Returns a row with these columns as JSON, of which a quarantine keeps so many characters."""
    return F.substring(F.to_json(F.struct(*[F.col(f"`{name}`") for name in names]), JSON_TIMES), 1, RECORD_CHARACTERS)


def without(rows: DataFrame, records: Collection[str]) -> DataFrame:
    """Returns the rows that are not among these, as `record` makes them."""
    return _joined(rows, records, "left_anti") if records else rows


def only(rows: DataFrame, records: Collection[str]) -> DataFrame:
    """Returns the rows that are among these, as `record` makes them."""
    return _joined(rows, records, "left_semi") if records else rows.limit(0)


def _joined(rows: DataFrame, records: Collection[str], how: str) -> DataFrame:
    listed = rows.sparkSession.createDataFrame([(text,) for text in sorted(records)], f"{RECORD} STRING")
    return rows.join(F.broadcast(listed), record(rows.columns) == F.col(RECORD), how)


def aggregated(source: DataFrame, table: Table, write: Upsert, buckets: Buckets = Buckets()) -> DataFrame:
    """Returns rows of an aggregate, computed from these rows of its source.

    Reading them fails if one breaks a rule that the columns of the table imply.
    """
    source = apply_steps(source, table)
    if bucket := write.recompute:
        source = source.filter(buckets.source).withColumn(bucket.name, deduplicate.bucket(bucket.of, bucket.unit))
    # Such a row is not quarantined by itself: a search finds the source rows that it is made of.
    return storable.guarded(apply_transform(source, table).filter(buckets.rows), storable.rules_of(table))


def coalesce_small(rows: DataFrame, count: int) -> DataFrame:
    """Returns small batches in one partition, and so one file; large ones unchanged, so that all cores write."""
    return rows.coalesce(1) if count <= ROWS_PER_FILE else rows


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
