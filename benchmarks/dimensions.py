"""What a merge of changes costs: python -m benchmarks.dimensions [--small], without a broker.

1. A batch that changes 0.1 % of the keys of a large table, and a read of the table after it. The peer is a MERGE of
   Delta, in the same session.
2. A batch of a hundred changes after 50 merges, and after 1,000.
3. A batch of a hundred changes where no delete is retained, and where a million are.
"""

import argparse
import json
from dataclasses import replace
from functools import partial

import numpy
import pyarrow as pa
from delta.tables import DeltaTable
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.support.host import running_host, stop, wait_for_batch
from benchmarks.support.measure import OURS, Row, Spent, cpu_figure, record, run_alternating, spend
from benchmarks.support.session import cpu_seconds, session
from include.catalog import Catalog
from include.engine.batch import batch
from include.engine.batch.batch import FlowContext
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.fast_path import path
from include.engine.tables import create_table
from include.errors import report
from include.lake import locations
from include.settings import settings
from include.spec import Delta, Flow, Table, Upsert

COLUMNS = "customer BIGINT, city STRING, payload STRING, changed_at BIGINT"
STOCK = "a MERGE of Delta"
CHANGES_PER_KEY = 1_000
FEW_MERGES, MANY_MERGES, SMALL_BATCH = 50, 1_000, 100
SMALL_SOURCE, SMALL_KEYS = "bronze.small", 20_000


def customers(name: str) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="the city of each customer",
        source=Delta(f"bronze.{name}"),
        schema=COLUMNS,
        write=Upsert(("customer",), sequence_by="changed_at"),
    )


def rows(keys: DataFrame, sequence: int) -> DataFrame:
    """A row for each value of the column `id`, about 100 bytes each."""
    return keys.selectExpr(
        "id AS customer",
        f"concat('city-', (id + {sequence}) % 997) AS city",
        f"sha2(concat(id, '-', {sequence}), 256) AS payload",
        f"CAST({sequence} AS BIGINT) AS changed_at",
    )


def large_batch(spark: SparkSession, count: int, rounds: int) -> None:
    """Merge changes of 0.1 % of `count` keys, and read the table, by both engines in turn."""
    # Without the settings with which a flow tunes its session.
    peer_session = spark.newSession()
    tables = {OURS: customers("ours"), STOCK: customers("peer")}
    for table in tables.values():
        create_table.create(spark, table)
        rows(spark.range(count), 0).write.format("delta").mode("append").save(path_of(table.name))
    context, sequences = flow_context(spark, tables[OURS]), dict.fromkeys(tables, 0)

    def changes(session: SparkSession, name: str) -> DataFrame:
        """New changes, as one version of the source."""
        sequences[name] += 1
        sequence, source = sequences[name], path_of(tables[name].name.replace("silver", "bronze"))
        keys = session.range(count).filter(f"pmod(hash(id, {sequence}), {CHANGES_PER_KEY}) = 0")
        rows(keys, sequence).coalesce(1).write.format("delta").mode("append").save(source)
        return session.read.format("delta").load(source).filter(f"changed_at = {sequence}")

    def merge_ours() -> Spent:
        new = changes(spark, OURS)
        plan(context, sequences[OURS])
        return spend(cpu_seconds, lambda: batch.write(new, sequences[OURS], context))

    def merge_stock() -> Spent:
        target = DeltaTable.forPath(peer_session, path_of(tables[STOCK].name)).alias("old")
        merge = target.merge(changes(peer_session, STOCK).alias("new"), "old.customer = new.customer")
        merge = merge.whenMatchedUpdateAll("new.changed_at > old.changed_at").whenNotMatchedInsertAll()
        return spend(cpu_seconds, merge.execute)

    def read(name: str) -> Spent:
        stored = peer_session.read.format("delta").load(path_of(tables[name].name))
        return spend(cpu_seconds, stored.agg(F.max("payload"), F.sum("changed_at")).collect)

    spent = run_alternating({OURS: merge_ours, STOCK: merge_stock}, rounds)
    figures = {name: cpu_figure(blocks, 1) for name, blocks in spent.items()}
    record(Row(f"merge of 0.1 % of {count:,} rows", "CPU-s", figures))
    spent = run_alternating({name: partial(read, name) for name in tables}, rounds)
    record(Row("read of the table after it", "CPU-s", {name: cpu_figure(blocks, 1) for name, blocks in spent.items()}))


def path_of(name: str) -> str:
    return str(locations.table_path(name))


