"""Changes of keys, merged in any order and in any batches, give the rows that all of them give at once."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from include.engine.rows import merge_changes
from include.engine.rows.merge_changes import (
    DELETED,
    IS_CURRENT,
    RETAINED,
    SEQUENCES,
    SHOWN,
    TRUNCATES,
    VALID_FROM,
    VALID_TO,
)
from include.ledger import row_outcomes
from include.spec import Upsert
from tests.support.expected.changes import (
    Change,
    history,
    in_batches,
    latest,
    outcomes,
    partial,
    partial_with_sequences,
    random_changes,
)

COLUMNS = "id INT, place STRING, mood STRING, seq INT"
KEYS, SEQUENCE = ("id",), "seq"
LATEST = Upsert(KEYS, sequence_by=SEQUENCE)
PARTIAL = Upsert(KEYS, sequence_by=SEQUENCE, partial=True)
HISTORY = Upsert(KEYS, sequence_by=SEQUENCE, scd=2)
TRACKED = Upsert(KEYS, sequence_by=SEQUENCE, scd=2, tracked=("place",))
CASES, BATCHES = 400, 4


@dataclass
class MergedTable:
    """A table that only this test holds, with its retained changes."""

    spark: SparkSession
    write: Upsert
    rows: list[Row] = field(default_factory=list)
    retained: list[Row] = field(default_factory=list)

    @property
    def schema(self) -> str:
        partial = f", {SEQUENCES} MAP<STRING, INT>" if self.write.partial else ""
        return f"{COLUMNS}{partial}, {DELETED} BOOLEAN, {TRUNCATES} BOOLEAN, {RETAINED} BOOLEAN"

    def merge(self, batch: Sequence[Change], truncates: Sequence[int], counts: bool = False) -> dict[str, int] | None:
        """truncates: the sequences of the changes that truncate the table. Returns what the changes did, if asked."""
        names = [name.split()[0] for name in COLUMNS.split(", ")]
        extra = (None,) if self.write.partial else ()
        new = [(*change[:4], *extra, change[4], False, False) for change in batch]
        new += [(None, None, None, sequence, *extra, False, True, False) for sequence in truncates]
        touched = {change[0] for change in new}
        if any(truncates):
            touched |= {row.id for row in self.rows}
        columns = [*names, *([SEQUENCES] if self.write.partial else []), DELETED]
        stored = [
            (*[row[name] for name in columns], TRUNCATES in row and row[TRUNCATES], is_retained)
            for rows, is_retained in ((self.rows, False), (self.retained, True))
            for row in rows
            if row.id in touched or row.id is None
        ]
        frame = self.spark.createDataFrame([*new, *stored], self.schema).coalesce(1)
        frame = frame if self.write.truncates else frame.drop(TRUNCATES)
        merged = merge_changes.merged(frame, self.write)
        counted = self._outcomes(new, merged, touched) if counts else None
        result = merged.collect()
        self.rows = [row for row in self.rows if row.id not in touched] + [row for row in result if row[SHOWN]]
        # Retained changes are only ever added.
        self.retained += [row for row in result if not row[SHOWN] and not row[RETAINED]]
        return counted

    def _outcomes(self, new: list[tuple], merged: DataFrame, touched: set[int]) -> dict[str, int] | None:
        changes = self.spark.createDataFrame(new, self.schema).drop(RETAINED)
        rows = self.spark.createDataFrame([row for row in self.rows if row.id in touched], merged.schema)
        result = merged.unionByName(rows.withColumn(SHOWN, F.lit(None).cast("boolean")))
        counted = merge_changes.count_outcomes(changes, result, self.write, len(new))
        return row_outcomes.of({"changes": asdict(counted)}, {})


PLAIN = ("id", "place", "mood", "seq")
WITH_TIMES = (*PLAIN, VALID_FROM, VALID_TO, IS_CURRENT)


@pytest.mark.parametrize(
    ("write", "columns", "expected"),
    [
        pytest.param(LATEST, PLAIN, latest, id="latest"),
        pytest.param(PARTIAL, PLAIN, partial, id="partial"),
        pytest.param(HISTORY, WITH_TIMES, lambda changes: history(changes, slice(1, 3)), id="history"),
        pytest.param(
            TRACKED, WITH_TIMES, lambda changes: history(changes, slice(1, 2)), id="history of tracked columns"
        ),
    ],
)
@pytest.mark.parametrize("truncates", [(), (2, 4)], ids=["without truncates", "with truncates"])
def test_the_rows_do_not_depend_on_the_order_and_the_batches_of_the_changes(spark, write, columns, expected, truncates):
    random_ = random.Random(21)
    write = replace(write, truncates="op = 't'" if truncates else None)
    changes = {key: random_changes(random_, key) for key in range(CASES)}
    batches: list[list[Change]] = [[] for _ in range(BATCHES)]
    for case in changes.values():
        for batch, part in zip(batches, in_batches(random_, case, BATCHES), strict=True):
            batch += part
    table = MergedTable(spark, write)
    seen: list[Change] = []
    truncated: list[int] = []
    for number, batch in enumerate(batches):
        now = random_.choices(truncates, k=random_.randint(0, 2)) if truncates else []
        counts = table.merge(batch, now, counts=number == 1)
        stored = partial_with_sequences if write.partial else expected
        assert counts in (None, outcomes(seen, batch, stored, (truncated, now)))
        seen, truncated = [*seen, *batch], [*truncated, *now]
    # Whatever came before, each truncate has come in the end.
    table.merge((), truncates)
    actual: dict[int, list[tuple[Any, ...]]] = {key: [] for key in changes}
    for row in sorted(table.rows, key=lambda row: row.seq):
        actual[row.id].append(tuple(row[name] for name in columns))
    for key, case in changes.items():
        deletes = [(key, None, None, sequence, True) for sequence in truncates]
        assert actual[key] == expected([*case, *deletes]), case


def test_a_record_without_a_value_is_a_tombstone_and_not_a_stale_change(spark):
    table = MergedTable(spark, LATEST)
    changes = [(1, "north", "calm", 1, False, False, False), (1, "east", "calm", 2, False, False, False)]
    tombstones = [(key, None, None, None, None, False, False) for key in (1, 2)]
    merged = merge_changes.merged(spark.createDataFrame(changes, table.schema).drop(TRUNCATES), LATEST)
    both = spark.createDataFrame([*changes, *tombstones], table.schema).drop(RETAINED)
    counted = merge_changes.count_outcomes(both, merged, LATEST, kept=4)
    assert (counted.keys, counted.inserted, counted.stale, counted.tombstones) == (1, 1, 1, 2)
