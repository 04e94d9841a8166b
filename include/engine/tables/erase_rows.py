"""Takes the rows of erased subjects out of a stored table: their files are written again without them, in one commit.

Like a compaction the commit changes no data: readers of appends go on, and an append-only table takes it. Rows that
stay keep to what the table demands, stay in their partitions, and are no changes for its change feed. The files that
held the rows stay until `include.erasure.cleaning` deletes them.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from include import logs
from include.delta.commit_history import ERASED
from include.delta.delta_log import CLOCK_WENT_BACK_SECONDS, DeltaLog
from include.engine.commit import read_table
from include.engine.fast_path import data_file
from include.engine.fast_path.data_file import DataFile
from include.engine.fast_path.table_layout import NotSupported
from include.engine.fast_path.transaction import StoredFile, Target, Transaction
from include.engine.rows import suppression
from include.engine.rows.micro_batch import Refusal
from include.engine.tables import maintain
from include.erasure import objects
from include.erasure.needles import Needles
from include.errors import FlowFailed
from include.lake import locations
from include.ledger.erasures import batch_key
from include.spec import Table, Via

# By path of a data file from the table's directory on, the places of rows in it.
Places = dict[str, set[int]]
# The columns of a companion that say which batch has written a row, and of a table, which file it came from.
BATCH_COLUMNS, FILE_COLUMN = ("_flow", "_generation", "_batch"), "_filename"


@dataclass(frozen=True)
class Taken:
    """What a job took out of a table. version: its newest commit; None if there was nothing."""

    rows: int = 0
    version: int | None = None


@dataclass(frozen=True)
class Found:
    """Rows in these files. joined: by file, what stands for them in tables whose subject joins this one."""

    files: frozenset[str] = frozenset()
    rows: Places = field(default_factory=dict)
    joined: dict[str, set[str]] = field(default_factory=dict)

    def within(self, files: frozenset[str]) -> "Found":
        """Returns what is in these files of it."""
        rows = {path: places for path, places in self.rows.items() if path in files}
        return Found(self.files & files, rows, {path: keys for path, keys in self.joined.items() if path in files})

    def plus(self, other: "Found") -> "Found":
        return Found(self.files | other.files, self.rows | other.rows, self.joined | other.joined)


def find(
    spark: SparkSession,
    table: Table,
    secret: bytes,
    macs: Sequence[str],
    paths: Collection[str],
    joined_columns: Sequence[str],
) -> Found:
    """Returns the rows of these files of a table whose subjects have one of these keyed hashes.

    joined_columns: those by which other tables tell whose their rows are.
    """
    if not paths:
        return Found()
    directory = locations.table_path(table.name)
    schema = read_table(spark, table.name).schema
    # Below the base path, the directories tell the values of partition columns.
    reader = spark.read.schema(schema).option("basePath", str(directory))
    rows = reader.parquet(*[str(directory / path) for path in paths])
    found = (
        rows.filter(suppression.is_one_of(table, secret, macs))
        .select(
            "_metadata.file_path",
            "_metadata.row_index",
            F.array(*[F.col(f"`{column}`").cast("string") for column in joined_columns]).alias("values"),
        )
        .collect()
    )
    # The name of a data file is in no other directory.
    path_of = {path.rpartition("/")[2]: path for path in paths}
    places: defaultdict[str, set[int]] = defaultdict(set)
    joined: defaultdict[str, set[str]] = defaultdict(set)
    for row in found:
        path = path_of[unquote(urlparse(row["file_path"]).path).rpartition("/")[2]]
        places[path].add(row["row_index"])
        known = zip(joined_columns, row["values"], strict=True)
        joined[path] |= {Via.key(table.name, column, value) for column, value in known if value is not None}
    return Found(frozenset(paths), dict(places), dict(joined))


def find_by_content(
    spark: SparkSession, name: str, needles: Needles, paths: Collection[str], numbers: Collection[str]
) -> Places:
    """Returns the rows of these files that hold a value anywhere. For a companion, whose rows may be no rows of the
    table: a quarantine holds records of which no row could be made. numbers: columns whose whole numbers count.
    """
    target = Target(spark, name)
    places: Places = {}
    for path in paths:
        parts = objects.parts(target.path / path, needles.longest, numbers)
        if any(next(needles.hits(part.data, part.is_text), None) for part in parts):
            table = pa.concat_tables(_whole(target, path))
            texts = [json.dumps(row, default=_text, ensure_ascii=False).encode() for row in table.to_pylist()]
            places[path] = {index for index, text in enumerate(texts) if next(needles.hits(text, True), None)}
    return {path: found for path, found in places.items() if found}


def live_files(spark: SparkSession, name: str) -> dict[str, StoredFile]:
    """Returns the table's files by path. Raises FlowFailed for a table that cannot be erased from."""
    return _files(_begin(spark, name))


