"""One batch of files: read as a plain batch, so that columns can come and go without a restart of the query.

Spark's file source says which files a batch has, in its log. Its rows are not used: a file that vanished in between
would be missing from them without a word.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from typing import Any

import pyarrow.dataset
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.fast_path.features import Refused
from include.engine.fast_path.path import FastPath
from include.engine.files import file_headers, file_records
from include.engine.files.file_headers import UNREADABLE, VANISHED, Head
from include.engine.files.schema_evolution import Columns, Found, settle
from include.engine.tables import commit, create_table
from include.engine.tables.commit import CommitMetadata
from include.readers import landing_folder, stored_rows
from include.readers.landing_folder import Landed, Taken
from include.settings import settings
from include.spec import Files, Table

CHANGED = "changed"
# A file of a table takes about as much as so many bytes of text.
BYTES_PER_FILE = 16_000_000
BYTES_PER_ROW = 100
# Of a batch that Spark need not write.
MOST_SMALL_BYTES = 1_000_000
# Nanoseconds as numbers, times without zone as UTC: what Delta and its readers take.
PARQUET = {"spark.sql.legacy.parquet.nanosAsLong": "true", "spark.sql.parquet.inferTimestampNTZ.enabled": "false"}

Settle = Callable[[SparkSession, Table, Iterable[Found]], Columns]


@dataclass(frozen=True)
class Trouble:
    """A file that is not in the table as it lies there. now: None where it lies there no more."""

    path: str
    rule: str
    reason: str
    now: Landed | None = None


def write(
    spark: SparkSession,
    table: Table,
    here: Checkpoint,
    stamp: CommitMetadata,
    may_be_replay: bool,
    fast_path: FastPath | None,
) -> int:
    """Write the batch's files into the table, and a row for each that cannot be read into its quarantine.

    fast_path: what commits a small batch. Returns about how many rows that were.
    """
    assert isinstance(table.source, Files)
    for key, value in PARQUET.items():
        spark.conf.set(key, value)
    lying = landing_folder.landed(table.source)
    last_commit = here.last_commit if may_be_replay else (stamp.generation, stamp.batch - 1)
    known = landing_folder.taken(here.path, stamp.source_to)
    batch = landing_folder.of_batch(here.path, stamp.source_from, stamp.source_to)
    heads = list(file_headers.heads(table, [file.path for file in batch]))
    good = [head for head in heads if not head.problem]
    troubles = list(_changed(table, landing_folder.changed(known, lying), last_commit))
    troubles += [Trouble(head.path, head.rule, head.problem, lying.get(head.path)) for head in heads if head.problem]
    while True:
        if troubles or may_be_replay:
            commit.quarantine(_rows(spark, table, troubles), table, stamp, may_be_replay, last_commit)
        try:
            rows = read(spark, table, good)
            size = sum(lying[head.path].bytes for head in good if head.path in lying)
            _commit(rows, size, table, stamp, fast_path)
            return size // BYTES_PER_ROW
        except (PySparkException, Py4JJavaError):
            broken = list(blamed(spark, table, good, lying))
            if not broken:
                raise
            troubles += broken
            good = [head for head in good if head.path not in {one.path for one in broken}]
            # What was just put there is replaced.
            may_be_replay = True


def _commit(rows: DataFrame, size: int, table: Table, stamp: CommitMetadata, fast_path: FastPath | None) -> None:
    """size: of the files, in bytes."""
    if fast_path and size <= MOST_SMALL_BYTES:
        try:
            fast_path.append(rows, stamp)
            return
        except Refused as reason:
            fast_path.say(reason)
        except commit.CONFLICTS as conflict:
            print(f"sluice: {stamp.flow}: batch {stamp.batch} is written again: {conflict}", file=sys.stderr)
    if fast_path:
        fast_path.forget()
    commit.commit(rows.coalesce(max(1, size // BYTES_PER_FILE)), table, stamp)


def read(spark: SparkSession, table: Table, heads: list[Head], settle: Settle = settle) -> DataFrame:
    """The records of these files as rows of the table. settle: what becomes of its new columns. Raises Broken."""
    source = table.source
    assert isinstance(source, Files)
    folder = _path(table)
    groups: dict[Any, list[Head]] = {}
    for head in heads:
        groups.setdefault(head.kind, []).append(head)
    frames: list[DataFrame] = []
    if source.format == "json" and heads:
        lines = file_records.json_lines(spark, _uris(table, heads))
        keys = file_records.json_keys(lines)
        columns = settle(spark, table, keys)
        frames = [file_records.of_json(lines, [key.name for key in keys], columns)]
    elif source.format == "parquet":
        schemas = [(group, file_records.parquet_schema(spark, *_uris(table, group[:1]))) for group in groups.values()]
        found = [Found(one.name, one.dataType, group[0].path) for group, schema in schemas for one in schema]
        columns = settle(spark, table, found)
        frames = [file_records.of_parquet(spark, _uris(table, group), schema, columns) for group, schema in schemas]
    else:
        named = [group for group in groups.values() if group[0].names]
        found = [Found(name, T.StringType(), group[0].path) for group in named for name in group[0].names]
        columns = settle(spark, table, found)
        frames = [
            file_records.of_csv(spark, _uris(table, group), group[0].names, group[0].encoding, source.header, columns)
            for group in named
        ]
    if not frames:
        return spark.createDataFrame([], "_filename STRING, _index BIGINT, _rescued_data STRING")
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    # A `+` is none of a URI's escapes, but one of a URL's.
    path = F.url_decode(F.replace(F.col("_path"), F.lit("+"), F.lit("%2B")))
    begin = F.locate(f"{folder}/", path) + len(folder) + 1
    return rows.withColumn("_filename", F.substr(path, begin)).drop("_path")


def blamed(
    spark: SparkSession, table: Table, heads: list[Head], lying: dict[str, Landed], settle: Settle = settle
) -> Iterator[Trouble]:
    """The files that cannot be read by themselves either, found by halves. Raises Unreachable."""
    error = _error_of(spark, table, heads, settle)
    if error and len(heads) > 1:
        middle = len(heads) // 2
        yield from blamed(spark, table, heads[:middle], lying, settle)
        yield from blamed(spark, table, heads[middle:], lying, settle)
        return
    # Twice, as once it may be a lost task, or the query's own end.
    if error and (error := _error_of(spark, table, heads, settle)):
        path = heads[0].path
        system, _ = landing_folder.file_system(settings().folder(table.source.path))  # type: ignore[union-attr]
        file_headers.require_bytes(system, path)
        gone = not system.get_file_info(path).is_file
        yield Trouble(path, VANISHED if gone else UNREADABLE, str(error).partition("\n")[0][:500], lying.get(path))


def _error_of(spark: SparkSession, table: Table, heads: list[Head], settle: Settle) -> Exception | None:
    """What keeps these files from being read together."""
    try:
        read(spark, table, heads, settle).write.format("noop").mode("overwrite").save()
    except (PySparkException, Py4JJavaError) as error:
        return error
    return None


def _changed(table: Table, found: list[tuple[Taken, Landed]], last_commit: tuple[int, int] | None) -> Iterator[Trouble]:
    """Those of which the quarantine does not tell yet; what an earlier try of this batch said does not count."""
    if not found:
        return
    names = [_name(table, one.path) for one, _ in found]
    stored = stored_rows.dataset(table.quarantine)
    told = {
        (row["_filename"], round(row["modification_time"].timestamp() * 1000))
        for row in stored.to_table(filter=pyarrow.dataset.field("_filename").isin(names)).to_pylist()
        if CHANGED in row["_rules"] and (row["_generation"], row["_batch"]) <= (last_commit or (0, 0))
    }
    for one, now in found:
        if (_name(table, one.path), now.modified_ms) not in told:
            then = datetime.fromtimestamp(one.found_ms / 1000, UTC).isoformat()
            yield Trouble(one.path, CHANGED, f"it was found when its date was {then}, and is not read again", now)


def _rows(spark: SparkSession, table: Table, troubles: list[Trouble]) -> DataFrame:
    rows = [
        (
            _name(table, one.path),
            one.now and one.now.bytes,
            one.now and datetime.fromtimestamp(one.now.modified_ms / 1000, UTC),
            one.reason,
            [one.rule],
        )
        for one in troubles
    ]
    return spark.createDataFrame(rows, f"{create_table.FILE_SCHEMA}, _rules ARRAY<STRING>").coalesce(1)


def _path(table: Table) -> str:
    """The folder, as its file system has it."""
    assert isinstance(table.source, Files)
    return landing_folder.file_system(settings().folder(table.source.path))[1]


def _name(table: Table, path: str) -> str:
    return path.removeprefix(f"{_path(table)}/")


def _uris(table: Table, heads: list[Head]) -> list[str]:
    """As Hadoop's `Path` takes them, which decodes nothing."""
    assert isinstance(table.source, Files)
    folder = settings().folder(table.source.path)
    url = folder if "://" in folder else f"file://{folder}"
    return [f"{url}/{_name(table, head.path)}" for head in heads]
