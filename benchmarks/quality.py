"""What rules cost: python -m benchmarks.quality [--small], in a home of its own, without a broker.

1. CPU of a batch of clean rows with five expectations and of the same batch with none, in turn, in one session.
2. The number of `from_json` expressions in the executed plan of a parsed batch.
"""

import argparse
import gc
import json
import re
import statistics
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.support.session import cpu_seconds, session
from include.catalog import Catalog
from include.engine.batch import batch
from include.engine.batch.batch import FlowContext
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.rows import transform
from include.engine.tables import create_table
from include.errors import report
from include.lake import locations
from include.rules import Expect, not_null, one_of
from include.settings import settings
from include.spec import Append, Delta, Flow, Json, Table

NONE = Flow(
    name="silver.none",
    comment="without rules",
    source=Delta("bronze.events"),
    parse=Json("value", into=("device", "time", "model", "bpm", "kcal")),
    schema="""
        device STRING, time TIMESTAMP, model STRING, bpm INT, kcal DECIMAL(9,3), offset BIGINT,
        _errors ARRAY<STRUCT<field: STRING, message: STRING>>
    """,
    write=Append(unique=("device", "time"), first_by=("offset",)),
)
FIVE = replace(
    NONE,
    name="silver.five",
    expect=(
        not_null("device", "time"),
        Expect("plausible heart rate", "bpm BETWEEN 20 AND 250"),
        one_of("model", ["Pulse One", "Stride"], otherwise="warn"),
        Expect("burns something", "kcal >= 0", otherwise="drop"),
        Expect("is typed", "size(_errors) = 0", otherwise="fail"),
    ),
)


def events(spark: SparkSession, rows: int) -> DataFrame:
    """Store clean rows in bronze. Returns them, with columns `value BINARY` and `offset BIGINT`."""
    path = str(locations.table_path("bronze.events"))
    value = """to_json(named_struct('device', concat('tracker-', id % 1000), 'time', timestamp_millis(1772366400000 +
        id * 20), 'model', 'Stride', 'bpm', 60 + id % 90, 'kcal', cast(id % 100 / 1000 AS DECIMAL(9,3))))"""
    spark.range(rows).selectExpr(f"CAST({value} AS BINARY) AS value", "id AS offset").write.format("delta").save(path)
    return spark.read.format("delta").load(path)


def batch_cpu(table: Table, rows: DataFrame, number: int, checkpoint: Path) -> float:
    """CPU seconds of a batch into an empty table, including its commit."""
    numbered = replace(table, name=f"{table.name}_{number}")
    create_table.create(rows.sparkSession, numbered)
    # Not the first batch of a driver, which looks for rows of an earlier attempt.
    state = Checkpoint(checkpoint, 1, committed=-2, written=-2, last_commit=None, source={})
    context = FlowContext(numbered, state, epoch=1, rows_before=rows.count())
    gc.collect()
    begin_seconds = cpu_seconds()
    batch.write(rows, 0, context)
    return cpu_seconds() - begin_seconds


def rules(spark: SparkSession, rows: DataFrame, rounds: int, checkpoint: Path) -> None:
    spent: dict[str, list[float]] = {NONE.name: [], FIVE.name: []}
    warm_up = 8
    for number in range(rounds + warm_up):
        # The second variant finds warm caches, so the order alternates.
        for table in (NONE, FIVE) if number % 2 else (FIVE, NONE):
            seconds = batch_cpu(table, rows, number, checkpoint)
            spent[table.name] += [seconds] if number >= warm_up else []
    none, five = (statistics.median(spent[name]) for name in (NONE.name, FIVE.name))
    spread = statistics.quantiles(
        [five_seconds / none_seconds for none_seconds, five_seconds in zip(*spent.values(), strict=True)], n=4
    )
    print(
        f"five expectations on a batch of {rows.count():,} clean rows: {five:.2f} CPU seconds against {none:.2f} "
        f"without, {five / none:.3f} times as many "
        f"(quartiles of pairs {spread[0]:.2f} to {spread[2]:.2f}, {rounds} rounds)"
    )


def extraction(rows: DataFrame) -> None:
    plan = transform.apply_transform(rows, FIVE)._jdf.queryExecution().executedPlan().toString()
    print(f"typed extraction of five fields: {len(re.findall('from_json', plan))} from_json in the executed plan")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.quality", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    small = parser.parse_args().small
    with session(Catalog({})) as spark:
        rows = events(spark, 5_000 if small else 100_000)
        checkpoint = settings().home / "checkpoint"
        (checkpoint / "offsets").mkdir(parents=True)
        offset = {
            "sourceVersion": 1,
            "reservoirId": "x",
            "reservoirVersion": 1,
            "index": -1,
            "isStartingVersion": False,
        }
        (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{json.dumps(offset)}")
        extraction(rows)
        rules(spark, rows, 2 if small else 20, checkpoint)


if __name__ == "__main__":
    report(main)
