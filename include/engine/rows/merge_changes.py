"""Computes the rows of a table from changes of its keys: the latest row of each key, or its history.

The result depends only on the set of changes: their order, their repetition, and the batches that bring them do not
matter. The stored rows stand for earlier changes, together with the retained changes, which no stored row shows.

A change that truncates the table deletes every key, including those that arrive after it.

Of each key, one change counts as inserted, updated, deleted or unchanged: by the row of the key before and after the
batch, and for a history by its current row. The other changes of the key are stale. Tombstones are no changes. This
needs no look at the table besides that of the merge.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType

from include.spec import Upsert, WriteMode

# Of a change: whether it deletes its key (NULL for a tombstone, which changes nothing) or all keys, and whether it is
# retained already. Of a result: whether it is a row of the table, or a change to retain.
DELETED, TRUNCATES, RETAINED, SHOWN = "_deleted", "_truncates", "_retained", "_shown"
# Of a change before its rules are checked: whether it tells what it does. A condition that is NULL tells nothing if a
# value of the change could not be typed; else the source has left its flag out.
KNOWN = "_is_known"
# Of a table with partial changes: the sequence of the change that set each column, by column.
SEQUENCES = "_sequences"
VALID_FROM, VALID_TO, IS_CURRENT = "valid_from", "valid_to", "is_current"
# Internal columns: the newest change, the number of a row of a history, and whether a change begins it.
NEWEST, ROW, BEGINS = "_newest", "_row", "_begins"


def flags(write: WriteMode) -> tuple[str, ...]:
    """Returns the names of the columns that say what a change does."""
    if write.sequence_by is None:
        return ()
    return (DELETED, TRUNCATES) if write.truncates else (DELETED,)


def with_flags(write: WriteMode, is_tombstone: Column | None, has_errors: Column | None) -> list[Column]:
    """Returns the columns of `flags`, and `_is_known` where there are conditions and `has_errors`.

    is_tombstone: whether a change is a tombstone, unless a condition says that it deletes. has_errors: whether a value
    of it could not be typed.
    """
    if write.sequence_by is None:
        return []
    conditions = {DELETED: write.deletes, TRUNCATES: write.truncates}
    raw = {name: F.expr(conditions[name] or "false") for name in flags(write)}
    values = {name: F.coalesce(value, F.lit(False)) for name, value in raw.items()}
    is_known = raw[DELETED].isNotNull()
    if write.truncates:
        # A truncate often brings no columns, by which `deletes` could tell something.
        is_known = (is_known | raw[TRUNCATES]) & raw[TRUNCATES].isNotNull()
    if is_tombstone is not None:
        is_tombstone &= ~values[DELETED]
        values[DELETED], is_known = F.when(~is_tombstone, values[DELETED]), is_known | is_tombstone
    if has_errors is not None and (write.deletes or write.truncates):
        values[KNOWN] = is_known | ~has_errors
    return [value.alias(name) for name, value in values.items()]


def is_exempt(write: WriteMode) -> Column:
    """Whether no rule about values applies to a change: a delete often brings its key alone, a tombstone nothing."""
    exempt = F.coalesce(F.col(DELETED), F.lit(True))
    return exempt | (F.col(TRUNCATES) & _sequence(write).isNotNull()) if write.truncates else exempt


def retained_columns(write: Upsert, columns: Iterable[str]) -> list[str]:
    """Returns those of the columns of a change that are retained.

    Without a history, only deletes are: their keys, their place, and the time by which they are forgotten.
    """
    needed = {*write.keys, write.sequence_by, write.watermark and write.watermark.of, *flags(write)}
    return [name for name in columns if write.scd == 2 or name in needed]


def merged(changes: DataFrame, write: Upsert) -> DataFrame:
    """Returns the rows of the table for these keys, and the changes to retain.

    changes: all changes of some keys, and all that truncate the table, with the columns of the table, those of `flags`
    and `_retained`. Rows of the table are changes, too. Returns these columns and `_shown`, and for a history
    `valid_from`, `valid_to` and `is_current`.
    """
    changes = _without_values_of_deletes(changes.filter(F.col(DELETED).isNotNull()), write)
    if not write.truncates:
        return _merged(changes, write)
    sequence = write.sequence_by or ""
    # NULL in changes that were retained before the table declared truncates.
    changes = changes.withColumn(TRUNCATES, F.coalesce(TRUNCATES, F.lit(False)))
    truncates = changes.filter(TRUNCATES).groupBy(*_quoted([sequence])).agg(F.max(RETAINED).alias(RETAINED))
    changes = changes.filter(~F.col(TRUNCATES)).drop(TRUNCATES)
    # Of a key, a truncate is a delete that need not be retained once more.
    deletes = changes.select(*_quoted(write.keys)).distinct().crossJoin(truncates.select(*_quoted([sequence])))
    deletes = deletes.withColumns({DELETED: F.lit(True), RETAINED: F.lit(True)})
    rows = _merged(changes.unionByName(deletes, allowMissingColumns=True), write).withColumn(TRUNCATES, F.lit(False))
    truncates = truncates.withColumns({DELETED: F.lit(True), TRUNCATES: F.lit(True), SHOWN: F.lit(False)})
    return rows.unionByName(truncates, allowMissingColumns=True)


def _without_values_of_deletes(changes: DataFrame, write: Upsert) -> DataFrame:
    """Deletes are equal if their places are. What a row was before is not kept."""
    kept = {*retained_columns(replace(write, scd=1), changes.columns), RETAINED}
    return changes.selectExpr(
        *[f"`{name}`" if name in kept else f"IF({DELETED}, NULL, `{name}`) AS `{name}`" for name in changes.columns]
    )


def _merged(changes: DataFrame, write: Upsert) -> DataFrame:
    if write.scd == 2:
        return _history(changes, write)
    return _partial(changes, write) if write.partial else _latest(changes, write)


def _latest(changes: DataFrame, write: Upsert) -> DataFrame:
    newest = _newest_of(changes, write, write.keys)
    return newest.withColumn(SHOWN, ~F.col(DELETED))


def _partial(changes: DataFrame, write: Upsert) -> DataFrame:
    """Takes the newest value of each column that is not NULL, of the changes after the newest delete of the key."""
    changes = _with_sequences(changes, write)
    names = [name for name in _values(changes, write) if name != SEQUENCES]
    sequence, is_update = _sequence(write), ~F.col(DELETED)
    newest_delete = F.max(F.when(F.col(DELETED), F.struct(sequence.alias("at"), RETAINED)))
    deleted_at = newest_delete.at.alias("_deleted_at")
    changed_at = F.max(F.when(is_update, sequence)).alias("_changed_at")
    floats = float_columns(changes)
    newest = [
        F.max(F.when(is_update & F.col(f"`{name}`").isNotNull(), _set(name, sequence, name in floats))).alias(name)
        for name in names
    ]
    rows = changes.groupBy(*_quoted(write.keys)).agg(
        deleted_at, newest_delete[RETAINED].alias("_known"), changed_at, *newest
    )
    is_live = {name: _is_after(F.col(f"`{name}`.at")) for name in names}
    row = F.struct(
        *_quoted(write.keys),
        F.col("_changed_at").alias(write.sequence_by or ""),
        *[F.when(is_live[name], F.col(f"`{name}`.value")).alias(name) for name in names],
        _map_of({name: F.when(is_live[name], F.col(f"`{name}`.at")) for name in names}).alias(SEQUENCES),
        F.lit(False).alias(DELETED),
        F.lit(False).alias(RETAINED),
        _is_after(F.col("_changed_at")).alias(SHOWN),
    )
    delete = F.struct(
        *_quoted(write.keys),
        F.col("_deleted_at").alias(write.sequence_by or ""),
        *[F.lit(None).alias(name) for name in names],
        F.lit(None).alias(SEQUENCES),
        F.lit(True).alias(DELETED),
        F.col("_known").alias(RETAINED),
        F.lit(False).alias(SHOWN),
    )
    # Later changes from before the delete must not return, even if the key has a row again.
    parts = F.filter(
        F.array(row, delete), lambda part: part[SHOWN] | (part[DELETED] & part[write.sequence_by].isNotNull())
    )
    return rows.select(F.inline(parts)).select(*_quoted([*changes.columns, SHOWN]))


def _with_sequences(changes: DataFrame, write: Upsert) -> DataFrame:
    if SEQUENCES in changes.columns:
        return changes
    # A backfill merges all changes, without the rows of the table.
    type_name = changes.schema[write.sequence_by or ""].dataType.simpleString()
    return changes.withColumn(SEQUENCES, F.lit(None).cast(f"MAP<STRING, {type_name}>"))


def _set(name: str, sequence: Column, is_float: bool) -> Column:
    """The value of a column, and the sequence of the change that set it."""
    fields = [F.coalesce(F.col(SEQUENCES)[name], sequence).alias("at"), F.col(f"`{name}`").alias("value")]
    return F.struct(*fields, *([zero_text(name).alias("text")] if is_float else []))


def _is_after(at: Column) -> Column:
    """Whether this sequence is after the newest delete."""
    return at.isNotNull() & (F.col("_deleted_at").isNull() | (at > F.col("_deleted_at")))


def _history(changes: DataFrame, write: Upsert) -> DataFrame:
    """Begins a row with each change of a tracked column. The row shows its last change; the others are retained."""
    changes = changes.drop(VALID_FROM, VALID_TO, IS_CURRENT)
    by_sequence = Window.partitionBy(*_quoted(write.keys)).orderBy(_sequence(write))
    changes = _newest_of(changes, write, (*write.keys, write.sequence_by or ""))
    tracked = _quoted(write.tracked or _values(changes, write))
    differs = reduce(or_, [~column.eqNullSafe(F.lag(column).over(by_sequence)) for column in tracked], F.lit(False))
    after_delete = F.coalesce(F.lag(DELETED).over(by_sequence), F.lit(True))
    changes = changes.withColumn(BEGINS, F.col(DELETED) | after_delete | differs)
    changes = changes.withColumn(ROW, F.sum(F.col(BEGINS).cast("int")).over(by_sequence))
    of_row = Window.partitionBy(*_quoted(write.keys), ROW)
    to_end = by_sequence.rowsBetween(1, Window.unboundedFollowing)
    is_last = _sequence(write) == F.max(_sequence(write)).over(of_row)
    return changes.select(
        *_quoted(changes.columns[:-2]),
        (~F.col(DELETED) & is_last).alias(SHOWN),
        F.min(_sequence(write)).over(of_row).alias(VALID_FROM),
        F.min(F.when(F.col(BEGINS), _sequence(write))).over(to_end).alias(VALID_TO),
    ).withColumn(IS_CURRENT, F.col(VALID_TO).isNull())


def _newest_of(changes: DataFrame, write: Upsert, by: tuple[str, ...]) -> DataFrame:
    """Returns the newest change of each group. With equal sequences a delete wins, then the greatest values."""
    # Structs are compared field by field.
    fields = (write.sequence_by or "", DELETED, *_values(changes, write), RETAINED)
    names = [name for name in fields if name not in by]
    texts = [zero_text(name).alias(f"_text_of_{name}") for name in float_columns(changes) if name in names]
    order = [*_quoted(names[:-1]), *texts, *_quoted(names[-1:])]
    newest = changes.groupBy(*_quoted(by)).agg(F.max(F.struct(*order)).alias(NEWEST))
    return newest.select(*[F.col(f"`{name}`" if name in by else f"{NEWEST}.`{name}`") for name in changes.columns])


def float_columns(rows: DataFrame) -> list[str]:
    return [field.name for field in rows.schema if isinstance(field.dataType, FloatType | DoubleType)]


def zero_text(name: str) -> Column:
    """The text of a floating-point value, which orders the two zeros: they are equal, and one of them is to win."""
    return F.col(f"`{name}`").cast("string")


def _values(changes: DataFrame, write: Upsert) -> list[str]:
    """The columns that are neither keys nor the sequence."""
    return [name for name in changes.columns if name not in (*write.keys, write.sequence_by, DELETED, RETAINED)]


def _sequence(write: WriteMode) -> Column:
    return F.col(f"`{write.sequence_by}`")


def _quoted(names: Iterable[str]) -> list[Column]:
    return [F.col(f"`{name}`") for name in names]


def _map_of(values: dict[str, Column]) -> Column:
    entries = F.array(*[F.struct(F.lit(name), value) for name, value in values.items()])
    return F.map_filter(F.map_from_entries(entries), lambda _, value: value.isNotNull())


CHANGED, BEFORE, AFTER, HAD, HAS = "_changed", "_before", "_after", "_had", "_has"


@dataclass(frozen=True)
class KeyOutcomes:
    """What became of the kept changes of a batch, which are as many as keys, stale, truncates and tombstones together.

    keys: how many the batch changes. stale: its further changes of these keys. truncates: its changes that delete all
    keys. tombstones: its records without a value, which change nothing. inserted: keys that had no row, or no current
    one, and have one now. deleted: the reverse. updated: keys whose rows differ otherwise. None: Delta's commit counts
    them. The other keys are unchanged.
    """

    keys: int
    stale: int
    truncates: int
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    tombstones: int = 0


def count_keys(write: Upsert) -> Column:
    """Returns the number of keys in a merge that has a row of each key."""
    return F.count_if(~F.col(TRUNCATES)) if write.truncates else F.count("*")


def count_tombstones(changes: DataFrame) -> int:
    """Counts the changes that are none, with the columns of `flags`."""
    return changes.filter(F.col(DELETED).isNull()).count()


def count_outcomes(
    changes: DataFrame, result: DataFrame, write: Upsert, kept: int, may_have_tombstones: bool = True
) -> KeyOutcomes:
    """Counts the outcomes of a batch.

    changes: its good changes, `kept` in number, with the columns of `flags`. result: the rows of
    `merged`, and the stored rows of the keys, which have no value in `_shown`.
    """
    truncates = changes.filter(TRUNCATES).count() if write.truncates else 0
    tombstones = count_tombstones(changes) if may_have_tombstones else 0
    of_keys = changes.filter(F.col(DELETED).isNotNull())
    of_keys = of_keys.filter(~F.col(TRUNCATES)) if write.truncates else of_keys
    keys = [F.col(f"`{key}`") for key in write.keys]
    rows = _before_and_after(result, write).unionByName(
        of_keys.select(*keys, F.lit(True).alias(CHANGED)), allowMissingColumns=True
    )
    # Of hashes, because sorted rows would cost as much as the merge.
    per_key = rows.groupBy(*keys).agg(
        F.bool_or(CHANGED).alias(CHANGED),
        F.bit_xor(BEFORE).eqNullSafe(F.bit_xor(AFTER)).alias("is_same"),
        F.coalesce(F.bool_or(HAD), F.lit(False)).alias(HAD),
        F.coalesce(F.bool_or(HAS), F.lit(False)).alias(HAS),
    )
    had, has = F.col(HAD), F.col(HAS)
    counts = (
        per_key.filter(CHANGED)
        .agg(
            F.count("*").alias("keys"),
            F.count_if(~had & has).alias("inserted"),
            F.count_if((had == has) & ~F.col("is_same")).alias("updated"),
            F.count_if(had & ~has).alias("deleted"),
        )
        .collect()[0]
    )
    stale = kept - counts["keys"] - truncates - tombstones
    return KeyOutcomes(stale=stale, truncates=truncates, tombstones=tombstones, **counts.asDict())


def _before_and_after(result: DataFrame, write: Upsert) -> DataFrame:
    """Returns for each row the hash of what is stored, or of what will be, and whether it is current."""
    internal = (DELETED, TRUNCATES, RETAINED, SHOWN)
    floats = float_columns(result)
    names = [name for name in result.columns if name not in internal]
    row = F.xxhash64(*[zero_text(name) if name in floats else _hashable(name) for name in names])
    is_stored, is_shown = F.col(SHOWN).isNull(), F.coalesce(F.col(SHOWN), F.lit(False))
    is_current = F.col(IS_CURRENT) if write.scd == 2 else F.lit(True)
    return result.select(
        *[F.col(f"`{key}`") for key in write.keys],
        F.when(is_stored, row).alias(BEFORE),
        F.when(is_shown, row).alias(AFTER),
        (is_stored & is_current).alias(HAD),
        (is_shown & is_current).alias(HAS),
    )


def _hashable(name: str) -> Column:
    # Spark hashes no maps.
    return F.sort_array(F.map_entries(name)) if name == SEQUENCES else F.col(f"`{name}`")
