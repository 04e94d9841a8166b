"""What jobs cost that recompute rows: python -m benchmarks.backfill [--views] [--small], without a broker.

Compares rows per CPU second of a backfill and of a plain batch job with the same query, alternating in one session:
read, transform, apply the rules, remove repeated rows, replace the range. With --views: CPU seconds of a refresh after
0.1 % new rows, incremental and in full.
"""

import argparse
import gc
import json
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.quality import FIVE, NONE, events
from benchmarks.support.session import cpu_seconds, session
from include.catalog import Catalog
from include.control.jobs import backfills
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database, job_id
from include.engine.batch import batch
from include.engine.batch.batch import FlowContext
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.jobs import backfill, refresh
from include.engine.jobs.refresh import RefreshRun
from include.engine.jobs.worker import Worker
from include.engine.rows import deduplicate, quality, transform
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.engine.tables import create_table
from include.errors import report
from include.lake import locations
from include.project.ranges import Slice
from include.settings import settings
from include.spec import Append, Delta, Flow, Replace, Table

RANGE = Slice(datetime(2026, 3, 1, 12, tzinfo=UTC), datetime(2026, 3, 2, tzinfo=UTC))
SIMPLE = replace(NONE, name="silver.simple", write=Append(), time_column="time")
JUDGED = replace(FIVE, name="silver.judged", time_column="time")

VISITS = "silver.visits"
LONG = Flow(
    name="gold.long",
    comment="",
    source=Delta(VISITS),
    schema="visit BIGINT, city STRING, minutes INT",
    transform="SELECT visit, upper(city) AS city, CAST(seconds / 60 AS INT) AS minutes FROM source WHERE seconds > 60",
    write=Replace(),
)
TOTALS = replace(
    LONG,
    name="gold.totals",
    schema="city STRING, visits BIGINT, seconds BIGINT, newest TIMESTAMP",
    transform="SELECT city, count(*) AS visits, sum(seconds) AS seconds, max(at) AS newest FROM source GROUP BY city",
)


def fill(table: Table, rows: DataFrame, checkpoint: Path) -> None:
    """Fill the table as its flow does: a batch with all source rows, in a new session, which the flow configures."""
    create_table.create(rows.sparkSession, table)
    rows = rows.sparkSession.newSession().read.format("delta").load(str(locations.table_path("bronze.events")))
    state = Checkpoint(checkpoint, 1, committed=-1, written=-1, last_commit=None, source={"table": "bronze.events"})
    batch.write(rows, 0, FlowContext(table, state, epoch=1))


def ours(worker: Worker, table: Table) -> None:
    requested = backfills.begin(worker.engine, table.name, RANGE, "a benchmark")
    backfill.BackfillJob(worker.engine, job_id.backfill(requested.root)).work(worker)


def plain(spark: SparkSession, table: Table) -> None:
    rows = spark.read.format("delta").load(str(locations.table_path("bronze.events")))
    inside, others = RANGE.condition("time"), RANGE.others("time")
    rows = transform.apply_transform(rows, table).filter(inside)
    if table.expect:
        checked = quality.with_violations(rows, table.expect, table).persist()
        replace_range(checked.filter(quality.ends_as("quarantine", table.expect)), table.quarantine, inside)
        rows = checked.filter(quality.ends_as("warn", table.expect)).drop(quality.RULES)
    assert isinstance(table.write, Append)
    if table.write.unique:
        rows = deduplicate.first_of_each(rows, table, table.write, others)
    replace_range(rows, table.name, inside)
    spark.catalog.clearCache()


def replace_range(rows: DataFrame, name: str, inside: str) -> None:
    path = str(locations.table_path(name))
    rows.write.format("delta").mode("overwrite").option("replaceWhere", inside).save(path)


def cpu_of(work: Callable[[], None]) -> float:
    gc.collect()
    before = cpu_seconds()
    work()
    return cpu_seconds() - before


