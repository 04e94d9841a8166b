"""Analyses every declaration with Spark, without reading or writing a row: python -m include.engine.check.check

The catalog has already refused what can be known without Spark.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame, SparkSession

from include import catalog
from include.catalog import Catalog
from include.engine.batch import data_skipping, read
from include.engine.batch.transform import SOURCE, joined, tables_read
from include.engine.check import checked_rows
from include.engine.check.analysis_errors import sentence
from include.engine.check.checked_schema import empty, schema_of
from include.engine.session import open_session
from include.errors import DeclarationError, SetupError, report
from include.settings import settings
from include.spec import FILES_SCHEMA, Append, Bucket, Delta, Files, Table, Upsert
from include.validation.declaration import mistake
from include.validation.examination import Examination

# PySpark logs each error of an analysis as one line of JSON, which the sentence says better.
LOGGERS = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")


def check(spark: SparkSession, tables: Catalog) -> None:
    """Raises DeclarationError, with all sentences, where the rows of a table would not be what it declares."""
    if sentences := examine(spark, tables).sentences:
        raise DeclarationError(*sentences)


def examine(spark: SparkSession, tables: Catalog) -> Examination:
    """Every table is analysed, whatever is wrong with the others, save those that read columns which nobody knows."""
    found, unknown = Examination(), set()
    for table in (*tables.steps.values(), *tables.tables.values()):
        with found.noting(table.name, table.file):
            unknown.add(table.name)
            schema_of(table)
            unknown.discard(table.name)
            checked_rows.check_properties(spark, table)
    # A temporary step first, so that what is wrong with it is not said of its readers.
    for table in (*tables.steps.values(), *tables.flows.values(), *tables.views.values()):
        if hidden := [name for name in _sources(table) if name in unknown]:
            found.unjudged[table.name] = hidden[0]
        elif table.name not in unknown:
            with found.noting(table.name, table.file):
                _check_table(spark, table, tables)
    return found


def _check_table(spark: SparkSession, table: Table, tables: Catalog) -> None:
    try:
        if table.is_view:
            if not any(_is_unknown(reader, tables) for reader in table.readers):
                _check_view(spark, table, tables)
        elif not isinstance(table.source, Files) and not _is_unknown(table, tables):
            _check_flow(spark, table, tables)
    except (Py4JNetworkError, ConnectionError) as error:
        raise SetupError(f"Spark ended while it analysed {table.name}: see {_log()}") from error


def _check_flow(spark: SparkSession, table: Table, tables: Catalog) -> None:
    source = _empty_source(spark, table, tables)
    _check_sources(spark, table, {SOURCE})
    if isinstance(table.write, Upsert) and table.write.recompute:
        source = _with_bucket(source, table, table.write.recompute)
    rows = checked_rows.shaped_as_declared(source, table)
    checked_rows.check(table, rows, (source,), "write it as a recomputed Upsert", tables)
    if table.watermark:
        _check_timestamp(table, rows, "watermark", table.watermark.of)


def _check_view(spark: SparkSession, view: Table, tables: Catalog) -> None:
    frames = {reader.branch or SOURCE: _empty_source(spark, reader, tables) for reader in view.readers}
    sources = tuple(frames.values())
    _check_sources(spark, view, set(frames))
    flat = view
    if isinstance(view.source, Mapping) and (transform := view.transform):
        flat = replace(view, transform=lambda _: joined(frames, transform))
    rows = checked_rows.shaped_as_declared(sources[0], flat)
    checked_rows.check(view, rows, sources, "", tables)


def _sources(table: Table) -> list[str]:
    """The tables, and temporary steps, whose columns have to be known."""
    read = [reader.source.table for reader in table.readers if isinstance(reader.source, Delta)]
    return [*read, *(step.name for step in table.steps)]


def _is_unknown(table: Table, tables: Catalog) -> bool:
    """Whether the columns of its source come with files that nobody has read yet."""
    if table.steps or not isinstance(table.source, Delta):
        return False
    above = tables.tables[table.source.table]
    return above.schema == FILES_SCHEMA and not settings().is_stored(above.name)


def _empty_source(spark: SparkSession, table: Table, tables: Catalog) -> DataFrame:
    source = table.source
    if table.steps:
        return empty(spark, schema_of(table.steps[-1]))
    # What is recomputed is computed from rows.
    changes = isinstance(source, Delta) and source.changes and isinstance(table.write, Append)
    return empty(spark, read.columns(spark, source, tables, changes))


def _check_sources(spark: SparkSession, table: Table, names: set[str]) -> None:
    """Refuses SQL that reads anything but its sources, by their names in it, or not all of them."""
    if not isinstance(table.transform, str):
        return
    try:
        read = tables_read(spark, table.transform)
    except PySparkException as error:
        raise mistake(table, sentence(error, "its SQL", "mend it, it has to be one SELECT")) from error
    if others := sorted(read - names):
        raise checked_rows.hidden_source(table, f"its SQL reads '{others[0]}'")
    if unread := sorted(names - read):
        what = "a source of the view" if table.is_view else "the rows of its batch"
        raise mistake(table, f"its SQL never reads `{unread[0]}`, {what}: select from it")


def _with_bucket(source: DataFrame, table: Table, by: Bucket) -> DataFrame:
    _check_timestamp(table, source, "bucket", by.of)
    return source.withColumn(by.name, data_skipping.bucket(by.of, by.unit))


def _check_timestamp(table: Table, rows: DataFrame, what: str, column: str) -> None:
    kind = rows.schema[column].dataType.simpleString().upper()
    # Spark would cast a text or a date silently.
    if not kind.startswith("TIMESTAMP"):
        where = " in its source" if what == "bucket" else ""
        raise mistake(table, f"{what} of '{column}', which is {kind}{where}: name a TIMESTAMP")


@contextmanager
def _stderr_in_log() -> Iterator[None]:
    """What the JVM writes while it starts, and later, goes to a file of its own."""
    terminal = os.dup(2)
    _log().parent.mkdir(parents=True, exist_ok=True)
    try:
        with _log().open("wb") as log:
            os.dup2(log.fileno(), 2)
        yield
    finally:
        os.dup2(terminal, 2)
        os.close(terminal)


def _log() -> Path:
    return settings().logs / "check.log"


def main() -> None:
    tables, found = catalog.examine(*sys.argv[1:])
    for logger in LOGGERS:
        PySparkLogger.getLogger(logger).disabled = True
    try:
        with _stderr_in_log():
            spark = open_session("sluice check", tables)
    except (PySparkException, Py4JJavaError) as error:
        raise SetupError(f"Spark did not start: see {_log()}") from error
    analysed = examine(spark, tables)
    spark.stop()
    sentences = sorted([*found.sentences, *analysed.sentences], key=lambda sentence: sentence.partition(":")[0])
    unjudged = (found.unjudged | analysed.unjudged).items()
    if sentences:
        raise DeclarationError(*sentences, *(f"{name} is not judged, as it reads {other}" for name, other in unjudged))
    print(f"{len(tables.tables) + len(tables.steps)} tables are as they declare")


if __name__ == "__main__":
    report(main)
