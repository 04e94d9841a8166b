"""Finds files that land in a folder. `include.engine.batch.batch_of_files` reads their contents."""

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from include.catalog import Catalog
from include.checkpoints import landing_folder
from include.engine.rows.micro_batch import Refusal
from include.engine.session import require_connector
from include.engine.sources.delta_reader import table_columns
from include.engine.sources.reader import SourceReader
from include.settings import settings
from include.spec import Files, Flow


class FilesReader(SourceReader):
    def __init__(self, flow: Flow) -> None:
        super().__init__(flow)
        self._source = flow.source_as(Files)

    def stream(self, spark: SparkSession, is_new: bool) -> DataFrame:
        """Returns a stream that finds new files. Its rows are not used."""
        source = self._source
        folder = settings().folder(source.path)
        if "://" in folder:
            require_connector(spark, folder)
        elif folder.startswith(f"{settings().landing}/"):
            Path(folder).mkdir(parents=True, exist_ok=True)
        # Spark would retry for minutes if a store does not respond, and names no remedy.
        landing_folder.require_listable(folder)
        is_by_bytes = source.max_bytes is not None
        limit = ("maxBytesPerTrigger", source.max_bytes) if is_by_bytes else ("maxFilesPerTrigger", source.max_files)
        return (
            spark.readStream.format("text")
            .option(*limit)
            .option("pathGlobFilter", source.pattern)
            # Without this option Spark descends only into folders with a `=` in their names.
            .option("recursiveFileLookup", "true")
            # By default Spark ignores files much older than the newest it has seen, which may have any date.
            .option("maxFileAge", "1000000000d")
            .option("__globPaths__", "false")
            .load(folder if "://" in folder else f"file://{folder}")
        )

    def columns(self, spark: SparkSession, tables: Catalog, changes: bool = False) -> StructType:
        """Returns the columns of its table, as far as they are known: the files bring their own."""
        return table_columns(spark, self._flow.name, tables)

    def planned(self, begin: Any, end: Any) -> Refusal:
        return Refusal("it reads files, whose rows are known once they are read")
