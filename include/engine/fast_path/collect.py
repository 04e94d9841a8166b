"""Collects the rows of small batches as Arrow, in one Spark job, and judges them by the rules that they break."""

from collections import Counter
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

from include.engine.fast_path.known_keys import micros
from include.engine.fast_path.lookup_tables import Dimensions, local_frame
from include.engine.rows import prepare, quality, storable, suppression
from include.engine.rows.merge_changes import DELETED, TRUNCATES
from include.engine.rows.micro_batch import MicroBatch, Refusal
from include.engine.rows.quality import RowCounts
from include.engine.rows.watermark import EventTimes
from include.engine.sources.reader import PlannedRead
from include.rules import SUPPRESSED, Rule
from include.spec import Flow, WriteMode

MOST_ROWS = 50_000
MOST_BYTES = 64_000_000
# Assumed before the first batch shows the size of the rows.
BYTES_PER_ROW = 64_000
# The size of rows in memory, relative to their compressed files. A high estimate.
BYTES_PER_STORED_BYTE = 30

# Of each row, the rules that it breaks.
Groups = list[tuple[str, ...]]


@dataclass(frozen=True)
class JudgedRows:
    """The rows of a batch. kept: without `_rules`. quarantined: with `_rules`. newest: the watermark time for the next
    batch. batch: with the counts of its lookups.
    """

    batch: MicroBatch
    counts: RowCounts
    kept: pa.Table
    quarantined: pa.Table
    newest: int | None


class Collector:
    """Collects the batches of one flow, and knows how large its rows are."""

    def __init__(self, table: Flow) -> None:
        self._table = table
        self._bytes_per_row: float = BYTES_PER_ROW
        self._dimensions = Dimensions(table)

    def rows(self, batch: MicroBatch, planned: PlannedRead) -> pa.Table | Refusal:
        """Returns the rows of the batch as they are."""
        if refusal := self._refusal(planned):
            return refusal
        prepare.tune(batch.spark, planned.rows)
        return self._collected(batch.rows)

    def judged(self, batch: MicroBatch, planned: PlannedRead) -> JudgedRows | Refusal:
        """Returns rows of the table, or for changes of keys the columns of `transform.names_of_changes`.

        Raises FlowBroken for rows that break a rule of action `fail`.
        """
        if refusal := self._refusal(planned):
            return refusal
        prepare.tune(batch.spark, planned.rows)
        checked = self._checked(batch)
        if isinstance(checked, Refusal):
            return checked
        rows, batch = checked
        groups = _broken_rules(rows, self._table.write, batch.times)
        if any(storable.TIMES in names for names in groups):
            return Refusal("times of its rows are not within the years 1 to 9999")
        rules = batch.rules
        judged = _divided(rows, groups, rules, batch)
        quality.require_none_fails(judged.counts, rules, batch.metadata)
        return judged

    def _refusal(self, planned: PlannedRead) -> Refusal | None:
        """Refuses rows that may not fit into memory."""
        if planned.rows > MOST_ROWS:
            return Refusal(f"{planned.rows} rows", is_large=True)
        expected = planned.rows * self._bytes_per_row
        if min(expected, BYTES_PER_STORED_BYTE * planned.bytes if planned.files else expected) > MOST_BYTES:
            # Spark's writers measure nothing. Without this, a flow whose first batch is large would always use them.
            self._bytes_per_row /= 2
            return Refusal(f"{planned.rows} rows of unknown size", is_large=True)
        return None

    def _checked(self, batch: MicroBatch) -> tuple[pa.Table, MicroBatch] | Refusal:
        """Returns the rows with `_rules`; those of the watermark may be missing. Also returns the batch with the counts
        of its lookups.
        """
        rows = batch.rows
        if self._table.lookups:
            parsed_rows = self._collected(rows if batch.is_prepared else prepare.parsed(rows, self._table))
            if isinstance(parsed_rows, Refusal):
                return parsed_rows
            joined = self._dimensions.join(parsed_rows, batch.metadata.lookups or {})
            if isinstance(joined, Refusal):
                return joined
            joined_rows, no_partner = joined
            batch = batch.noting(no_partner=no_partner)
            without_lookups = replace(self._table, lookups=())
            rows = prepare.looked_up(local_frame(batch.spark, joined_rows), without_lookups, batch.rules, ())
        elif not batch.is_prepared:
            rows = prepare.with_violations(rows, self._table, batch.rules)
        collected = self._collected(rows)
        return collected if isinstance(collected, Refusal) else (collected, batch)

    def _collected(self, rows: DataFrame) -> pa.Table | Refusal:
        try:
            table = rows.toArrow()
        except PySparkException as error:
            if "maxResultSize" in str(error):
                return Refusal(str(error), is_large=True)
            raise
        if len(table):
            self._bytes_per_row = max(table.nbytes / len(table), self._bytes_per_row / 2)
        return table


def _broken_rules(rows: pa.Table, write: WriteMode, times: EventTimes) -> Groups:
    """Returns the rules that each row breaks: those of the column `_rules`, and those of the watermark."""
    groups: Groups = [tuple(names) for names in rows.column(quality.RULES).to_pylist()]
    declared = write.watermark
    if declared is None:
        return groups
    broken = [
        times.broken(declared, time) if may and SUPPRESSED.name not in names else ()
        for names, time, may in zip(groups, micros(rows, declared.of), _may_be_late(rows, write), strict=True)
    ]
    return [tuple(dict.fromkeys((*names, *added))) for names, added in zip(groups, broken, strict=True)]


def _may_be_late(rows: pa.Table, write: WriteMode) -> list[bool]:
    """Returns for each row whether no `merge_changes.is_exempt` applies to it."""
    if not write.merges_changes:
        return [True] * len(rows)
    truncates = [False] * len(rows)
    if write.truncates:
        sequences = rows.column(write.sequence_by)
        truncates = pc.and_(pc.fill_null(rows.column(TRUNCATES), False), pc.is_valid(sequences)).to_pylist()
    deletes = rows.column(DELETED).to_pylist()
    return [is_delete is False and not truncate for is_delete, truncate in zip(deletes, truncates, strict=True)]


def _divided(rows: pa.Table, groups: Groups, rules: tuple[Rule, ...], batch: MicroBatch) -> JudgedRows:
    """rows: with the column `_rules`. groups: the rules that each row breaks."""
    actions = {names: quality.strictest(names, rules) for names in set(groups)}
    with_rules = rows.set_column(
        rows.column_names.index(quality.RULES), quality.RULES, pa.array(groups, pa.list_(pa.string()))
    )
    kept = rows.filter(_mask(groups, actions, "warn")).drop_columns([quality.RULES])
    if suppressed := [SUPPRESSED.name in names for names in groups]:
        left_out = rows.filter(pa.array(suppressed, pa.bool_()))
        if len(left_out):
            batch = batch.noting(suppressed=suppression.places(rows.column_names, left_out.to_pylist()))
    watermark = batch.table.watermark
    return JudgedRows(
        batch,
        RowCounts.of(Counter(groups).items(), rules),
        kept,
        with_rules.filter(_mask(groups, actions, "quarantine")),
        batch.times.after(micros(kept, watermark.of)) if watermark else None,
    )


def _mask(groups: Groups, actions: dict[tuple[str, ...], str], action: str) -> pa.Array:
    return pa.array([actions[names] == action for names in groups], pa.bool_())
