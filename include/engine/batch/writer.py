"""What each write mode of Spark's path is asked. It takes batches of any size, and tables of any kind."""

from dataclasses import asdict, replace
from typing import ClassVar

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.engine import commit, sql_text
from include.engine.batch import failed_rows
from include.engine.batch.failed_rows import Work
from include.engine.commit import read_table
from include.engine.python_limits import limited
from include.engine.rows import deduplicate, lookup, prepare, quality, storable, suppression, watermark
from include.engine.rows.micro_batch import MicroBatch, Written
from include.engine.rows.quality import RowCounts
from include.engine.tables import create_table
from include.lake import locations
from include.rules import SUPPRESSED, Rule
from include.spec import Flow


class Writer:
    """Writes batches in one write mode.

    reads_again: each batch reads rows of earlier ones again, so that a row that fails is left out from then on, by the
    quarantine.
    """

    reads_again: ClassVar[bool] = False

    def suits(self, table: Flow) -> bool:
        """Whether this is how the table is written."""
        raise NotImplementedError

    def write(self, batch: MicroBatch) -> Written:
        """Writes the batch: first the companions, then the table. Repeating it changes nothing.

        Raises FlowBroken for rows that break a rule of action `fail`.
        """
        # A batch of unknown size may be the first of a long history.
        expected_rows = self.expected_rows(batch) or batch.rows_before or prepare.SMALL_BATCH_ROWS
        prepare.tune(batch.spark, expected_rows)
        return self._write(batch)

    def expected_rows(self, batch: MicroBatch) -> int:
        """Returns how many rows the batch has, about; 0 if that is unknown."""
        return 0

    def _write(self, batch: MicroBatch) -> Written:
        raise NotImplementedError

    def checked(self, batch: MicroBatch) -> DataFrame:
        """Returns the rows of the batch as it writes them."""
        return batch.rows

    def write_isolated(self, batch: MicroBatch, error: Exception) -> Written:
        """Writes the batch without the rows that make it fail with this error. These go to the quarantine."""
        work = Work.of_batch(batch.table, batch.metadata)
        is_proven = failed_rows.has_made_rows(batch.table, batch.checkpoint)

        def check(some_rows: DataFrame) -> DataFrame:
            return self.checked(replace(batch, rows=some_rows))

        with (
            failed_rows.isolated(batch, error, check, is_proven) as isolated,
            failed_rows.narrowed(work),
            limited(batch.spark, batch.table.python, batch.table.flow, batch.metadata.batch),
        ):
            # An earlier try may have left rows in the quarantine.
            return self.write(replace(batch, rows=isolated.rows, may_be_replay=True, failed=isolated.failed))

    def left_out(self, batch: MicroBatch, reason: str) -> DataFrame | None:
        """Returns what the quarantine is to hold of a batch that is left out; None if it needs no commit."""
        name = batch.table.quarantine
        if not locations.is_stored(name):
            return None
        # Rows of an earlier try go.
        return read_table(batch.spark, name).limit(0).drop(*commit.quarantine_columns(asdict(batch.metadata)))


