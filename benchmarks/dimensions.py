"""What a batch of a slowly changing dimension costs: python -m benchmarks.dimensions [--small], without a broker.

Uses the history of docs/recipes.md. Each batch adds a thousand changes of customers to a growing source.
"""

import argparse
import json
import re
import statistics
from dataclasses import replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from benchmarks.support.session import cpu_seconds, session
from include.catalog import Catalog
from include.engine.batch import batch
from include.engine.batch.batch import FlowContext
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.tables import create_table
from include.errors import report
from include.settings import ROOT, settings
from include.spec import Delta, Table

NEW_ROWS = 1_000
CHANGES_PER_CUSTOMER = 10


def history() -> Table:
    page = (ROOT / "docs" / "recipes.md").read_text()
    [code] = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "lead(changed_at)" in code]
    module: dict[str, Any] = {}
    exec(code, module)
    return module["TABLE"]


def changes(spark: SparkSession, begin: int, end: int, customers: int) -> DataFrame:
    """Changes of customers. Columns: customer, city, is_deleted, changed_at, partition, offset."""
    return spark.range(begin, end).selectExpr(
        f"concat('customer-', id % {customers}) AS customer",
        "concat('city-', id % 97) AS city",
        "false AS is_deleted",
        "timestamp_seconds(1700000000 + id) AS changed_at",
        "0 AS partition",
        "id AS offset",
    )


def batch_cpu(spark: SparkSession, rows: int, rounds: int) -> list[float]:
    """CPU seconds of each batch with new changes, for a source of `rows` changes. The initial batch is not counted."""
    source = f"silver.changes_{rows}"
    table = replace(history(), name=f"gold.history_{rows}", source=Delta(source, changes=True))
    create_table.create(spark, table)
    checkpoint = settings().home / "checkpoints" / table.name
    (checkpoint / "offsets").mkdir(parents=True)
    cpu_per_batch = []
    for number in range(rounds + 1):
        begin, end = (rows + (number - 1) * NEW_ROWS, rows + number * NEW_ROWS) if number else (0, rows)
        new = changes(spark, begin, end, rows // CHANGES_PER_CUSTOMER)
        new.write.format("delta").mode("append").save(str(settings().table_path(source)))
        offset = {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": number + 1, "index": -1}
        text = f"v1\n{{}}\n{json.dumps({**offset, 'isStartingVersion': False})}"
        (checkpoint / "offsets" / str(number)).write_text(text)
        state = Checkpoint(checkpoint, 1, committed=number - 1, written=number - 1, last_commit=None, source={})
        begin_seconds = cpu_seconds()
        batch.write(new, number, FlowContext(table, state, epoch=1, rows_before=NEW_ROWS))
        cpu_per_batch.append(cpu_seconds() - begin_seconds)
    return cpu_per_batch[1:]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.dimensions", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    small = parser.parse_args().small
    with session(Catalog({})) as spark:
        # A warm-up: a cold JVM takes several times as long.
        batch_cpu(spark, 20_000, 1 if small else 8)
        for rows in (1_000,) if small else (10_000, 100_000):
            spent = batch_cpu(spark, rows, 1 if small else 5)
            print(
                f"history of {rows:,} changes: {statistics.median(spent):.1f} CPU seconds for a batch of {NEW_ROWS:,} "
                f"new ones ({min(spent):.1f} to {max(spent):.1f}, {len(spent)} batches)",
                flush=True,
            )


if __name__ == "__main__":
    report(main)
