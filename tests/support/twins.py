"""Two tables that get the same batches by different ways, and what the batches leave in each."""

import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from include.checkpoints import checkpoint_files, offset_ranges
from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.engine.batch import batch
from include.engine.batch.batch import FlowContext
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.fast_path import path
from include.engine.sources import kafka_reader
from include.engine.tables import create_table
from include.flows import resume_position
from include.kafka import broker
from include.lake import locations
from include.ledger import row_outcomes
from include.spec import Delta, Kafka, Table
from tests.support.topic import Topic

ABOUT_THE_WRITER = ("_flow", "_source", "_retained_at")


def end_of_version(number: int) -> dict[str, Any]:
    """Where a batch ends that reads all of this version of a stored table."""
    offset = {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": number, "index": 0}
    return {**offset, "isStartingVersion": False}


@dataclass
class Twin:
    """A table whose source grows with each batch. is_fast: small batches take the fast path. end_of: where the batch of
    a number ends in the source.
    """

    spark: SparkSession
    home: Path
    table: Table
    is_fast: bool
    end_of: Callable[[int], Any] = end_of_version
    generation: int = 1
    context: FlowContext = field(init=False)

    def __post_init__(self) -> None:
        (self.home / "offsets").mkdir(parents=True)
        (self.home / checkpoint_files.OWNER).write_text("{}")
        create_table.create(self.spark, self.table)
        self.start(0)

    def start(self, number: int) -> None:
        """Start a driver before this batch, as `claim` does: it asks the table what it holds."""
        metadata = resume_position.last_commit_metadata(self.table)
        last_commit = (metadata["generation"], metadata["batch"]) if metadata else None
        is_of_generation = last_commit and last_commit[0] == self.generation
        written = last_commit[1] if last_commit and is_of_generation else number - 1
        checkpoint = Checkpoint(self.home, self.generation, number - 1, written, last_commit, source={})
        fast_path = path.of(self.spark, self.table) if self.is_fast else None
        self.context = FlowContext(self.table, checkpoint, epoch=1, fast_path=fast_path)

    def write(self, rows: DataFrame, number: int) -> None:
        """Write the batch, of all rows that the source has got for it."""
        (self.home / "offsets" / str(number)).write_text(f"v1\n{{}}\n{json.dumps(self.end_of(number))}")
        batch.write(rows, number, self.context)

    def begin_generation(self, number: int) -> None:
        """Begin a generation before this batch, as a reset of the checkpoint does."""
        self.generation += 1
        self.start(number)

    def write_until_done(self, rows: DataFrame, number: int) -> None:
        """Write the batch. After an error, a new driver begins."""
        try:
            self.write(rows, number)
        except Exception:
            self.start(number)
            self.write(rows, number)

    @property
    def newest(self) -> Any:
        log = DeltaLog(locations.table_path(self.table.name))
        return log.commit(log.versions[-1])

    @property
    def contents(self) -> dict[str, Any]:
        """The rows of the table and of its companions, and what the newest batch's commit says about it."""
        table, metadata = self.table, self.newest.metadata
        names = {"rows": table.name, "quarantine": table.quarantine, "retained": table.retained}
        rows = {key: counted(name) for key, name in names.items() if locations.is_stored(name)}
        counts = replace(row_outcomes.batches(table, 1)[0], flow="", at=0, version=0) if metadata.get("rows") else None
        known = {key: metadata[key] for key in ("batch", "source_from", "source_to", "newest", "lookups")}
        return {**rows, **known, "counts": counts}


def counted(name: str) -> Counter[str]:
    """The rows of a stored table in a form that compares their bits, each with its number."""
    rows = stored_table.dataset(name).to_table().to_pylist()
    return Counter(
        str([(key, _exact(value)) for key, value in row.items() if key not in ABOUT_THE_WRITER]) for row in rows
    )


def _exact(value: Any) -> Any:
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    return repr(value)


def differences(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """What differs; of rows, those that only one of both has."""
    found = {}
    for key in first:
        if first[key] != second[key]:
            pair = (first[key], second[key])
            found[key] = (pair[0] - pair[1], pair[1] - pair[0]) if isinstance(first[key], Counter) else pair
    return found


class Source:
    """A stored table to which each batch appends one version."""

    end_of = staticmethod(end_of_version)

    def __init__(self, spark: SparkSession, name: str, schema: str) -> None:
        self.spark, self.name, self.schema = spark, name, schema
        self.delta = Delta(name)

    def append(self, rows: list[tuple]) -> DataFrame:
        frame = self.spark.createDataFrame(rows, self.schema).coalesce(1)
        frame.write.format("delta").mode("append").save(str(locations.table_path(self.name)))
        return frame


class TopicSource:
    """A topic to which each batch appends one record a row."""

    def __init__(self, spark: SparkSession, topic: Topic) -> None:
        self.spark, self.topic = spark, topic
        self._ends: list[dict[str, dict[str, int]]] = []

    def append(self, rows: list[tuple]) -> DataFrame:
        begin = self._ends[-1] if self._ends else None
        self.topic.send(*rows)
        offsets = broker.offsets(self.topic.cluster, self.topic.name)
        self._ends.append({self.topic.name: {str(partition): after for partition, (_, after) in offsets.items()}})
        ranges = offset_ranges.kafka_ranges(begin, self._ends[-1])
        return kafka_reader.records_between(self.spark, Kafka(self.topic.name), ranges)

    def end_of(self, number: int) -> dict[str, dict[str, int]]:
        return self._ends[number]
