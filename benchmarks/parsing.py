"""What exact parsing costs: python -m benchmarks.parsing [--small], in a home of its own, without a broker.

CPU of typing the same messages by `Json` and by a plain `from_json` with casts, which rounds and cuts, in turn.
"""

import argparse
import json
import random
import statistics
from collections.abc import Callable
from types import SimpleNamespace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.support.session import cpu_seconds, session
from include.catalog import Catalog
from include.engine import struct_type
from include.engine.rows import parse, prepare
from include.errors import report
from include.spec import Json

SCHEMA = (
    "event STRING, device STRING, time TIMESTAMP, bpm INT, lat DOUBLE, lon DOUBLE, steps BIGINT, kcal DECIMAL(9,3), "
    "note STRING"
)
KINDS: dict[str, Callable[[str], str]] = {
    "messages without a number that Spark would change": lambda text: text,
    "messages with one such number": lambda text: f'{text[:-1]}, "price": 12.50}}',
}


def message(number: int) -> str:
    chance = random.Random(number)
    return json.dumps(
        {
            "event": f"e-{number:09}",
            "device": f"tracker-{number % 500}",
            "time": f"2026-03-01T12:00:{number % 60:02}.123Z",
            "bpm": 60 + number % 100,
            "lat": round(chance.uniform(-90, 90), 6),
            "lon": round(chance.uniform(-180, 180), 6),
            "steps": number,
            "kcal": round(chance.uniform(0, 1), 3),
            "note": 'walking "home"',
        }
    )


def plain(rows: DataFrame) -> DataFrame:
    schema = struct_type.from_ddl(SCHEMA)
    fields = ", ".join(f"`{name}`: STRING" for name in schema.names)
    payload = F.col("value").cast("string")
    documents = F.from_json(F.concat(F.lit("["), payload, F.lit("]")), f"ARRAY<STRUCT<{fields}>>")
    rows = rows.withColumn("_json", F.when(F.is_valid_utf8(payload) & (F.size(documents) == 1), documents[0]))
    errors = []
    for field in schema:
        raw = F.col(f"_json.{field.name}")
        rows = rows.withColumn(field.name, raw.try_cast(field.dataType))
        errors.append(parse.cast_error(field.name, raw, F.col(field.name), field.dataType.simpleString()))
    return rows.withColumn("_errors", parse.error_list(errors)).drop("_json")


def exact(rows: DataFrame) -> DataFrame:
    schema = struct_type.from_ddl(SCHEMA)
    return parse.typed(rows, SimpleNamespace(), Json("value", into=tuple(schema.names)), schema)


def cost(rows: DataFrame) -> float:
    begin_seconds = cpu_seconds()
    rows.write.format("noop").mode("overwrite").save()
    return cpu_seconds() - begin_seconds


def compare(spark: SparkSession, kind: str, count: int, rounds: int) -> None:
    texts = [(KINDS[kind](message(number)),) for number in range(1_000)]
    some = spark.createDataFrame(texts, "value STRING").selectExpr("CAST(value AS BINARY) AS value")
    rows = some.crossJoin(spark.range(max(1, count // 1_000))).coalesce(1).select("value").cache()
    prepare.tune(spark, rows.count())
    frames = {"plain": plain(rows), "exact": exact(rows)}
    spent: dict[str, list[float]] = {name: [] for name in frames}
    for number in range(rounds + 2):
        for name in sorted(frames, reverse=number % 2 == 0):
            spent[name] += [cost(frames[name])][: number >= 2]
    ratios = [exact / plain for plain, exact in zip(*spent.values(), strict=True)]
    micros = {name: statistics.median(seconds) / rows.count() * 1e6 for name, seconds in spent.items()}
    print(
        f"{kind}, {rows.count():,} a batch: {micros['exact']:.1f} µs of CPU a row against {micros['plain']:.1f} plain, "
        f"{statistics.median(ratios):.2f} times as many ({min(ratios):.2f} to {max(ratios):.2f}, {rounds} rounds)",
        flush=True,
    )
    rows.unpersist()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parsing", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    small = parser.parse_args().small
    with session(Catalog({})) as spark:
        for kind in KINDS:
            for count in (1_000, 100_000):
                compare(spark, kind, count, 1 if small else 7)


if __name__ == "__main__":
    report(main)
