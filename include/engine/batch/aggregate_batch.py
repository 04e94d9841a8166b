"""Recomputes what a batch touches of an aggregate: its buckets of time, or all of it."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame

from include.checkpoints import checkpoint_files
from include.engine import commit
from include.engine.batch import failed_rows
from include.engine.batch.failed_rows import Work
from include.engine.batch.writer import Writer, quarantine
from include.engine.commit import read_table
from include.engine.rows import deduplicate, prepare, storable, transform
from include.engine.rows.micro_batch import MicroBatch, Written
from include.spec import Bucket, Flow, Upsert


class AggregateWriter(Writer):
    """Recomputes the keys or buckets that the batch touches, and merges them."""

    reads_again = True

    def suits(self, table: Flow) -> bool:
        return table.is_recomputed

    def _write(self, batch: MicroBatch) -> Written:
        table, write = batch.table, batch.table.write_as(Upsert)
        if write.recompute is None:
            # Before the commit, behind which nothing may fail.
            count = batch.rows.count()
            rows = transform.recomputed(batch.spark, table, write, _version(batch), left_out=batch.left_out)
            commit.commit(rows, table, batch.metadata)
            return Written(count, batch.times.newest)
        counts = _count_by_bucket(batch, write.recompute)
        starts = deduplicate.within_reach(counts, write.recompute.unit, write.reach_seconds)
        _replace_buckets(batch, starts, write.recompute)
        return Written(sum(counts.values()), batch.times.newest)

    def write_isolated(self, batch: MicroBatch, error: Exception) -> Written:
        """Recomputes without the source rows that fail by themselves, and without the buckets that then still fail.

        Both go to the quarantine. A bucket keeps its stored rows.
        """
        table, spark, write = batch.table, batch.spark, batch.table.write_as(Upsert)
        bucket, version = write.recompute, _version(batch)
        starts = sorted(
            deduplicate.within_reach(_count_by_bucket(batch, bucket), bucket.unit, write.reach_seconds)
            if bucket
            else (),
            key=lambda start: (start is not None, start),
        )
        buckets = transform.Buckets.at(starts, bucket, write) if bucket else transform.Buckets()
        source = transform.of_buckets(read_table(spark, table.source.table, version), table, buckets)
        source = transform.without(source, batch.left_out)

        def aggregate(some_rows: DataFrame) -> DataFrame:
            return storable.guarded(transform.aggregated(some_rows, table, write, buckets), batch.constraints)

        def aggregate_buckets(some_starts: Sequence[int | None], left_out: frozenset[str]) -> DataFrame:
            assert bucket
            some_buckets = transform.Buckets.at(some_starts, bucket, write)
            rows = transform.recomputed(spark, table, write, version, some_buckets, left_out | batch.left_out)
            return storable.guarded(rows, batch.constraints)

        work = Work.of_batch(table, batch.metadata)
        with failed_rows.rows_and_buckets(source, starts, work, error, aggregate, aggregate_buckets) as isolated:
            batch = replace(batch, left_out=batch.left_out | isolated.left_out, may_be_replay=True)
            if isolated.failed:
                quarantine(isolated.failed.rows, batch)
            if bucket is None:
                return self._write(batch)
            _replace_buckets(batch, isolated.starts, bucket, isolated.failing)
            return Written(batch.rows_before, batch.times.newest)

    def left_out(self, batch: MicroBatch, reason: str) -> DataFrame | None:
        """Without buckets each batch reads all rows of the source, and leaves these out for good."""
        if not batch.table.write.recomputes_all:
            return super().left_out(batch, reason)
        return failed_rows.left_out_with_batch(batch.rows, batch.table, reason)


def _version(batch: MicroBatch) -> int:
    """Returns the version of the source at the end of the batch."""
    return checkpoint_files.read_version(batch.metadata.source_to)


def _count_by_bucket(batch: MicroBatch, bucket: Bucket) -> dict[int | None, int]:
    return transform.count_by_bucket(
        batch.rows if batch.is_prepared else prepare.starts(batch.rows, batch.table, bucket)
    )


def _replace_buckets(
    batch: MicroBatch, starts: Iterable[int | None], bucket: Bucket, failing: Sequence[int | None] = ()
) -> None:
    """Recomputes the buckets with these starts, in seconds since 1970, and commits them as the batch.

    failing: starts of buckets between them that are not to be read.
    """
    table, write, starts = batch.table, batch.table.write_as(Upsert), set(starts)
    buckets = transform.Buckets.at(starts, bucket, write, failing)
    rows = transform.recomputed(batch.spark, table, write, _version(batch), buckets, batch.left_out)
    pruning = deduplicate.condition(f"stored`.`{bucket.name}", starts, bucket.unit)
    commit.commit(rows, table, batch.metadata, pruning=pruning)
