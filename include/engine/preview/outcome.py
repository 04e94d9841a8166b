"""What would become of rows that were made for a table: which rules they break, and which repeat each other."""

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BinaryType

from include.engine.batch import deduplicate, quality
from include.engine.batch.quality import RowCounts
from include.rules import ACTIONS, Rule
from include.spec import Append, Table

BECOMES = "_becomes"
KEPT, REPEATED = "kept", "repeated"
# What becomes of a row, the worst first.
ENDS = (*ACTIONS[:-1], REPEATED, KEPT)
SHOWN_BYTES = 200


@dataclass(frozen=True)
class Made:
    """A row that was made, the rules it breaks, and what would become of it: one of `ENDS`."""

    row: dict[str, Any]
    breaks: list[str]
    becomes: str


@dataclass(frozen=True)
class Outcome:
    """made: how many rows. ends: how many of them would become what. broke: each rule, and how many rows break it.

    rows: some of them, the worst first.
    """

    made: int
    ends: dict[str, int]
    broke: list[tuple[Rule, int]]
    columns: list[str]
    rows: list[Made]


def of(rows: DataFrame, table: Table, rules: tuple[Rule, ...], most: int) -> Outcome:
    """rules: of its rows. most: how many rows to give. The rows are compared with each other, and with none stored."""
    with kept(quality.with_violations(rows, rules, table, stored=None)) as judged:
        ended = _ended(judged, table, rules)
        groups = ended.groupBy(quality.RULES, BECOMES).count().collect()
        tally = RowCounts.of([(group[quality.RULES], group["count"]) for group in groups], rules)
        ends: Counter[str] = Counter()
        for group in groups:
            ends[group[BECOMES]] += group["count"]
        shown = _worst(ended, rows, most).collect()
    return Outcome(
        made=tally.read,
        ends={end: ends[end] for end in ENDS if ends[end]},
        broke=[(rule, tally.broke[rule.name]) for rule in rules],
        columns=rows.columns,
        rows=[Made(json.loads(one["row"]), one[quality.RULES], one[BECOMES]) for one in shown],
    )


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """Computed once, so that all that is said of them is said of the same rows."""
    try:
        yield rows.persist()
    finally:
        rows.unpersist()


def _ended(judged: DataFrame, table: Table, rules: tuple[Rule, ...]) -> DataFrame:
    """With what becomes of each row."""
    becomes: Column = F.lit(KEPT)
    for action in reversed(ACTIONS[:-1]):
        becomes = F.when(quality.ends_as(action, rules), action).otherwise(becomes)
    judged = judged.withColumn(BECOMES, becomes)
    if not (isinstance(table.write, Append) and table.write.unique):
        return judged
    good = deduplicate.placed(judged.filter(F.col(BECOMES) == KEPT), table.write, table.write.watermark)
    is_repeated = F.col(deduplicate.PLACE) > 1
    good = good.withColumn(BECOMES, F.when(is_repeated, REPEATED).otherwise(KEPT)).drop(deduplicate.PLACE)
    return good.unionByName(judged.filter(F.col(BECOMES) != KEPT))


def _worst(ended: DataFrame, rows: DataFrame, most: int) -> DataFrame:
    """`row`, as JSON, beside what it breaks and becomes."""
    badness = F.array_position(F.array(*map(F.lit, ENDS)), F.col(BECOMES))
    text = F.to_json(F.struct(*[_readable(rows, name) for name in rows.columns]), {"ignoreNullFields": "false"})
    worst = ended.orderBy(badness, F.desc(F.size(quality.RULES))).limit(most)
    return worst.select(text.alias("row"), quality.RULES, BECOMES)


def _readable(rows: DataFrame, name: str) -> Column:
    """Bytes as the text that they are, or else in hex; anything else as it is."""
    value = F.col(f"`{name}`")
    if not isinstance(rows.schema[name].dataType, BinaryType):
        return value
    text, hexed = value.cast("string"), F.hex(F.substring(value, 1, SHOWN_BYTES))
    return F.when(F.is_valid_utf8(text), text).otherwise(F.concat(F.lit("X'"), hexed, F.lit("'"))).alias(name)