def require_erasable(spark: SparkSession, name: str, needles: Needles) -> None:
    """Raises FlowFailed for a table that cannot be erased from."""
    values = {value for file in live_files(spark, name).values() for value in file.partition.values() if value}
    if any(next(needles.hits(value.encode(), is_text=True), None) for value in values):
        # Drivers keep the paths of removed files in memory, and write them into each checkpoint of the log.
        raise _refused(name, "its partitions are named after subjects, and its log keeps the names")


@dataclass(frozen=True)
class Rewritten:
    """A file that was written again without the rows at these places. file: None if no row is left."""

    places: frozenset[int]
    file: DataFile | None
    account: "_Account"

    def delete(self) -> None:
        if self.file:
            self.file.delete()


def prepare(spark: SparkSession, name: str, places: Places) -> dict[str, Rewritten]:
    """Writes the files again without these rows, while the table's flows still write. Nobody reads the new files before
    `take_out` commits them. Raises FlowFailed for a table that cannot be erased from.
    """
    if not places:
        return {}
    transaction = _begin(spark, name)
    return _rewritten(transaction, _files(transaction), places)


def take_out(
    spark: SparkSession,
    name: str,
    places: Places,
    prepared: Mapping[str, Rewritten],
    metadata: Mapping[str, object],
    number: int,
) -> None:
    """Commits the files without these rows. prepared: what is written already. metadata: of the window. number: of the
    job.

    Raises FlowFailed for a table that cannot be erased from.
    """
    if not (places or prepared):
        return
    transaction = _begin(spark, name)
    files = _files(transaction)
    places = {path: rows for path, rows in places.items() if path in files and rows}
    usable = {path: done for path, done in prepared.items() if done.places == frozenset(places.get(path, ()))}
    for path in prepared.keys() - usable.keys():
        prepared[path].delete()
    if not places:
        return
    try:
        new = _rewritten(transaction, files, {path: rows for path, rows in places.items() if path not in usable})
    except FlowFailed:
        for done in usable.values():
            done.delete()
        raise
    account, adds, removes = _Account(), list[dict[str, Any]](), list[dict[str, Any]]()
    for path, done in (usable | new).items():
        account.merge(done.account)
        removes.append(_removed(files[path]))
        if done.file:
            adds.append(_added(done.file, files[path]))
    stamp = {**metadata, ERASED: {"number": number, **account.stamp}}
    metrics = {
        "numRemovedFiles": len(removes),
        "numRemovedBytes": sum(remove["size"] for remove in removes),
        "numAddedFiles": len(adds),
        "numAddedBytes": sum(add["size"] for add in adds),
    }
    transaction.compact(adds, removes, json.dumps(stamp), metrics)
    logs.info(f"{account.rows:,} rows of erased subjects taken out by version {transaction.target.committed}", name)


def taken(name: str, number: int, since: float) -> Taken:
    """Returns what all tries of this job took out of a table, by its log. since: in seconds since 1970."""
    rows, version = 0, None
    for commit in DeltaLog(locations.table_path(name)).commits():
        if commit.timestamp < since - CLOCK_WENT_BACK_SECONDS:
            break
        erased = commit.metadata.get(ERASED) or {}
        if erased.get("number") == number:
            rows, version = rows + erased["rows"], version or commit.version
    return Taken(rows, version)


