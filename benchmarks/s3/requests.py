"""Requests to S3 of a small batch and of an idle minute: python -m benchmarks.s3.requests [--small], with a store.

A stream of Spark carries one row a batch from a Delta table with 100 versions into another one. Tables and checkpoint
lie in the local store, whose access log is counted. The session has Sluice's settings.
"""

import argparse
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from benchmarks.s3.request_log import RequestLog
from benchmarks.support.engine import free_port
from benchmarks.support.measure import OURS, Figure, Row, record
from benchmarks.support.session import session
from include.catalog import Catalog
from include.errors import SluiceError, report
from include.local.object_store import ObjectStore

SOURCE, TARGET, CHECKPOINT = "s3a://bench/source", "s3a://bench/target", "s3a://bench/checkpoint"
VERSIONS = 100
TRIGGER_SECONDS = 1
SECONDS_MOST = 600


def feed(store: ObjectStore) -> None:
    """Append a row to the source, without Spark."""
    rows = pa.table({"number": [1]})
    properties = {"delta.checkpointInterval": "100"}
    write_deltalake(
        SOURCE.replace("s3a", "s3"),
        rows,
        mode="append",
        configuration=properties,
        storage_options=store.client_variables(),
    )


@contextmanager
def stream(spark: SparkSession) -> Iterator[StreamingQuery]:
    def write(rows: DataFrame, batch: int) -> None:
        transaction = {"txnAppId": "benchmark", "txnVersion": str(batch)}
        rows.write.format("delta").mode("append").options(**transaction).save(TARGET)

    # One file a batch, so that batches follow each other without idle triggers.
    limits = {"startingVersion": str(VERSIONS), "maxFilesPerTrigger": "1"}
    source = spark.readStream.format("delta").options(**limits).load(SOURCE)
    writer = source.writeStream.foreachBatch(write).option("checkpointLocation", CHECKPOINT)
    query = writer.trigger(processingTime=f"{TRIGGER_SECONDS} seconds").start()
    try:
        yield query
    finally:
        query.stop()


def wait_for_batches(query: StreamingQuery, count: int) -> None:
    """Wait until so many batches with rows have ended. Raises SluiceError."""
    deadline = time.monotonic() + SECONDS_MOST
    while sum(progress.numInputRows > 0 for progress in query.recentProgress) < count:
        if (error := query.exception()) or time.monotonic() > deadline:
            raise SluiceError(f"batch {count} did not end in {SECONDS_MOST} s ({error}): read the log above")
        time.sleep(0.1)
    # The requests of the query's own cleaning come after its report.
    time.sleep(2 * TRIGGER_SECONDS)


def measured(spark: SparkSession, store: ObjectStore, arguments: argparse.Namespace) -> tuple[Counter, Counter]:
    """The requests of all batches, and those of the idle time, by kind."""
    log = RequestLog(store)
    for _ in range(VERSIONS):
        feed(store)
    spark.sql(f"CREATE TABLE delta.`{TARGET}` (number BIGINT) USING delta")
    with stream(spark) as query:
        feed(store)
        wait_for_batches(query, 1)
        log.take()
        time.sleep(arguments.seconds)
        idle = log.take()
        for _ in range(arguments.batches):
            feed(store)
        wait_for_batches(query, 1 + arguments.batches)
        return log.take(), idle


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.s3.requests", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20, help="that count, default 20")
    parser.add_argument("--seconds", type=float, default=60, help="of the idle time, default 60")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.batches, arguments.seconds = 2, 5
    with tempfile.TemporaryDirectory() as folder, ObjectStore(Path(folder), free_port()).running() as store:
        store.create_bucket("bench")
        os.environ.update(store.client_variables())
        with session(Catalog({})) as spark:
            batches, idle = measured(spark, store, arguments)
    triggers = arguments.seconds / TRIGGER_SECONDS
    for what, counts, units in (("a batch", batches, arguments.batches), ("an idle trigger", idle, triggers)):
        kinds = {kind: Figure((count / units,)) for kind, count in counts.items()}
        total = Figure((sum(counts.values()) / units,))
        record(
            *(Row(f"{kind} of {what}", "requests", {OURS: figure}) for kind, figure in kinds.items()),
            Row(f"all of {what}", "requests", {OURS: total}),
        )


if __name__ == "__main__":
    report(main)