def compare(worker: Worker, table: Table, count: int, rounds: int) -> None:
    spent: dict[str, list[float]] = {"ours": [], "plain": []}
    variants = {"ours": lambda: ours(worker, table), "plain": lambda: plain(worker.spark, table)}
    warm_up = 1
    for number in range(rounds + warm_up):
        # The second variant finds warm caches, so the order alternates.
        for name in list(variants)[:: 1 if number % 2 else -1]:
            seconds = cpu_of(variants[name])
            spent[name] += [seconds] if number >= warm_up else []
    ours_cpu, plain_cpu = (statistics.median(spent[name]) for name in ("ours", "plain"))
    print(
        f"a backfill of {count:,} rows of {table.name}: {count / ours_cpu:,.0f} rows per CPU second against "
        f"{count / plain_cpu:,.0f} of a plain batch job, {plain_cpu / ours_cpu:.2f} times as many ({rounds} rounds)"
    )


def compare_refreshes(worker: Worker, count: int, rounds: int) -> None:
    def append(first: int, rows: int) -> None:
        visits = worker.spark.range(first, first + rows).selectExpr(
            "id AS visit",
            "concat('city-', id % 9973) AS city",
            "CAST(id % 600 AS INT) AS seconds",
            "timestamp_seconds(id) AS at",
            "sha2(CAST(id AS STRING), 256) AS payload",
        )
        visits.write.format("delta").mode("append").save(str(locations.table_path(VISITS)))

    append(0, count)
    spent: dict[tuple[str, bool], list[float]] = {
        (view.name, full): [] for view in (LONG, TOTALS) for full in (False, True)
    }
    for number in range(rounds + 2):
        for name, is_full in list(spent)[:: 1 if number % 2 else -1]:
            view = LONG if name == LONG.name else TOTALS
            if is_full:
                # A changed declaration is what makes a refresh recompute all rows.
                view = replace(view, name=f"{name}_anew", comment=str(number))
            run = RefreshRun.begin(f"run {number}", [view])
            spent[name, is_full].append(cpu_of(lambda run=run: refresh.refresh_remaining(worker, run)))
        append(count + number * count // 1_000, count // 1_000)
    # The first refresh is in full, and the second one warms up.
    medians = {variant: statistics.median(seconds[2:]) for variant, seconds in spent.items()}
    for view in (LONG, TOTALS):
        incremental, full = medians[view.name, False], medians[view.name, True]
        print(
            f"a refresh of {view.name} after 0.1 % of {count:,} rows: {incremental:.2f} CPU seconds incrementally, "
            f"{full:.2f} in full, {full / incremental:.1f} times as many ({rounds} rounds)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backfill", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    parser.add_argument("--views", action="store_true", help="refreshes of views instead of backfills")
    arguments = parser.parse_args()
    small = arguments.small
    tables = Catalog({table.name: table for table in (SIMPLE, JUDGED)})
    with session(tables) as spark:
        rows = events(spark, 5_000 if small else 1_000_000)
        checkpoint = settings().home / "checkpoint"
        (checkpoint / "offsets").mkdir(parents=True)
        end = {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": 1, "index": -1, "isStartingVersion": False}
        (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(end)}")
        engine = database.connect(settings().control_url)
        lease_renewer = LeaseRenewer(engine, Holder.here("backfill", driver.jvm_pid()), 60, lambda reason: os.abort())
        lease_renewer.start()
        worker = Worker(
            engine,
            lease_renewer,
            Host(spark, engine, lease_renewer, "backfill"),
            spark,
            tables,
            lambda reason: os.abort(),
        )
        if arguments.views:
            compare_refreshes(worker, 10_000 if small else 10_000_000, 1 if small else 3)
        for table in () if arguments.views else (SIMPLE, JUDGED):
            fill(table, rows, checkpoint)
            compare(worker, table, rows.count(), 1 if small else 4)
        lease_renewer.stop()


if __name__ == "__main__":
    report(main)
