"""What a flow asks of its source in Spark: a stream of its rows, its columns, and what a batch reads of it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from include.catalog import Catalog
from include.checkpoints.offset_ranges import OffsetRange
from include.engine.rows.micro_batch import Refusal
from include.flows.batch_files import SourceFile
from include.spec import Flow


@dataclass(frozen=True)
class PlannedRead:
    """What a batch reads, by its offsets: known before any row is read.

    rows: an upper bound. files: those of a stored source that hold the rows. bytes: their total size on disk.
    ranges: offset ranges of topics.
    """

    rows: int
    bytes: int = 0
    files: tuple[SourceFile, ...] = ()
    ranges: tuple[OffsetRange, ...] = ()


class SourceReader(ABC):
    """Reads the source of one flow."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    @abstractmethod
    def stream(self, spark: SparkSession, is_new: bool) -> DataFrame:
        """Returns the rows that the flow has yet to read, as a stream. is_new: no batch is committed, so that a
        starting position applies.

        Raises Unreachable if the source does not hold that position yet, and FlowBroken if it no longer does.
        """

    @abstractmethod
    def columns(self, spark: SparkSession, tables: Catalog, changes: bool = False) -> StructType:
        """Returns the columns of the source. changes: with those of its change feed."""

    @abstractmethod
    def planned(self, begin: Any, end: Any) -> PlannedRead | Refusal:
        """Returns what lies between two offsets of the stream. Refuses what takes reading the rows."""
