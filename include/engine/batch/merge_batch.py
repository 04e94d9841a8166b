"""Merges a batch of changes into its table.

First the changes that no row shows are stored, then the rows, in one commit each. A batch that is tried again replaces
the first, so that a kill between both leaves no trace.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_

from delta.tables import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from include.engine import commit, struct_type
from include.engine.batch.writer import CheckedWriter, add_to_companion
from include.engine.commit import read_table
from include.engine.rows import merge_changes, transform
from include.engine.rows.merge_changes import RETAINED, SEQUENCES, SHOWN, TRUNCATES, KeyOutcomes
from include.engine.rows.micro_batch import MicroBatch
from include.engine.rows.quality import RowCounts
from include.lake import locations
from include.spec import Flow, Table, Upsert, ddl

# Of a source row of the MERGE: whether its stored row has no place any more.
GONE = "_gone"


@dataclass(frozen=True)
class Merged:
    """The merge of a batch. source: of the MERGE, with the columns of the table and `_gone`.

    hidden: changes to retain, with the columns of `transform.names_of_retained`. is_computed: whether `source` has
    what becomes of all stored rows of its keys. Otherwise it has the newest change of each key, which may be older than
    the stored row. result: as for `merge_changes.count_outcomes` if it is computed. keys: how many keys `result` has
    otherwise.
    """

    source: DataFrame
    hidden: DataFrame
    is_computed: bool
    result: DataFrame
    keys: int


class MergeWriter(CheckedWriter):
    """Merges changes that meet the rules into the rows of their keys."""

    def suits(self, table: Flow) -> bool:
        return table.merges_changes

    def _commit(self, rows: DataFrame, counts: RowCounts, minutes: set[int], batch: MicroBatch) -> None:
        table, write = batch.table, batch.table.write_as(Upsert)
        merged = merge(rows, table, write, batch.last_commit)
        outcomes = _outcomes(merged, rows, table, write, counts.kept)
        batch = replace(batch, metadata=batch.metadata.counting(counts, outcomes))
        add_to_companion(merged.hidden, table.retained, batch)
        commit.execute(lambda: replace_rows(merged, table, write), batch.spark, batch.metadata)


def _outcomes(merged: Merged, changes: DataFrame, table: Table, write: Upsert, kept: int) -> KeyOutcomes:
    may_have_tombstones = transform.has_tombstones(table)
    if merged.is_computed:
        return merge_changes.count_outcomes(changes, merged.result, write, kept, may_have_tombstones)
    tombstones = merge_changes.count_tombstones(changes) if may_have_tombstones else 0
    return KeyOutcomes(merged.keys, stale=kept - merged.keys - tombstones, truncates=0, tombstones=tombstones)


def merge(changes: DataFrame, table: Table, write: Upsert, last_commit: tuple[int, int] | None) -> Merged:
    """Merges changes with what is stored of their keys. last_commit: generation and batch of the flow's newest
    commit.
    """
    spark = changes.sparkSession
    stored, retained = read_table(spark, table.name), _retained(spark, table, last_commit)
    truncates_table = bool(write.truncates and changes.filter(TRUNCATES).head(1))
    if not truncates_table:
        keys = changes.select(*_columns(write.keys)).distinct()
        # A truncate of the table has no key.
        truncates = retained.filter(TRUNCATES) if write.truncates else retained.limit(0)
        stored, retained = _of_keys(stored, keys, write), _of_keys(retained, keys, write).unionByName(truncates)
    is_computed = truncates_table or write.partial or write.scd == 2
    parts = [changes.withColumn(RETAINED, F.lit(False)), retained.withColumn(RETAINED, F.lit(True))]
    if is_computed:
        nothing = {name: F.lit(False) for name in (*merge_changes.flags(write), RETAINED)}
        parts.append(stored.withColumns(nothing))
    result = merge_changes.merged(reduce(_union, parts), write)
    if is_computed:
        result = _union(result, stored)
    # MERGE refuses a source that is computed from cached rows, as the changes are.
    result = result.localCheckpoint()
    is_hidden = ~F.col(SHOWN) & ~F.col(RETAINED)
    counts = result.agg(F.count_if(is_hidden).alias("hidden"), merge_changes.count_keys(write).alias("keys"))
    hidden_count, keys_count = counts.collect()[0]
    hidden = result.filter(is_hidden).select(*_columns(transform.names_of_retained(table)))
    hidden = transform.coalesce_small(hidden, hidden_count)
    source = _rows_and_gone(result, stored.columns, write) if is_computed else _newest(result, stored.columns, write)
    return Merged(source, hidden, is_computed, result, keys_count)


def _rows_and_gone(result: DataFrame, columns: list[str], write: Upsert) -> DataFrame:
    """Returns the rows of the table for these keys, and the stored rows that have no place any more."""
    names, rows = _columns(_identity(write)), result.filter(SHOWN).select(*_columns(columns))
    # The stored rows lack the columns of a merge.
    gone = result.filter(F.col(SHOWN).isNull()).select(*names).join(rows.select(*names), list(_identity(write)), "anti")
    return _union(rows.withColumn(GONE, F.lit(False)), gone.withColumn(GONE, F.lit(True)))


def _newest(result: DataFrame, columns: list[str], write: Upsert) -> DataFrame:
    """Returns the newest change of each key."""
    of_keys = ~F.col(TRUNCATES) if write.truncates else F.lit(True)
    return result.filter(of_keys).withColumn(GONE, ~F.col(SHOWN)).select(*_columns([*columns, GONE]))


def _union(first: DataFrame, second: DataFrame) -> DataFrame:
    return first.unionByName(second, allowMissingColumns=True)


def _retained(spark: SparkSession, table: Table, last_commit: tuple[int, int] | None) -> DataFrame:
    """Returns the retained changes of committed batches."""
    generation, batch = last_commit or (0, 0)
    is_committed = f"_generation < {generation} OR _generation = {generation} AND _batch <= {batch}"
    return read_table(spark, table.retained).filter(is_committed).select(*_columns(transform.names_of_retained(table)))


def _of_keys(rows: DataFrame, keys: DataFrame, write: Upsert) -> DataFrame:
    same = [rows[f"`{key}`"].eqNullSafe(keys[f"`{key}`"]) for key in write.keys]
    return rows.join(keys, reduce(and_, same), "left_semi")


def replace_rows(merged: Merged, table: Table, write: Upsert) -> None:
    """Replaces the stored rows. Rows that stay as they are are not written."""
    identity = _identity(write)
    names = [name for name in merged.source.columns if name != GONE]
    values = [name for name in names if name not in identity]
    floats = merge_changes.float_columns(merged.source)
    is_changed = reduce(or_, [~_is_same(name, name in floats) for name in values], F.lit(False))
    applies = is_changed if merged.is_computed else _is_newer(table, write, floats)
    columns: dict[str, str | Column] = {name: F.col(f"new.`{name}`") for name in names}
    source = _with_declared_types(merged.source, table)
    (
        DeltaTable.forPath(merged.source.sparkSession, str(locations.table_path(table.name)))
        .alias("stored")
        .merge(source.alias("new"), reduce(and_, [_is_same(name) for name in identity]))
        .whenMatchedDelete(F.col(f"new.{GONE}") if merged.is_computed else F.col(f"new.{GONE}") & applies)
        .whenMatchedUpdate(~F.col(f"new.{GONE}") & applies, columns)
        .whenNotMatchedInsert(f"NOT new.{GONE}", columns)
        .execute()
    )


def _with_declared_types(rows: DataFrame, table: Table) -> DataFrame:
    """Returns these rows, in which a field of a struct is NOT NULL where the table declares it so.

    MERGE refuses to cast a struct whose field may be NULL, and no expression says that it is not. The rules of the
    table have checked the values.
    """
    columns = _required_as(rows.schema, struct_type.from_ddl(table.schema))
    # A row that is gone has NULL in a column that is NOT NULL.
    columns = StructType([StructField(field.name, field.dataType) for field in columns])
    if columns == StructType([StructField(field.name, field.dataType) for field in rows.schema]):
        return rows
    session, plan = rows.sparkSession._jsparkSession, rows._jdf.queryExecution()
    java_rows = session.internalCreateDataFrame(plan.toRdd(), session.parseDataType(columns.json()), False)
    return DataFrame(java_rows, rows.sparkSession)


def _required_as(columns: StructType, declared: StructType) -> StructType:
    """Returns these columns. Those that are declared NOT NULL become so, at each depth."""
    fields = []
    for column in columns:
        like = next((field for field in declared if ddl.key(field.name) == ddl.key(column.name)), column)
        type_ = column.dataType
        if isinstance(type_, StructType) and isinstance(like.dataType, StructType):
            type_ = _required_as(type_, like.dataType)
        fields.append(StructField(column.name, type_, column.nullable and like.nullable, column.metadata))
    return StructType(fields)


def _identity(write: Upsert) -> tuple[str, ...]:
    """The columns that identify a row of the table."""
    return write.keys if write.scd == 1 else (*write.keys, write.sequence_by or "")


def _is_newer(table: Table, write: Upsert, floats: list[str]) -> Column:
    """Whether the new change wins over the stored row, by the order of `merge_changes`."""
    values = [name for name in transform.names_of_rows(table) if name not in (*write.keys, write.sequence_by)]

    def order(side: str, is_delete: Column) -> Column:
        fields = [F.col(f"{side}.`{write.sequence_by}`"), is_delete, *[F.col(f"{side}.`{name}`") for name in values]]
        fields += [F.col(f"{side}.`{name}`").cast("string") for name in floats if name in values]
        return F.struct(*[field.alias(f"_{number}") for number, field in enumerate(fields)])

    return order("new", F.col(f"new.{GONE}")) > order("stored", F.lit(False))


def _is_same(name: str, is_float: bool = False) -> Column:
    """Whether the stored row and the new one have the same value."""
    old, new = F.col(f"stored.`{name}`"), F.col(f"new.`{name}`")
    if is_float:
        # Both zeros are equal, and their texts are not.
        old, new = old.cast("string"), new.cast("string")
    # Spark does not compare maps. A merge builds this one in the order of the columns.
    return F.map_entries(old).eqNullSafe(F.map_entries(new)) if name == SEQUENCES else old.eqNullSafe(new)


def _columns(names: Iterable[str]) -> list[Column]:
    return [F.col(f"`{name}`") for name in names]
