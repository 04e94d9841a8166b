"""Reads Delta tables: their appends, or their change feed."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from include.catalog import Catalog
from include.checkpoints import checkpoint_files, offset_ranges
from include.delta import versions
from include.delta.delta_log import DeltaLog
from include.engine.checked_schema import parsed
from include.engine.commit import read_table
from include.engine.rows.micro_batch import Refusal
from include.engine.sources.reader import PlannedRead, SourceReader
from include.errors import FlowBroken, Unreachable
from include.flows.batch_files import AppendedFiles
from include.lake import locations
from include.spec import CHANGE_SCHEMA, Delta, Flow

# A batch that reads more commits is not small.
MOST_VERSIONS = 200


class DeltaReader(SourceReader):
    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self._source = flow.source_as(Delta)
        self._path = locations.table_path(self._source.table)

    def stream(self, spark: SparkSession, is_new: bool) -> DataFrame:
        flow, source = self._flow.flow, self._source
        if not locations.is_stored(source.table):
            raise Unreachable(
                f"{flow} reads {source.table}, which is not stored yet: start the flow {source.table} first"
            )
        reader = spark.readStream.format("delta").option("maxFilesPerTrigger", source.max_files)
        if source.max_bytes is not None:
            reader = reader.option("maxBytesPerTrigger", source.max_bytes)
        if source.changes:
            versions.require_change_feed(flow, source)
            reader = reader.option("readChangeFeed", "true")
        if is_new and (version := versions.first_version(flow, source)) is not None:
            reader = reader.option("startingVersion", version)
        return reader.load(str(self._path))

    def columns(self, spark: SparkSession, tables: Catalog, changes: bool = False) -> StructType:
        declared = table_columns(spark, self._source.table, tables)
        return StructType([*declared, *parsed(CHANGE_SCHEMA)]) if changes else declared

    def planned(self, begin: Any, end: Any) -> PlannedRead | Refusal:
        if self._source.changes:
            return Refusal("it reads changes, which no commit counts")
        if begin is not None and offset_ranges.delta_position(begin) == offset_ranges.delta_position(end):
            return PlannedRead(0)
        try:
            log = self._log(begin, end)
            if log is None:
                return Refusal("it gathers many commits of its source")
            files = tuple(AppendedFiles(log, self._source).between(begin, end))
        except FlowBroken as error:
            return Refusal(str(error))
        if any(file.rows is None for file in files):
            return Refusal(f"files of {self._source.table} have no statistics")
        return PlannedRead(sum(file.rows or 0 for file in files), sum(file.bytes for file in files), files)

    def _log(self, begin: Any, end: Any) -> DeltaLog | None:
        """Returns the part of the source's log that the batch reads; None if that is long."""
        if begin is None or begin.get("isStartingVersion") or end.get("isStartingVersion"):
            return DeltaLog(self._path)
        # An offset after the last file of a version belongs to the next version, which may not exist yet.
        first, last = offset_ranges.delta_position(begin)[0], checkpoint_files.read_version(end)
        return None if last - first > MOST_VERSIONS else DeltaLog(self._path, range(first, last + 1))


def table_columns(spark: SparkSession, name: str, tables: Catalog) -> StructType:
    """Returns the columns of a table: the declared ones, and those that files have added."""
    table = tables.tables[name]
    declared = parsed(table.schema)
    if table.reads_files and locations.is_stored(table.name):
        stored = read_table(spark, table.name).schema
        return StructType([*declared, *[field for field in stored if field.name not in declared.fieldNames()]])
    return declared


def rows_of_files(spark: SparkSession, table: str, files: Iterable[str]) -> DataFrame:
    """Returns the rows of these files of a stored table, with the table's columns."""
    path = locations.table_path(table)
    schema = read_table(spark, table).schema
    paths = [f"{path}/{file}" for file in files]
    return spark.read.schema(schema).option("basePath", str(path)).parquet(*paths)