def flow_context(spark: SparkSession, table: Table) -> FlowContext:
    """The flow of a running driver before its batch 1."""
    checkpoint = settings().home / "checkpoints" / table.name
    (checkpoint / "offsets").mkdir(parents=True)
    state = Checkpoint(checkpoint, 1, committed=0, written=0, last_commit=None, source={})
    context = FlowContext(table, state, epoch=1, fast_path=path.of(spark, table))
    plan(context, 0)
    return context


def plan(context: FlowContext, number: int) -> None:
    """Plan a batch that reads one version of the source."""
    offset = {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": number, "index": -1}
    text = f"v1\n{{}}\n{json.dumps({**offset, 'isStartingVersion': False})}"
    (context.checkpoint.path / "offsets" / str(number)).write_text(text)


def small_batches(spark: SparkSession, few: int, many: int, batches: int) -> None:
    """Measure batches of a running flow after few merges, and after many."""
    table = replace(customers("small"), interval_seconds=0.05)
    write_deltalake(locations.table_path(SMALL_SOURCE), small_changes(0))
    host = running_host(spark, [table])
    newest = wait_for_batch(table, -1)

    def merge_until(count: int) -> None:
        nonlocal newest
        while newest < count:
            write_deltalake(locations.table_path(SMALL_SOURCE), small_changes(newest + 1), mode="append")
            newest = wait_for_batch(table, newest)

    figures = {}
    for name, count in ((OURS, few), (f"after {many:,} merges", many)):
        merge_until(count)
        block = spend(cpu_seconds, partial(merge_until, count + batches))
        figures[name] = cpu_figure([block], batches)
    record(Row(f"batch of {SMALL_BATCH} changes after {few} merges", "CPU-s", figures))
    stop(host)


def beside_deletes(spark: SparkSession, retained: int, batches: int) -> None:
    """Measure batches that delete and change, where few and many deletes are retained. The first batch is left out."""
    figures = {}
    for name, count in ((OURS, 0), (f"{retained:,} retained", retained)):
        table = customers(f"deletes_{count}")
        table = replace(table, write=replace(table.write, deletes="city = 'city-7'"))
        create_table.create(spark, table)
        deletes = spark.range(count).selectExpr(
            f"id + {SMALL_KEYS} AS customer",
            "CAST(0 AS BIGINT) AS changed_at",
            "true AS _deleted",
            f"'{table.flow}' AS _flow",
            "1 AS _generation",
            "CAST(0 AS BIGINT) AS _batch",
        )
        deletes = deletes.orderBy(F.hash("customer")).coalesce(1)
        deletes.write.format("delta").mode("append").save(path_of(table.retained))
        context, source = flow_context(spark, table), str(locations.table_path(f"bronze.deletes_{count}"))

        def write(number: int, context: FlowContext = context, source: str = source) -> None:
            write_deltalake(source, small_changes(number), mode="append")
            new = spark.read.format("delta").load(source).filter(f"changed_at = {number}")
            plan(context, number)
            batch.write(new, number, context)

        for number in range(1, 4):
            write(number)
        block = spend(cpu_seconds, lambda write=write: [write(number) for number in range(4, batches + 4)])
        figures[name] = cpu_figure([block], batches)
    record(Row(f"batch of {SMALL_BATCH} changes beside no retained deletes", "CPU-s", figures))


def small_changes(number: int) -> pa.Table:
    generator = numpy.random.default_rng(number)
    keys = generator.integers(0, SMALL_KEYS, SMALL_BATCH)
    cities, payloads = [f"city-{key % 997}" for key in keys], [generator.bytes(32).hex() for _ in keys]
    columns = {"customer": keys, "city": cities, "payload": payloads, "changed_at": [number] * SMALL_BATCH}
    return pa.table(columns)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dimensions", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the large table, default 10,000,000")
    parser.add_argument("--rounds", type=int, default=3, help="merges of the large table by each, default 3")
    parser.add_argument("--only", choices=("large", "small", "deletes"), help="only this part")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    few, many, batches = (2, 5, 2) if arguments.small else (FEW_MERGES, MANY_MERGES, 20)
    count, rounds = (10_000, 1) if arguments.small else (arguments.rows, arguments.rounds)
    with session(Catalog({})) as spark:
        if arguments.only in (None, "large"):
            large_batch(spark, count, rounds)
        if arguments.only in (None, "small"):
            small_batches(spark, few, many, batches)
        if arguments.only in (None, "deletes"):
            beside_deletes(spark, 1_000 if arguments.small else 1_000_000, batches)


if __name__ == "__main__":
    report(main)
