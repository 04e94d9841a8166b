"""Sluice's driver for the flows of the benchmarks, which no table file declares.

It is started by its path, so that PYTHONPATH decides from which checkout `include` is imported.
"""

import argparse
import os
from dataclasses import replace

from include import catalog
from include.catalog import Catalog
from include.errors import report
from include.local import environment, java
from include.settings import settings
from include.spec import Append, Bucket, Delta, Expect, Json, Kafka, Table, Upsert

try:
    from include.spec import Flow
except ImportError:
    # The checkout is older than flows: what one declared also ran.
    Flow = Table  # type: ignore[assignment,misc]
try:
    from include.engine.jobs import window
    from include.engine.stream import driver
except ImportError:
    # The checkout is older than these folders.
    from include.engine import driver, window  # type: ignore[attr-defined,no-redef]


def by_model(readings):  # type: ignore[no-untyped-def]
    from pyspark.sql import functions as F

    return readings.groupBy("model", "minute").agg(
        F.count("*").alias("readings"),
        F.avg("heart_bpm").alias("avg_heart_bpm"),
        F.min("heart_bpm").alias("min_heart_bpm"),
        F.max("heart_bpm").alias("max_heart_bpm"),
        F.sum("kcal").alias("kcal"),
    )


BRONZE = Flow(name="bronze.events", comment="messages as they came", source=Kafka("readings"))
SILVER = Flow(
    name="silver.readings",
    comment="a row per reading",
    source=Delta(BRONZE.name),
    parse=Json("value", into=("device_id", "time", "model", "heart_bpm", "kcal")),
    schema="""
        device_id STRING, time TIMESTAMP, model STRING, heart_bpm INT, kcal DECIMAL(9,3),
        topic STRING, partition INT, offset BIGINT, _errors ARRAY<STRUCT<field: STRING, message: STRING>>
    """,
    time_column="time",
    write=Append(unique=("device_id", "time"), first_by=("topic", "partition", "offset")),
    expect=(
        Expect("identified", "device_id IS NOT NULL AND time IS NOT NULL"),
        Expect("plausible heart rate", "heart_bpm BETWEEN 20 AND 250"),
    ),
)
GOLD = Flow(
    name="gold.by_model",
    comment="heart rate and energy by model and minute",
    source=Delta(SILVER.name),
    schema="""
        model STRING, minute TIMESTAMP, readings BIGINT, avg_heart_bpm DOUBLE, min_heart_bpm INT, max_heart_bpm INT,
        kcal DECIMAL(19,3)
    """,
    transform=by_model,
    write=Upsert(keys=("model", "minute"), recompute=Bucket("minute", of="time", unit="minute")),
)
TABLES = {table.layer: table for table in (BRONZE, SILVER, GOLD)}


def copies(count: int, topic: str) -> list[Table]:
    """Bronze flows, each with its own topic."""
    return [replace(BRONZE, name=f"{BRONZE.name}_{n}", source=Kafka(f"{topic}-{n}")) for n in range(count)]


def tables(arguments: argparse.Namespace) -> list[Table]:
    """The tables of the selected layers. `--rows` and `--files` limit a batch."""
    if arguments.copies:
        return copies(arguments.copies, arguments.topic)
    selected = [TABLES[layer] for layer in arguments.layers]
    if arguments.interval is not None:
        selected = [replace(table, interval_seconds=arguments.interval) for table in selected]
    limited = []
    for table in selected:
        if isinstance(table.source, Kafka):
            limits = {"max_offsets": arguments.rows} if arguments.rows else {}
            limited.append(replace(table, source=Kafka(arguments.topic, **limits)))
        else:
            files = {"max_files": arguments.files} if arguments.files else {}
            limited.append(replace(table, source=replace(table.source, **files)))
    return limited


def parser() -> argparse.ArgumentParser:
    """The command line options of the jobs of all engines."""
    options = argparse.ArgumentParser()
    options.add_argument("layers", nargs="+", choices=list(TABLES))
    options.add_argument("--topic", default="readings")
    options.add_argument("--rows", type=int, help="records of a batch from Kafka at the most")
    options.add_argument("--files", type=int, help="files of a batch from a table at the most")
    options.add_argument("--interval", type=float, help="seconds")
    options.add_argument("--once", action="store_true", help="stop at the end of the source")
    options.add_argument("--copies", type=int, help="so many flows from Kafka in one driver instead")
    options.add_argument("--maintain", action="store_true", help="a window of the table instead")
    return options


def main() -> None:
    arguments = parser().parse_args()
    os.environ.update(environment.write(settings(), java.home()))
    flows = tables(arguments)
    all_tables = Catalog({table.name: table for table in (*TABLES.values(), *flows)})
    catalog.load = catalog.reload = lambda: all_tables
    if arguments.maintain:
        window.run(flows[0], all_tables)
    else:
        driver.run(flows, once=arguments.once)


if __name__ == "__main__":
    report(main)
