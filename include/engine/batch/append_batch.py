"""Appends a batch with Spark's writers."""

from functools import partial, reduce

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.engine import commit
from include.engine.batch import failed_rows
from include.engine.batch.writer import CheckedWriter, Writer, quarantine
from include.engine.rows import deduplicate, prepare, quality, storable, transform
from include.engine.rows.micro_batch import MicroBatch, Written
from include.engine.rows.quality import RowCounts
from include.spec import Append, Flow


class AppendWriter(CheckedWriter):
    """Appends the good rows, each identity once."""

    def suits(self, table: Flow) -> bool:
        return table.write.appends

    def _time_column(self, table: Flow) -> str | None:
        return deduplicate.time_column(table, table.write_as(Append))

    def _commit(self, rows: DataFrame, counts: RowCounts, minutes: set[int], batch: MicroBatch) -> None:
        table = batch.table
        if table.write.unique:
            write = table.write_as(Append)
            rows = deduplicate.first_of_each(
                rows, table, write, deduplicate.stored_rows_condition(table, write, minutes)
            )
        commit.commit(transform.coalesce_small(rows, counts.kept), table, batch.metadata)


class RecordWriter(Writer):
    """Appends Kafka records as they are."""

    def suits(self, table: Flow) -> bool:
        return prepare.is_raw(table)

    def expected_rows(self, batch: MicroBatch) -> int:
        return batch.offsets

    def _write(self, batch: MicroBatch) -> Written:
        rows = failed_rows.with_storable_times(batch.rows)
        if not batch.constraints:
            # A row that breaks the rule makes the batch fail, and the next try has it among its constraints.
            rows = storable.guarded(rows, (storable.HEADERS,))
        bad = [batch.failed.rows] if batch.failed else []
        if batch.constraints:
            checked_rows = quality.with_violations(rows, batch.constraints)
            rows = checked_rows.filter(F.size(quality.RULES) == 0).drop(quality.RULES)
            bad.append(checked_rows.filter(F.size(quality.RULES) > 0))
        if bad:
            quarantine(reduce(partial(DataFrame.unionByName, allowMissingColumns=True), bad), batch)
        commit.commit(transform.coalesce_small(rows, batch.offsets), batch.table, batch.metadata)
        return Written(batch.rows_before, batch.times.newest)
