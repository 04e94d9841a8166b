"""Writes one batch of files. It reads them as a static DataFrame, so that columns may change without a restart.

The log of Spark's file source lists the batch's files. Its rows are not used, because they would silently omit a file
that was deleted meanwhile.
"""

import time
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial, reduce

import pyarrow
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include import logs
from include.checkpoints import landing_folder
from include.checkpoints.landing_folder import FolderFile, PlannedFile
from include.engine import commit, failure
from include.engine.batch.writer import add_to_companion
from include.engine.commit import CommitMetadata, read_table
from include.engine.fast_path.path import FastPath
from include.engine.files import file_headers
from include.engine.files.formats import registry
from include.engine.files.formats.columns import Columns, FileColumn
from include.engine.files.formats.format import PATH, UNREADABLE, VANISHED, FileGroup, FileHeader
from include.engine.files.schema_evolution import add_columns
from include.engine.rows import storable
from include.engine.rows.micro_batch import MicroBatch, Refusal, Written
from include.engine.tables import create_table
from include.errors import Unreachable
from include.flows import files_source
from include.lake import locations
from include.settings import settings
from include.spec import Files, Flow

CHANGED, SKIPPED, NOT_STORABLE = "changed", "skipped", "not storable"
INVISIBLE = {
    landing_folder.MISNAMED: "its name is no UTF-8: rename it, and it is read",
    landing_folder.DANGLING: "it is a link to a file that is not there: fix the link, and it is read",
}
# Errors that the data of a file may cause, here, in Spark or in Arrow.
SPARK_ERRORS = (PySparkException, Py4JJavaError)
PYTHON_ERRORS = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
DATA_ERRORS = (*SPARK_ERRORS, pyarrow.ArrowException, *PYTHON_ERRORS)
# How long a batch waits for the bytes of a file, while other files can be read.
PATIENCE_SECONDS = 600
# Files that are read to tell whether the folder or a file fails.
MOST_PROBES = 3
# Bytes of text that fill one data file of the table.
BYTES_PER_FILE = 16_000_000
BYTES_PER_ROW = 100
# Largest batch that the fast path may write.
MOST_SMALL_BYTES = 1_000_000
# Reads nanoseconds as LONG and timestamps without zone as UTC, which Delta and its readers support. Times of the day,
# which they do not, are rescued.
PARQUET = {
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.timeType.enabled": "true",
}

ResolveColumns = Callable[[SparkSession, Flow, Iterable[FileColumn]], Columns]


@dataclass(frozen=True)
class BadFile:
    """A file that the table does not hold in its present form. present: the present file; None if it was deleted.

    outage: why its bytes cannot be read now, if so.
    """

    path: str
    rule: str
    reason: str
    present: FolderFile | None = None
    outage: Unreachable | None = None


