"""Takes the rows of erased subjects out of a stored table: their files are written again without them, in one commit.

Like a compaction the commit changes no data: readers of appends go on, and an append-only table takes it. The files
that held the rows stay until `include.erasure.cleaning` deletes them.
"""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from include import logs
from include.delta.commit_history import ERASED
from include.engine.commit import read_table
from include.engine.fast_path import data_file
from include.engine.fast_path.data_file import DataFile
from include.engine.fast_path.transaction import NotSupported, Target, Transaction
from include.engine.rows import suppression
from include.engine.rows.micro_batch import Refusal
from include.engine.tables import maintain
from include.erasure import objects
from include.erasure.needles import Needles
from include.errors import FlowFailed
from include.lake import locations
from include.ledger.erasures import batch_key
from include.spec import Table

# By path of a data file, the places of rows in it.
Places = dict[str, set[int]]
# The columns of a companion that say which batch has written a row, and of a table, which file it came from.
BATCH_COLUMNS, FILE_COLUMN = ("_flow", "_generation", "_batch"), "_filename"


@dataclass(frozen=True)
class Taken:
    """What one commit took out of a table. version: the commit; None if there was nothing."""

    rows: int = 0
    version: int | None = None


def find(spark: SparkSession, table: Table, secret: bytes, macs: Sequence[str], paths: Collection[str]) -> Places:
    """Returns the rows of these files of a table whose subjects have one of these keyed hashes."""
    if not paths:
        return {}
    directory = locations.table_path(table.name)
    schema = read_table(spark, table.name).schema
    rows = spark.read.schema(schema).parquet(*[str(directory / path) for path in paths])
    found = (
        rows.filter(suppression.is_one_of(table, secret, macs))
        .select("_metadata.file_path", "_metadata.row_index")
        .collect()
    )
    places: defaultdict[str, set[int]] = defaultdict(set)
    for row in found:
        places[unquote(urlparse(row["file_path"]).path).rpartition("/")[2]].add(row["row_index"])
    return dict(places)


def find_by_content(spark: SparkSession, name: str, needles: Needles, paths: Collection[str]) -> Places:
    """Returns the rows of these files that hold a value anywhere. For a companion, whose rows may be no rows of the
    table: a quarantine holds records of which no row could be made.
    """
    target = Target(spark, name)
    places: Places = {}
    for path in paths:
        file = Path(str(target.path / path))
        if any(next(needles.hits(part.data, part.is_text), None) for part in objects.parts(file, needles.longest)):
            table = pa.concat_tables(_whole(target, path))
            texts = [json.dumps(row, default=_text, ensure_ascii=False).encode() for row in table.to_pylist()]
            places[path] = {index for index, text in enumerate(texts) if next(needles.hits(text, True), None)}
    return {path: found for path, found in places.items() if found}


def live_files(spark: SparkSession, name: str) -> dict[str, int]:
    """Returns the sizes of the table's files in bytes, by path. Raises FlowFailed for a table that cannot be erased
    from.
    """
    transaction = _begin(spark, name)
    sizes = maintain.sizes_of(name, transaction.read_version)
    if isinstance(sizes, Refusal):
        raise _refused(name, sizes.reason)
    return sizes


def take_out(spark: SparkSession, name: str, places: Places, metadata: Mapping[str, object], number: int) -> Taken:
    """Writes the files without these rows, in one commit. metadata: of the window. number: of the job.

    Raises FlowFailed for a table that cannot be erased from.
    """
    transaction = _begin(spark, name)
    sizes = maintain.sizes_of(name, transaction.read_version)
    if isinstance(sizes, Refusal):
        raise _refused(name, sizes.reason)
    places = {path: rows for path, rows in places.items() if path in sizes and rows}
    if not places:
        return Taken()
    account, written = _Account(), list[DataFile]()
    try:
        for path, rows in places.items():
            parts = [part for part in _without(transaction, path, rows, account) if len(part)]
            if parts:
                written.append(data_file.write(parts, transaction.target.path, transaction.layout))
        stamp = {**metadata, ERASED: {"number": number, **account.stamp}}
        metrics = {
            "numRemovedFiles": len(places),
            "numRemovedBytes": sum(sizes[path] for path in places),
            "numAddedFiles": len(written),
            "numAddedBytes": sum(file.size for file in written),
        }
        removes = [data_file.removal(path, sizes[path], changes_data=False) for path in places]
        adds = [file.added(changes_data=False) for file in written]
    except (pa.ArrowException, OSError, NotSupported) as error:
        for file in written:
            file.delete()
        raise _refused(name, str(error)) from error
    transaction.compact(adds, removes, json.dumps(stamp), metrics)
    version = transaction.target.committed
    logs.info(f"{account.rows:,} rows of erased subjects taken out by version {version}", name)
    return Taken(account.rows, version)


class _Account:
    """What `verify` has to know of rows that were taken out."""

    def __init__(self) -> None:
        self.rows = 0
        self._offsets: defaultdict[str, list[int]] = defaultdict(list)
        self._batches: Counter[str] = Counter()
        self._files: Counter[str] = Counter()

    @property
    def stamp(self) -> dict[str, Any]:
        offsets = {partition: sorted(found) for partition, found in self._offsets.items()}
        return {"rows": self.rows, "offsets": offsets, "batches": self._batches, "files": self._files}

    def add(self, rows: pa.Table) -> None:
        self.rows += len(rows)
        names = set(rows.column_names)
        for row in rows.to_pylist():
            if set(BATCH_COLUMNS) <= names:
                self._batches[batch_key(*(row[column] for column in BATCH_COLUMNS))] += 1
            elif set(suppression.PLACE) <= names:
                topic, partition, offset = (row[column] for column in suppression.PLACE)
                self._offsets[f"{topic}/{partition}"].append(offset)
            elif FILE_COLUMN in names:
                self._files[str(row[FILE_COLUMN])] += 1


def _without(transaction: Transaction, path: str, places: set[int], account: _Account) -> Iterator[pa.Table]:
    begin = 0
    for rows in maintain.rows_of_file(transaction.target.path, path, transaction.layout):
        here = [place - begin for place in places if begin <= place < begin + len(rows)]
        begin += len(rows)
        is_kept = np.ones(len(rows), dtype=bool)
        is_kept[here] = False
        account.add(rows.filter(pa.array(~is_kept)))
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


def _refused(name: str, reason: str) -> FlowFailed:
    return FlowFailed(
        f"{name}: rows cannot be taken out of it, because {reason}: make it a table without that, or erase "
        f"there by hand"
    )


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
