"""Writes the batches of a flow as its driver does, without a streaming query."""

import json
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from include.delta import stored_table
from include.engine.batch import batch
from include.engine.batch.batch import FlowContext
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.commit import txn_app_id
from include.engine.fast_path import path
from include.engine.tables import create_table
from include.ledger import row_outcomes
from include.ledger.row_outcomes import Batch
from include.spec import Table


@dataclass
class BatchWriter:
    """schema: DDL of the source rows. context: of a running driver; None: each batch starts a new driver.

    planned_at: when the next batch is planned, in seconds since 1970; None: the checkpoint does not say.
    is_fast: whether new drivers have a fast path.
    """

    spark: SparkSession
    home: Path
    schema: str
    number: int = -1
    generation: int = 1
    context: FlowContext | None = None
    planned_at: float | None = None
    is_fast: bool = False
    last_commit: tuple[int, int] | None = field(default=None, init=False)

    def write(self, table: Table, rows: list[tuple] | DataFrame) -> Batch:
        """Write the next batch. Returns its row counts from the commit."""
        self.number += 1
        return self.write_again(table, rows)

    def write_again(self, table: Table, rows: list[tuple] | DataFrame) -> Batch:
        """Write the current batch number again, in a new driver unless `context` is set."""
        if not self.context:
            create_table.create(self.spark, table)
        self._plan()
        frame = rows if isinstance(rows, DataFrame) else self.spark.createDataFrame(rows, self.schema)
        batch.write(frame, self.number, self.context or self.new_context(table))
        self.last_commit = (self.generation, self.number)
        return row_outcomes.batches(table, 1)[0]

    def new_context(self, table: Table) -> FlowContext:
        version = stored_table.open_table(table.name).transaction_version(txn_app_id(table.name, self.generation))
        initial = -1 if self.generation == 1 else 0
        written = initial if version is None else version
        checkpoint = Checkpoint(self.home, self.generation, self.number - 1, written, self.last_commit, source={})
        return FlowContext(table, checkpoint, 1, fast_path=path.of(self.spark, table) if self.is_fast else None)

    def begin_generation(self) -> None:
        """Begin a generation as `reset checkpoint` does: batch 0 stands for all batches of earlier generations."""
        self.generation, self.number = self.generation + 1, 0

    def _plan(self) -> None:
        (self.home / "offsets").mkdir(exist_ok=True)
        offset = {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": self.number + 1, "index": -1}
        metadata = {} if self.planned_at is None else {"batchTimestampMs": round(self.planned_at * 1_000)}
        text = f"v1\n{json.dumps(metadata)}\n{json.dumps({**offset, 'isStartingVersion': False})}"
        (self.home / "offsets" / str(self.number)).write_text(text)
