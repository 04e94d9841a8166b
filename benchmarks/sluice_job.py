"""Sluice's driver for the flows of the benchmarks, which no table file declares.

Run by its path, so that PYTHONPATH says of which checkout `include` is.
"""

import argparse
import os
from dataclasses import replace

from include import catalog
from include.catalog import Catalog
from include.engine.jobs import window
from include.engine.stream import driver
from include.errors import report
from include.local import environment, java
from include.settings import settings
from include.spec import Append, Bucket, Delta, Expect, Json, Kafka, Table, Upsert


def by_model(readings):  # type: ignore[no-untyped-def]
    from pyspark.sql import functions as F

    return readings.groupBy("model", "minute").agg(
        F.count("*").alias("readings"),
        F.avg("heart_bpm").alias("avg_heart_bpm"),
        F.min("heart_bpm").alias("min_heart_bpm"),
        F.max("heart_bpm").alias("max_heart_bpm"),
        F.sum("kcal").alias("kcal"),
    )


BRONZE = Table(name="bronze.events", comment="messages as they came", source=Kafka("readings"))
SILVER = Table(
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
GOLD = Table(
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
    """Flows that have a topic each."""
    return [replace(BRONZE, name=f"{BRONZE.name}_{n}", source=Kafka(f"{topic}-{n}")) for n in range(count)]


def tables(arguments: argparse.Namespace) -> list[Table]:
    """By layer; `--rows` and `--files` bound a batch."""
    if arguments.copies:
        return copies(arguments.copies, arguments.topic)
    chosen = [TABLES[layer] for layer in arguments.layers]
    if arguments.interval is not None:
        chosen = [replace(table, interval_seconds=arguments.interval) for table in chosen]
    bounded = []
    for table in chosen:
        if isinstance(table.source, Kafka):
            most = {"max_offsets": arguments.rows} if arguments.rows else {}
            bounded.append(replace(table, source=Kafka(arguments.topic, **most)))
        else:
            files = {"max_files": arguments.files} if arguments.files else {}
            bounded.append(replace(table, source=replace(table.source, **files)))
    return bounded


def parser() -> argparse.ArgumentParser:
    """The options that every engine's job takes."""
    made = argparse.ArgumentParser()
    made.add_argument("layers", nargs="+", choices=list(TABLES))
    made.add_argument("--topic", default="readings")
    made.add_argument("--rows", type=int, help="records of a batch from Kafka at the most")
    made.add_argument("--files", type=int, help="files of a batch from a table at the most")
    made.add_argument("--interval", type=float, help="seconds")
    made.add_argument("--once", action="store_true", help="stop at the end of the source")
    made.add_argument("--copies", type=int, help="so many flows from Kafka in one driver instead")
    made.add_argument("--maintain", action="store_true", help="a window of the table instead")
    return made


def main() -> None:
    arguments = parser().parse_args()
    os.environ.update(environment.write(settings(), java.home()))
    chosen = tables(arguments)
    known = Catalog({table.name: table for table in (*TABLES.values(), *chosen)})
    catalog.load = catalog.reload = lambda: known
    if arguments.maintain:
        window.run(chosen[0], known)
    else:
        driver.run(chosen, once=arguments.once)


if __name__ == "__main__":
    report(main)
