"""Determines what would happen to rows of a table: which rules they break, and which repeat each other."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType

from include import personal
from include.engine.rows import deduplicate, merge_changes, quality, transform
from include.engine.rows.quality import RowCounts
from include.rules import ACTIONS, Rule
from include.spec import Append, Table, Upsert

BECOMES = "_becomes"
KEPT, REPEATED = "kept", "repeated"
# Of a change of a key: it changes nothing, as it has no value or a later change counts, or it deletes its key or all.
TOMBSTONE, STALE, DELETES, TRUNCATES = "tombstone", "stale", "deletes", "truncates"
# What may happen to a row, worst first.
ENDS = (*ACTIONS[:-1], REPEATED, TOMBSTONE, STALE, TRUNCATES, DELETES, KEPT)
SHOWN_BYTES = 200


@dataclass(frozen=True)
class PreviewRow:
    """A row of the table, the rules it breaks, and what would happen to it: one of `ENDS`."""

    row: dict[str, Any]
    breaks: list[str]
    becomes: str


@dataclass(frozen=True)
class Outcome:
    """total: number of rows. ends: how many of them would end as what. broke: how many rows break each rule.

    rows: some rows, worst first.
    """

    total: int
    ends: dict[str, int]
    broke: list[tuple[Rule, int]]
    columns: list[str]
    rows: list[PreviewRow]


def of(rows: DataFrame, table: Table, rules: tuple[Rule, ...], limit: int) -> Outcome:
    """Returns the outcome of these rows. rules: of the table. limit: how many rows to include.

    The rows are compared with each other, but not with stored ones.
    """
    shown_rows = rows.drop(merge_changes.KNOWN)
    with persisted(quality.with_violations(rows, rules, table, stored=None)) as checked_rows:
        rows_with_end = _with_becomes(checked_rows, table, rules)
        groups = rows_with_end.groupBy(quality.RULES, BECOMES).count().collect()
        counts = RowCounts.of([(group[quality.RULES], group["count"]) for group in groups], rules)
        ends: Counter[str] = Counter()
        for group in groups:
            ends[group[BECOMES]] += group["count"]
        worst_rows = _worst(rows_with_end, shown_rows, limit).collect()
    return Outcome(
        total=counts.read,
        ends={end: ends[end] for end in ENDS if ends[end]},
        broke=[(rule, counts.broke[rule.name]) for rule in rules if rule.name in counts.broke],
        columns=shown_rows.columns,
        rows=[
            PreviewRow(personal.row(table, json.loads(row["row"])), row[quality.RULES], row[BECOMES])
            for row in worst_rows
        ],
    )


@contextmanager
def persisted(rows: DataFrame) -> Iterator[DataFrame]:
    """Yields the rows, computed once, so that all results refer to the same rows."""
    try:
        yield rows.persist()
    finally:
        rows.unpersist()


def _with_becomes(checked_rows: DataFrame, table: Table, rules: tuple[Rule, ...]) -> DataFrame:
    """Adds `_becomes`, what would happen to each row."""
    becomes: Column = F.lit(KEPT)
    for action in reversed(ACTIONS[:-1]):
        becomes = F.when(quality.ends_as(action, rules), action).otherwise(becomes)
    checked_rows = checked_rows.withColumn(BECOMES, becomes)
    if table.merges_changes:
        return checked_rows.withColumn(BECOMES, _end_of_change(table, table.write_as(Upsert)))
    if not table.write.unique:
        return checked_rows
    append = table.write_as(Append)
    kept_rows = deduplicate.with_rank(checked_rows.filter(F.col(BECOMES) == KEPT), append, append.watermark)
    is_repeated = F.col(deduplicate.PLACE) > 1
    kept_rows = kept_rows.withColumn(BECOMES, F.when(is_repeated, REPEATED).otherwise(KEPT)).drop(deduplicate.PLACE)
    return kept_rows.unionByName(checked_rows.filter(F.col(BECOMES) != KEPT))


def _end_of_change(table: Table, write: Upsert) -> Column:
    """What becomes of a change, compared with the others. Reads column `_becomes`."""
    is_kept, deleted = F.col(BECOMES) == KEPT, F.col(merge_changes.DELETED)
    truncates = F.col(merge_changes.TRUNCATES) if write.truncates else F.lit(False)
    is_of_key = is_kept & deleted.isNotNull() & ~truncates
    keys = [F.col(f"`{key}`") for key in write.keys]
    others = [F.col(f"`{name}`") for name in transform.names_of_rows(table) if name not in write.keys]
    newest = Window.partitionBy(is_of_key, *keys).orderBy(
        F.struct(F.col(f"`{write.sequence_by}`"), deleted, *others).desc()
    )
    return (
        F.when(~is_kept, F.col(BECOMES))
        .when(deleted.isNull(), TOMBSTONE)
        .when(truncates, TRUNCATES)
        .when(F.row_number().over(newest) > 1, STALE)
        .when(deleted, DELETES)
        .otherwise(KEPT)
    )


def _worst(rows_with_end: DataFrame, rows: DataFrame, limit: int) -> DataFrame:
    """Returns the worst rows: `row` as JSON, `_rules` and `_becomes`."""
    badness = F.array_position(F.array(*map(F.lit, ENDS)), F.col(BECOMES))
    text = F.to_json(F.struct(*[_readable(rows, name) for name in rows.columns]), {"ignoreNullFields": "false"})
    sorted_rows = rows_with_end.orderBy(badness, F.desc(F.size(quality.RULES))).limit(limit)
    return sorted_rows.select(text.alias("row"), quality.RULES, BECOMES)


def _readable(rows: DataFrame, name: str) -> Column:
    """Converts bytes to text if they are UTF-8, else to hex; leaves other types unchanged."""
    value = F.col(f"`{name}`")
    if not isinstance(rows.schema[name].dataType, BinaryType):
        return value
    text, hex_digits = value.cast("string"), F.hex(F.substring(value, 1, SHOWN_BYTES))
    return F.when(F.is_valid_utf8(text), text).otherwise(F.concat(F.lit("X'"), hex_digits, F.lit("'"))).alias(name)