def _rewritten(transaction: Transaction, files: Mapping[str, StoredFile], places: Places) -> dict[str, Rewritten]:
    """Writes these files again without these rows, and deletes what it wrote if it fails."""
    written: dict[str, Rewritten] = {}
    try:
        for path, rows in places.items():
            if path not in files:
                continue
            account = _Account()
            parts = [part for part in _without(transaction, files[path], rows, account) if len(part)]
            directory = (transaction.target.path / path).parent
            file = data_file.write(parts, directory, transaction.layout) if parts else None
            written[path] = Rewritten(frozenset(rows), file, account)
    except (pa.ArrowException, OSError, NotSupported) as error:
        for done in written.values():
            done.delete()
        raise _refused(transaction.target.name, str(error)) from error
    return written


def _added(file: DataFile, old: StoredFile) -> dict[str, Any]:
    """Returns the `add` action of a file in the directory and partition of an old one."""
    directory = old.logged_path.rpartition("/")[0]
    path = f"{directory}/{file.name}" if directory else file.name
    return file.added(changes_data=False) | {"path": path, "partitionValues": old.partition}


def _removed(old: StoredFile) -> dict[str, Any]:
    removal = data_file.removal(old.logged_path, old.size, changes_data=False)
    return removal | {"partitionValues": old.partition}


@dataclass
class _Account:
    """What `verify` has to know of rows that were taken out. The fields are as in `include.ledger.erasures`."""

    rows: int = 0
    offsets: defaultdict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    batches: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)

    @property
    def stamp(self) -> dict[str, Any]:
        offsets = {partition: sorted(found) for partition, found in self.offsets.items()}
        return {"rows": self.rows, "offsets": offsets, "batches": self.batches, "files": self.files}

    def add(self, rows: pa.Table, partition: Mapping[str, str | None]) -> None:
        """partition: the values of partition columns, which no row has."""
        self.rows += len(rows)
        names = {*rows.column_names, *partition}
        for row in ({**partition, **stored} for stored in rows.to_pylist()):
            if set(BATCH_COLUMNS) <= names:
                self.batches[batch_key(*(row[column] for column in BATCH_COLUMNS))] += 1
            elif set(suppression.PLACE) <= names:
                topic, topic_partition, offset = (row[column] for column in suppression.PLACE)
                self.offsets[f"{topic}/{topic_partition}"].append(int(offset))
            elif FILE_COLUMN in names:
                self.files[str(row[FILE_COLUMN])] += 1

    def merge(self, other: "_Account") -> None:
        self.rows += other.rows
        self.batches.update(other.batches)
        self.files.update(other.files)
        for partition, found in other.offsets.items():
            self.offsets[partition] += found


def _without(transaction: Transaction, file: StoredFile, places: set[int], account: _Account) -> Iterator[pa.Table]:
    begin = 0
    for rows in maintain.rows_of_file(transaction.target.path, file.path, transaction.layout):
        here = [place - begin for place in places if begin <= place < begin + len(rows)]
        begin += len(rows)
        is_kept = np.ones(len(rows), dtype=bool)
        is_kept[here] = False
        account.add(rows.filter(pa.array(~is_kept)), file.partition)
        yield rows.filter(pa.array(is_kept))


def _whole(target: Target, path: str) -> list[pa.Table]:
    transaction = target.begin(moves_rows=True)
    if isinstance(transaction, Refusal):
        raise _refused(target.name, transaction.reason)
    return [transaction.layout.schema.empty_table(), *maintain.rows_of_file(target.path, path, transaction.layout)]


def _begin(spark: SparkSession, name: str) -> Transaction:
    transaction = Target(spark, name).begin(moves_rows=True)
    if isinstance(transaction, Refusal):
        raise _refused(name, transaction.reason)
    return transaction


def _files(transaction: Transaction) -> dict[str, StoredFile]:
    files = transaction.files()
    if isinstance(files, Refusal):
        raise _refused(transaction.target.name, files.reason)
    return {file.path: file for file in files}


def _refused(name: str, reason: str) -> FlowFailed:
    return FlowFailed(
        f"{name}: rows cannot be taken out of it, because {reason}: make it a table without that, or erase "
        f"there by hand"
    )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
