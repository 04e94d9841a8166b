"""What joins of a stream cost: python -m benchmarks.joins [--small], without a broker.

1. A batch of a hundred rows that looks into a table of a million. The peer is the same flow without the lookup.
2. A batch of a hundred events that joins views with later purchases, and counts by hour. The peer is Spark's join of
   two streams with its state in RocksDB, which appends the joined rows and counts nothing.
"""

import argparse
from collections.abc import Callable
from functools import partial

import numpy
import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.support.host import running_host, stop, wait_for_batch
from benchmarks.support.measure import OURS, Row, Spent, cpu_figure, record, run_alternating, spend
from benchmarks.support.session import cpu_seconds, session
from include.catalog import Catalog
from include.errors import report
from include.lake import locations
from include.settings import settings
from include.spec import Append, Bucket, Delta, Expect, Flow, Lookup, Table, Upsert

ROWS, WARM_UP = 100, 30
VISITS = "customer BIGINT, page STRING, at BIGINT"
PLAIN, STOCK = "without a lookup", "Spark's join of streams"
EVENTS = "id BIGINT, kind STRING, user BIGINT, document STRING, time TIMESTAMP"
# Microseconds between two events: a batch is a minute of a topic.
APART = 600_000
CONVERSIONS = """
    WITH outcomes AS (
        SELECT view.id, view.hour, view.document, count(sale.id) > 0 AS converts
        FROM source AS view LEFT JOIN source AS sale
            ON sale.kind = 'sale' AND sale.user = view.user AND sale.time > view.time
            AND sale.time < view.time + INTERVAL 30 MINUTES
        WHERE view.kind = 'view' GROUP BY ALL)
    SELECT hour, document, count(*) AS views, count_if(converts) AS conversions FROM outcomes GROUP BY ALL
"""
STATE_STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def lookups(spark: SparkSession, keys: int, batches: int, rounds: int) -> None:
    """Measure batches of a flow that looks into a table of `keys` rows, and of one that does not."""
    dimension = "silver.visitors"
    customers = numpy.arange(keys)
    names = pa.array([f"customer {number}" for number in customers])
    write_deltalake(path_of(dimension), pa.table({"customer": customers, "name": names}))
    lookup = Lookup(dimension, on="customer", columns=("name",))
    tables = {
        PLAIN: visits("plain", VISITS),
        OURS: visits("looked_up", f"{VISITS}, name STRING", lookups=(lookup,)),
    }
    sources = {name: path_of(table.name.replace("silver", "bronze")) for name, table in tables.items()}
    for source in sources.values():
        write_deltalake(source, new_visits(0, keys))
    host = running_host(spark, list(tables.values()))
    newest = dict.fromkeys(tables, -1)

    def write(name: str, count: int) -> None:
        for _ in range(count):
            if newest[name] >= 0:
                write_deltalake(sources[name], new_visits(newest[name] + 1, keys), mode="append")
            newest[name] = wait_for_batch(tables[name], newest[name])

    record(
        Row(
            f"batch of {ROWS} rows that looks into {keys:,}",
            "CPU-s",
            measure_batches(write, list(tables), batches, rounds),
        )
    )
    stop(host)


def visits(name: str, schema: str, **fields: object) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="visits of customers",
        source=Delta(f"bronze.{name}"),
        schema=schema,
        transform="SELECT * FROM source",
        write=Append(),
        expect=(Expect("has a page", "page IS NOT NULL"),),
        interval_seconds=0.05,
        **fields,
    )


def new_visits(number: int, keys: int) -> pa.Table:
    customers = numpy.random.default_rng(number).integers(0, keys, ROWS)
    return pa.table({"customer": customers, "page": [f"/{key % 97}" for key in customers], "at": [number] * ROWS})


