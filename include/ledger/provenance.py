"""Traces a table version back to its batch and to what that batch read, up to Kafka offsets and files."""

from dataclasses import dataclass, field
from typing import Any

from include.catalog import Catalog
from include.checkpoints import checkpoint_files, landing_folder, offset_ranges
from include.checkpoints.offset_ranges import OffsetRange
from include.delta.delta_log import DeltaLog
from include.errors import FlowBroken, UsageError
from include.flows.batches import BatchHistory, BatchRecord, OtherCommit
from include.ledger.batch_files import AppendedFiles, SourceFile
from include.settings import settings
from include.spec import Delta, Files, Table


@dataclass(frozen=True)
class Origin:
    """One table on the way from a version back to its sources.

    entries: the batches of this table. reads: the files they read, where the source is a Delta table.
    ranges: the Kafka offsets they read. files: the names of the files they read.
    above: the origin of the source versions that they read.
    note: why nothing more is known.
    """

    table: str
    entries: list[BatchRecord]
    reads: list[SourceFile] = field(default_factory=list)
    ranges: list[OffsetRange] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    above: "Origin | None" = None
    note: str = ""


def of_version(tables: Catalog, table: Table, version: int) -> Origin:
    """Returns the origin of what this version's commit added.

    Raises UsageError where the version is not in the log, or is not a batch.
    """
    history = BatchHistory(table)
    if version not in history.log.versions:
        listed_versions = f"{history.log.versions[0]} to {history.log.newest}"
        raise UsageError(
            f"--version is {version}, and the log of {table.name} holds {listed_versions}: name one of these"
        )
    entry = next(entry for entry in history.entries() if entry.version == version)
    if isinstance(entry, OtherCommit) and entry.note:
        return Origin(table.name, [], note=f"version {version} of {table.name} is a {entry.kind}: {entry.note}")
    if isinstance(entry, OtherCommit):
        raise UsageError(f"version {version} of {table.name} is a {entry.operation} ({entry.kind}) and read no source")
    return _origin(tables, table, [history.with_checkpoint_details(entry)])


def _origin(tables: Catalog, table: Table, entries: list[BatchRecord]) -> Origin:
    if not entries:
        return Origin(table.name, [], note="no batch of it is told by its log any more")
    flow = next((table_flow for table_flow in table.flows if table_flow.flow == entries[-1].flow), None)
    if flow is None:
        return Origin(table.name, entries, note=f"{entries[-1].flow} is declared no more")
    if isinstance(flow.source, Files):
        return _of_files(table, entries)
    if not isinstance(flow.source, Delta):
        ranges = [
            offset_range
            for entry in entries
            for offset_range in offset_ranges.kafka_ranges(entry.source_from, entry.source_to)
        ]
        return Origin(table.name, entries, ranges=offset_ranges.merge_adjacent(ranges))
    return _of_delta(tables, table, entries, flow.source)


def _of_files(table: Table, entries: list[BatchRecord]) -> Origin:
    names: list[str] = []
    try:
        for entry in entries:
            checkpoint_path = settings().checkpoints(entry.flow) / str(entry.generation)
            names += [
                file.path for file in landing_folder.files_of_batch(checkpoint_path, entry.source_from, entry.source_to)
            ]
    except FlowBroken as error:
        return Origin(table.name, entries, files=names, note=str(error))
    return Origin(table.name, entries, files=names)


def _of_delta(tables: Catalog, table: Table, entries: list[BatchRecord], source: Delta) -> Origin:
    source_table = tables.table(source.table)
    log = DeltaLog(settings().table_path(source.table))
    reads: list[SourceFile] = []
    note = ""
    try:
        reads = [read for entry in entries for read in AppendedFiles(log, source).of(entry)]
    except FlowBroken as error:
        note = str(error)
    first, last = _versions(entries)
    # A snapshot's files hold rows of every version up to it.
    is_whole = any(read.is_of_snapshot for read in reads)
    versions_read = None if is_whole or note else {read.version for read in reads}
    source_history = BatchHistory(source_table)
    source_batches = [
        source_history.with_checkpoint_details(batch)
        for batch in source_history.batches()
        if batch.version is not None
        and (batch.version in versions_read if versions_read is not None else first <= batch.version <= last)
    ]
    return Origin(table.name, entries, reads, above=_origin(tables, source_table, source_batches[::-1]), note=note)


def _versions(entries: list[BatchRecord]) -> tuple[int, int]:
    """Returns the first and the last version of the source that the batches cover."""
    first_versions = [0 if entry.source_from is None else first_version(entry.source_from) for entry in entries]
    return min(first_versions), max(checkpoint_files.read_version(entry.source_to) for entry in entries)


def first_version(begin: Any) -> int:
    """Returns the first version that is read after a Delta offset; 0 for an offset within the initial snapshot."""
    return 0 if begin.get("isStartingVersion") else offset_ranges.delta_position(begin)[0]