class CheckedWriter(Writer):
    """Checks the rules, quarantines broken rows, and commits the others as its write mode does."""

    def checked(self, batch: MicroBatch) -> DataFrame:
        """Returns rows of the table plus `_rules`, the rules that each breaks."""
        table, rules = batch.table, (*batch.rules, *batch.constraints)
        if table.lookups:
            parsed_rows = batch.rows if batch.is_prepared else prepare.parsed(batch.rows, table)
            dimensions = lookup.dimensions(batch.spark, table, batch.metadata.lookups)
            return prepare.looked_up(parsed_rows, table, rules, dimensions)
        if batch.is_prepared:
            return watermark.with_broken(batch.rows, table, batch.times)
        return prepare.with_violations(batch.rows, table, rules)

    def _write(self, batch: MicroBatch) -> Written:
        table, rules = batch.table, (*batch.rules, *batch.constraints)
        checked_rows = self.checked(batch).persist()
        try:
            counts, minutes, kept_times = _count_rows(checked_rows, rules, table, self._time_column(table))
            if table.lookups:
                batch = batch.noting(no_partner=lookup.no_partner(checked_rows, table))
            if counts.broke.get(SUPPRESSED.name):
                batch = batch.noting(suppressed=suppression.places_in(checked_rows, quality.RULES))
            quality.require_none_fails(counts, rules, batch.metadata)
            all_kept = counts.kept == counts.read
            kept_rows = checked_rows if all_kept else checked_rows.filter(quality.ends_as("warn", rules))
            counts = counts.with_failed(batch.failed.count if batch.failed else 0)
            if counts.quarantined or (batch.may_be_replay and locations.is_stored(table.quarantine)):
                quarantined = storable.for_quarantine(checked_rows.filter(quality.ends_as("quarantine", rules)))
                if batch.failed:
                    quarantined = quarantined.unionByName(batch.failed.rows, allowMissingColumns=True)
                quarantine(quarantined, batch)
            newest = batch.times.after(kept_times)
            metadata = batch.metadata.reaching(table.watermark, newest).counting(counts)
            self._commit(kept_rows.drop(quality.RULES), counts, minutes, replace(batch, metadata=metadata))
            return Written(counts.read, newest)
        finally:
            checked_rows.unpersist()

    def _time_column(self, table: Flow) -> str | None:
        """Returns the column whose minutes `_commit` asks for, if any."""
        return None

    def _commit(self, rows: DataFrame, counts: RowCounts, minutes: set[int], batch: MicroBatch) -> None:
        """Commits these rows as the batch. counts: of its rows. minutes: those of the rows, in seconds since 1970."""
        raise NotImplementedError


def quarantine(rows: DataFrame, batch: MicroBatch) -> None:
    """Writes rows of the batch into the quarantine, which it creates for a table whose rules need none."""
    table = batch.table
    if not locations.is_stored(table.quarantine):
        create_table.create_quarantine(rows.sparkSession, table, rows.sparkSession.sql)
    add_to_companion(rows.coalesce(1), table.quarantine, batch)


def add_to_companion(rows: DataFrame, name: str, batch: MicroBatch) -> None:
    """Writes rows of the batch into a companion of its table: the quarantine, or the retained changes.

    They replace what an earlier try may have left there. Looking for that costs more than the write.
    """
    metadata = batch.metadata
    writer = commit.with_batch_columns(rows, asdict(metadata)).write.format("delta")
    writer = writer.option("userMetadata", metadata.text)
    if batch.may_be_replay:
        generation, number = batch.last_commit or (0, 0)
        later = (
            f"_flow = {sql_text.literal(metadata.flow)} AND "
            f"(_generation > {generation} OR _generation = {generation} AND _batch > {number})"
        )
        writer = writer.mode("overwrite").option("replaceWhere", later)
    else:
        writer = writer.mode("append")
    writer.save(str(locations.table_path(name)))


def _count_rows(
    checked_rows: DataFrame, rules: tuple[Rule, ...], table: Flow, time_column: str | None
) -> tuple[RowCounts, set[int], list[int | None]]:
    """Counts the rows by what the rules say of them. Also returns the minutes (seconds since 1970) of the kept rows,
    and watermark times (microseconds since 1970), the greatest of each group of rows that break the same rules.
    """
    watermark_of = table.watermark.of if table.watermark else None
    start = F.unix_seconds(deduplicate.bucket(time_column, "minute")) if time_column else F.lit(None).cast("bigint")
    newest = F.unix_micros(f"`{watermark_of}`") if watermark_of else F.lit(None).cast("bigint")
    groups = (
        checked_rows.groupBy(quality.RULES, start.alias("start"))
        .agg(F.count("*").alias("rows"), F.max(newest).alias("newest"))
        .collect()
    )
    counts = RowCounts.of([(group[quality.RULES], group["rows"]) for group in groups], rules)
    kept_groups = [group for group in groups if quality.strictest(group[quality.RULES], rules) == "warn"]
    starts = {group["start"] for group in kept_groups if group["start"] is not None}
    return counts, starts, [group["newest"] for group in kept_groups]