def events(spark: SparkSession, batches: int, rounds: int) -> None:
    """Measure batches of views and sales that are joined by a recomputed aggregate, and by Spark's join."""
    table = Flow(
        name="gold.conversions",
        comment="views that end in a sale",
        source=Delta("silver.events"),
        schema="hour TIMESTAMP, document STRING, views BIGINT, conversions BIGINT",
        transform=CONVERSIONS,
        write=Upsert(("hour", "document"), recompute=Bucket("hour", of="time", unit="hour"), reach_minutes=30),
        interval_seconds=0.05,
        # The driver of the lookups holds the lease of main.
        driver="events",
    )
    numbers = {OURS: -1, STOCK: -1}
    write_deltalake(path_of("silver.events"), new_events(0))
    write_deltalake(path_of("silver.peer_events"), new_events(0))
    host = running_host(spark, [table])
    query = joined_streams(spark.newSession())

    def write(name: str, count: int) -> None:
        for _ in range(count):
            if numbers[name] >= 0:
                source = "silver.events" if name == OURS else "silver.peer_events"
                write_deltalake(path_of(source), new_events(numbers[name] + 1), mode="append")
            if name == OURS:
                numbers[name] = wait_for_batch(table, numbers[name])
            else:
                query.processAllAvailable()
                numbers[name] += 1

    record(Row(f"batch of {ROWS} events that are joined", "CPU-s", measure_batches(write, [*numbers], batches, rounds)))
    query.stop()
    stop(host)


def joined_streams(spark: SparkSession) -> object:
    """Start Spark's join of the same events."""
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", STATE_STORE)

    def stream(kind: str, time: str) -> DataFrame:
        rows = spark.readStream.format("delta").load(path_of("silver.peer_events")).filter(f"kind = '{kind}'")
        return rows.withColumnRenamed("time", time).withWatermark(time, "60 minutes").alias(kind)

    same = "sale.user = view.user AND sold_at > viewed_at AND sold_at < viewed_at + INTERVAL 30 MINUTES"
    joined = stream("view", "viewed_at").join(stream("sale", "sold_at"), on=F.expr(same), how="leftOuter")
    rows = joined.selectExpr("view.id", "view.document", "viewed_at", "sale.id AS sale")
    writer = rows.writeStream.format("delta").option("checkpointLocation", str(settings().home / "peer"))
    return writer.trigger(processingTime="50 milliseconds").start(path_of("gold.peer"))


def new_events(number: int) -> pa.Table:
    generator, ids = numpy.random.default_rng(number), numpy.arange(number * ROWS, (number + 1) * ROWS)
    kinds = ["sale" if kind == 0 else "view" for kind in generator.integers(0, 5, ROWS)]
    return pa.table(
        {
            "id": ids,
            "kind": kinds,
            "user": generator.integers(0, 1_000, ROWS),
            "document": [f"document {document}" for document in generator.integers(0, 20, ROWS)],
            "time": pa.array(ids * APART + 1_800_000_000_000_000, pa.timestamp("us", "UTC")),
        }
    )


def measure_batches(
    write: Callable[[str, int], None], names: list[str], batches: int, rounds: int
) -> dict[str, object]:
    """Write batches of each, in turn. Returns the CPU seconds of a batch."""
    for name in names:
        write(name, WARM_UP if batches > 2 else 2)

    def block(name: str) -> Spent:
        return spend(cpu_seconds, partial(write, name, batches))

    spent = run_alternating({name: partial(block, name) for name in names}, rounds)
    return {name: cpu_figure(blocks, batches) for name, blocks in spent.items()}


def path_of(name: str) -> str:
    return str(locations.table_path(name))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joins", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="blocks of batches of each, default 3")
    parser.add_argument("--only", choices=("lookups", "events"), help="only this part")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    keys, batches, rounds = (1_000, 2, 1) if arguments.small else (1_000_000, 20, arguments.rounds)
    with session(Catalog({})) as spark:
        if arguments.only != "events":
            lookups(spark, keys, batches, rounds)
        if arguments.only != "lookups":
            events(spark, batches, rounds)


if __name__ == "__main__":
    report(main)