def write(batch: MicroBatch, fast_path: FastPath | None) -> Written:
    """Writes the batch's files into the table, and a row for each unreadable one into its quarantine.

    fast_path: commits small batches, if not None. Returns the approximate number of rows. Raises Unreachable for a file
    whose bytes cannot be read, until its batch has waited for long and other files can be read.
    """
    spark, table, metadata, folder = batch.spark, batch.table, batch.metadata, batch.checkpoint.path
    for key, value in PARQUET.items():
        spark.conf.set(key, value)
    in_folder = list(landing_folder.matching_files(table.source_as(Files)))
    present = {file.path: file for file in in_folder if not file.problem}
    read_before = landing_folder.planned_files(folder, metadata.source_to)
    files = landing_folder.files_of_batch(folder, metadata.source_from, metadata.source_to)
    heads = list(file_headers.read_headers(table, [file.path for file in files]))
    readable = [head for head in heads if not head.problem]
    unread = [
        BadFile(head.path, head.rule, head.problem, present.get(head.path), head.outage)
        for head in heads
        if head.problem
    ]
    planned_at = (folder / "offsets" / str(metadata.batch)).stat().st_mtime
    _require_settled(table, unread, readable, present, planned_at)
    found = [*_changed_files(landing_folder.changed(read_before, present)), *_invisible_files(in_folder)]
    bad_files = [*_unnamed(table, found, batch.last_commit), *unread]
    size = 0
    while True:
        if bad_files or batch.may_be_replay:
            add_to_companion(_quarantine_rows(spark, table, bad_files), table.quarantine, batch)
        try:
            rows = storable.with_folders(read(spark, table, readable), table)
            size = sum(present[head.path].bytes for head in readable if head.path in present)
            _commit(rows, size, table, metadata, fast_path)
            return Written(size // BYTES_PER_ROW, batch.times.newest)
        except DATA_ERRORS:
            if commit.is_written(metadata):
                return Written(size // BYTES_PER_ROW, batch.times.newest)
            unread = list(unreadable_files(spark, table, readable, present))
            if not unread or not _is_healthy(spark):
                raise
            readable = [head for head in readable if head.path not in {bad_file.path for bad_file in unread}]
            _require_settled(table, unread, readable, present, planned_at)
            bad_files += unread
            # Replaces what this try has just written.
            batch = replace(batch, may_be_replay=True)


def _require_settled(
    table: Flow,
    unread: list[BadFile],
    readable: list[FileHeader],
    present: dict[str, FolderFile],
    planned_at: float,
) -> None:
    """Raises Unreachable if a later try may read the bytes of an unread file.

    It may not if the batch has waited for long although other files can be read.
    """
    outage = next((file.outage for file in unread if file.outage), None)
    if outage is None:
        return
    if time.time() - planned_at > PATIENCE_SECONDS:
        system, _ = landing_folder.file_system(settings().folder(table.source_as(Files).path))
        others = [path for path in present if path not in {file.path for file in unread}][:MOST_PROBES]
        if readable or any(file_headers.outage(system, path) is None for path in others):
            return
    raise outage


def _is_healthy(spark: SparkSession) -> bool:
    """Whether Spark can run a job that reads no file: a full disk or a stopped query is no fault of a file."""
    try:
        spark.range(100).repartition(2).write.format("noop").mode("overwrite").save()
        return True
    except (PySparkException, Py4JError):
        return False


def left_out(batch: MicroBatch, who: str) -> DataFrame:
    """Returns rows of the quarantine for the files of a batch that is left out."""
    table, metadata = batch.table, batch.metadata
    present = landing_folder.files_in_folder(table.source_as(Files))
    files = landing_folder.files_of_batch(batch.checkpoint.path, metadata.source_from, metadata.source_to)
    reason = f"its batch was left out, as {who} has approved"
    bad_files = [BadFile(file.path, SKIPPED, reason, present.get(file.path)) for file in files]
    return _quarantine_rows(batch.spark, table, bad_files)


def _commit(rows: DataFrame, size: int, table: Flow, metadata: CommitMetadata, fast_path: FastPath | None) -> None:
    """Commits the rows. size: of the files, in bytes."""
    if fast_path and size <= MOST_SMALL_BYTES:
        try:
            refusal = fast_path.append(rows, metadata)
            if refusal is None:
                return
            fast_path.say(refusal)
        except commit.CONFLICTS as conflict:
            logs.warning(f"it conflicted and is retried: {conflict}", metadata.flow, metadata.batch)
        except SPARK_ERRORS:
            raise
        except DATA_ERRORS as error:
            # Spark may write what Python cannot represent, and skips a batch that is committed.
            fast_path.say(Refusal(failure.reason(error)))
    if fast_path:
        fast_path.forget()
    commit.commit(rows.coalesce(max(1, size // BYTES_PER_FILE)), table, metadata)


def read(spark: SparkSession, table: Flow, heads: list[FileHeader], resolve: ResolveColumns = add_columns) -> DataFrame:
    """Returns the records of these files, with the table's columns. resolve: decides about new columns. Raises
    Broken.
    """
    frames, folder = _frames(spark, table, heads, resolve), _folder_path(table)
    if not frames:
        return spark.createDataFrame([], "_filename STRING, _index BIGINT, _rescued_data STRING")
    rows = reduce(lambda frame, other: frame.unionByName(other, allowMissingColumns=True), frames)
    # `url_decode` turns `+` into a space, which URIs do not.
    path = F.url_decode(F.replace(F.col(PATH), F.lit("+"), F.lit("%2B")))
    begin = F.locate(f"{folder}/", path) + len(folder) + 1
    return rows.withColumn("_filename", F.substr(path, begin)).drop(PATH)


def _frames(spark: SparkSession, table: Flow, heads: list[FileHeader], resolve: ResolveColumns) -> list[DataFrame]:
    """Returns the records, in a frame for each kind of files."""
    source = table.source_as(Files)
    kinds: dict[Hashable, list[FileHeader]] = {}
    for head in heads:
        kinds.setdefault(head.kind, []).append(head)
    groups = [FileGroup(same_kind, _uris(table, same_kind)) for same_kind in kinds.values()]
    return registry.of(source).rows(spark, source, groups, partial(resolve, spark, table)) if groups else []


def unreadable_files(
    spark: SparkSession,
    table: Flow,
    heads: list[FileHeader],
    present: dict[str, FolderFile],
    resolve: ResolveColumns = add_columns,
) -> Iterator[BadFile]:
    """Yields the files that fail when read alone, or have a row that cannot be stored, found by bisection. Raises
    Unreachable for an outage of a store.
    """
    error = _error_of(spark, table, heads, resolve)
    if error and len(heads) > 1:
        middle = len(heads) // 2
        yield from unreadable_files(spark, table, heads[:middle], present, resolve)
        yield from unreadable_files(spark, table, heads[middle:], present, resolve)
        return
    # Tried twice, because one failure may be a lost task, or the end of the query.
    if error and (error := _error_of(spark, table, heads, resolve)):
        path = heads[0].path
        system, _ = landing_folder.file_system(settings().folder(table.source_as(Files).path))
        rule = UNREADABLE if system.get_file_info(path).is_file else VANISHED
        if _error_of(spark, table, heads, resolve, is_guarded=False) is None:
            rule = NOT_STORABLE
        yield BadFile(path, rule, failure.innermost_reason(error), present.get(path), file_headers.outage(system, path))


def _error_of(
    spark: SparkSession, table: Flow, heads: list[FileHeader], resolve: ResolveColumns, is_guarded: bool = True
) -> Exception | None:
    """Returns the error of reading these files together, if any. Raises Unreachable if it is one of their store.

    is_guarded: a row that cannot be stored is an error, too.
    """
    try:
        rows = read(spark, table, heads, resolve)
        if is_guarded and locations.is_stored(table.name):
            # A column that these files lack is NULL.
            nothing = read_table(spark, table.name).limit(0)
            rows = storable.guarded(nothing.unionByName(rows, allowMissingColumns=True), storable.all_rules_of(table))
        rows.write.format("noop").mode("overwrite").save()
    except DATA_ERRORS as error:
        failure.raise_outage(error)
        return error
    return None


def _changed_files(changes: list[tuple[PlannedFile, FolderFile]]) -> Iterator[BadFile]:
    """Yields files that changed after they were read."""
    for old, new in changes:
        found_at = landing_folder.date(old.found_ms)
        date = found_at.isoformat() if found_at else "beyond the years 1 to 9999"
        yield BadFile(old.path, CHANGED, f"it was found when its date was {date}, and is not read again", new)


def _invisible_files(files: list[FolderFile]) -> Iterator[BadFile]:
    """Yields files that Spark passes over."""
    for file in files:
        if file.problem:
            yield BadFile(file.path, file.problem, INVISIBLE[file.problem], file)


def _unnamed(table: Flow, bad_files: list[BadFile], last_commit: tuple[int, int] | None) -> list[BadFile]:
    """Returns the present files that the quarantine does not list yet. Rows of an earlier try of this batch do not
    count.
    """
    files = [bad_file.present for bad_file in bad_files if bad_file.present]
    named = files_source.named(table, files, last_commit or (0, 0))
    return [
        bad_file
        for bad_file, file in zip(bad_files, files, strict=True)
        if (files_source.relative_name(table, bad_file.path), bad_file.rule, file.date) not in named
    ]


def _quarantine_rows(spark: SparkSession, table: Flow, bad_files: list[BadFile]) -> DataFrame:
    rows = [
        (
            files_source.relative_name(table, bad_file.path),
            bad_file.present and bad_file.present.bytes,
            bad_file.present and bad_file.present.date,
            bad_file.reason,
            [bad_file.rule],
        )
        for bad_file in bad_files
    ]
    return spark.createDataFrame(rows, f"{create_table.FILE_SCHEMA}, _rules ARRAY<STRING>").coalesce(1)


def _folder_path(table: Flow) -> str:
    """Returns the folder as a path of its file system."""
    return landing_folder.file_system(settings().folder(table.source_as(Files).path))[1]


def _uris(table: Flow, heads: list[FileHeader]) -> list[str]:
    """Returns the files as Hadoop's `Path` expects them, which decodes nothing."""
    folder = settings().folder(table.source_as(Files).path)
    url = folder if "://" in folder else f"file://{folder}"
    return [f"{url}/{files_source.relative_name(table, head.path)}" for head in heads]
