"""Writes a table and the checkpoint of its flow as the engine and Spark do, without a JVM."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow
from deltalake import CommitProperties, DeltaTable, write_deltalake

from include.lake import locations
from include.lake.paths import remove_tree
from include.spec import Delta, Flow, Table

SETTINGS = {"spark.sql.shuffle.partitions": "2"}
# Plan time of batch 0, in milliseconds since 1970.
FIRST_BATCH_MS = 1_795_000_000_000


@dataclass
class StoredTable:
    """A table with a flow.

    source: identity of the source in the commit metadata. generation: of the checkpoint.
    """

    table: Table
    source: dict[str, Any] = field(default_factory=lambda: {"cluster_id": "c", "topics": {"t": "id"}})
    generation: int = 1

    @property
    def path(self) -> Path:
        return locations.table_path(self.table.name)

    @property
    def checkpoint(self) -> Path:
        return locations.checkpoints(self.table.flow) / str(self.generation)

    def create(self, data: pyarrow.Table) -> None:
        """Create the table without rows."""
        DeltaTable.create(str(self.path), data.schema)

    def plan(self, batch: int, end: Any) -> None:
        """Write the offset log entry of a batch, in Spark's format v1."""
        self.write("metadata", json.dumps({"id": "7fd1aba9"}))
        owner = {"flow": self.table.flow, "source": self.source, "write": {"mode": "Append"}, "definitions": []}
        self.write("owner.json", json.dumps({**owner, "first": int(self.generation > 1), "after": None}))
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": FIRST_BATCH_MS + batch * 1_000, "conf": SETTINGS}
        self.write(f"offsets/{batch}", f"v1\n{json.dumps(metadata)}\n{json.dumps(end)}")

    def commit(self, batch: int, begin: Any, end: Any, data: pyarrow.Table, row_counts: dict | None = None) -> None:
        """Commit a batch with the metadata of the engine."""
        commit_metadata = {"flow": self.table.flow, "generation": self.generation, "batch": batch, "epoch": 1}
        commit_metadata |= {"source": self.source, "source_from": begin, "source_to": end, "rows": row_counts}
        self.append(data, commit_metadata)

    def append(self, data: pyarrow.Table, commit_metadata: dict | None = None, mode: str = "append") -> None:
        write_deltalake(str(self.path), data, mode=mode, commit_properties=_commit_properties(commit_metadata))

    def acknowledge(self, batch: int) -> None:
        self.write(f"commits/{batch}", 'v1\n{"nextBatchWatermarkMs":0}')

    def batch(self, batch: int, begin: Any, end: Any, data: pyarrow.Table, row_counts: dict | None = None) -> None:
        """Plan, commit and acknowledge a batch."""
        self.plan(batch, end)
        self.commit(batch, begin, end, data, row_counts)
        self.acknowledge(batch)

    def write(self, name: str, text: str) -> None:
        file = self.checkpoint / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def delete_checkpoints(self) -> None:
        """Delete all checkpoints of the flow."""
        remove_tree(locations.checkpoints(self.table.flow))


def kafka_rows(first: int, after: int, partition: int = 0, topic: str = "t") -> pyarrow.Table:
    """A row (topic, partition, offset) for each offset from `first` up to, but without, `after`."""
    offsets = list(range(first, after))
    columns = {"topic": [topic] * len(offsets), "partition": [partition] * len(offsets), "offset": offsets}
    schema = pyarrow.schema([("topic", pyarrow.string()), ("partition", pyarrow.int32()), ("offset", pyarrow.int64())])
    return pyarrow.table(columns, schema=schema)


def delta(version: int, index: int = -1, is_starting: bool = False) -> dict[str, Any]:
    """An offset of a Delta source, as the offset log stores it."""
    offset = {"sourceVersion": 1, "reservoirId": "r", "reservoirVersion": version, "index": index}
    return {**offset, "isStartingVersion": is_starting}


def reader(name: str, of: str, layer: str = "silver", **declared: Any) -> Table:
    return Flow(name=f"{layer}.{name}", comment="", source=Delta(of), schema="id BIGINT", **declared)


def _commit_properties(commit_metadata: dict | None) -> CommitProperties | None:
    return CommitProperties(custom_metadata={"userMetadata": json.dumps(commit_metadata)}) if commit_metadata else None
