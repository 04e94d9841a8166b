"""Traces a table version back to what its batch read, and a Kafka record or a landed file to where it ended."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc

from include.catalog import Catalog
from include.checkpoints import checkpoint_files, landing_folder, offset_ranges
from include.checkpoints.offset_ranges import OffsetRange
from include.delta import stored_table
from include.errors import Unreachable, UsageError
from include.flows import sources
from include.flows.batch_files import SourceFile
from include.flows.batches import PLANNED, STATES_WITH_ROWS, BatchHistory, BatchRecord, OtherCommit
from include.flows.source import ReadData
from include.lake import locations
from include.ledger.verify_sources import columns
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
        return Origin(table.name, [], note="its log holds no batch of it any more")
    flow = next((table_flow for table_flow in table.flows if table_flow.flow == entries[-1].flow), None)
    if flow is None:
        return Origin(table.name, entries, note=f"{entries[-1].flow} is declared no more")
    read = sources.of(flow).read_by(entries)
    above = _above(tables, flow.source_as(Delta), read, entries) if flow.source.reads_table else None
    return Origin(table.name, entries, read.appended, read.ranges, read.files, above, read.note)


def _above(tables: Catalog, source: Delta, read: ReadData, entries: list[BatchRecord]) -> Origin:
    """Returns the origin of the source versions that the batches read."""
    source_table = tables.table(source.table)
    first, last = _versions(entries)
    # A snapshot's files hold rows of every version up to it.
    is_whole = any(file.is_of_snapshot for file in read.appended)
    versions_read = None if is_whole or read.note else {file.version for file in read.appended}
    source_history = BatchHistory(source_table)
    source_batches = [
        source_history.with_checkpoint_details(batch)
        for batch in source_history.batches()
        if batch.version is not None
        and (batch.version in versions_read if versions_read is not None else first <= batch.version <= last)
    ]
    return _origin(tables, source_table, source_batches[::-1])


def _versions(entries: list[BatchRecord]) -> tuple[int, int]:
    """Returns the first and the last version of the source that the batches cover."""
    first_versions = [0 if entry.source_from is None else first_version(entry.source_from) for entry in entries]
    return min(first_versions), max(checkpoint_files.read_version(entry.source_to) for entry in entries)


def first_version(begin: Any) -> int:
    """Returns the first version that is read after a Delta offset; 0 for an offset within the initial snapshot."""
    return 0 if begin.get("isStartingVersion") else offset_ranges.delta_position(begin)[0]


FILE = "_filename"


@dataclass(frozen=True)
class TraceStep:
    """What became of a record or file in one table.

    sentence: for people. versions: those whose batches may hold it.
    rows: how many rows of the table come from it, None where the table does not keep where its rows come from.
    rules: the rules that its quarantined rows broke. below: the same for the tables that read this one.
    """

    table: str
    sentence: str
    versions: tuple[int, ...] = ()
    rows: int | None = None
    rules: tuple[str, ...] = ()
    below: list["TraceStep"] = field(default_factory=list)


def of_record(tables: Catalog, topic: str, partition: int, offset: int) -> list[TraceStep]:
    """Follows a Kafka record through every flow that reads its topic.

    Raises UsageError where no flow is declared for the topic, and Unreachable where none has read it yet.
    """
    column_values = {"topic": topic, "partition": partition, "offset": offset}
    stops = []
    for table in tables.tables.values():
        flows = [flow.flow for flow in table.flows if flow.source.reads_topics]
        if not flows or not locations.is_stored(table.name):
            continue
        detailed = _batches_with_offsets(table, flows)
        if any(topic in (batch.source_to or {}) for batch in detailed):
            matching = [batch for batch in detailed if _contains_offset(batch, topic, partition, offset)]
            stops.append(
                _trace_in_table(tables, table, matching, column_values, f"offset {offset} of {topic}/{partition}")
            )
    declared = [flow.flow for flow in tables.flows.values() if topic in flow.source.names]
    if not stops and declared:
        raise Unreachable(f"--topic is '{topic}', and no batch has read it yet: start the flow {declared[0]} first")
    if not stops:
        raise UsageError(f"--topic is '{topic}', and no batch of a stored table has read it: name another topic")
    return stops


def of_file(tables: Catalog, table: Table, name: str) -> TraceStep:
    """Follows a landed file through its table. Raises UsageError where the table reads no files, and FlowBroken."""
    if not table.reads_files:
        raise UsageError(f"{table.name} is not fed by files: leave out --file, or name a table that is")
    flow = table.single_flow
    path = f"{landing_folder.file_system(settings().folder(flow.source_as(Files).path))[1]}/{name}"
    matching = []
    for batch in _batches_with_offsets(table, [flow.flow]):
        checkpoint_path = locations.checkpoints(batch.flow) / str(batch.generation)
        if any(
            file.path == path
            for file in landing_folder.files_of_batch(checkpoint_path, batch.source_from, batch.source_to)
        ):
            matching.append(batch)
    return _trace_in_table(tables, table, matching, {FILE: name}, f"file '{name}'")


def _batches_with_offsets(table: Table, flows: list[str]) -> list[BatchRecord]:
    """Returns all batches of these flows, with their offsets."""
    history = BatchHistory(table)
    batches = (batch for batch in history.batches() if batch.flow in flows)
    return [batch if batch.version is not None else history.with_checkpoint_details(batch) for batch in batches]


def _contains_offset(batch: BatchRecord, topic: str, partition: int, offset: int) -> bool:
    ranges = offset_ranges.kafka_ranges(batch.source_from, batch.source_to)
    return any(
        (offset_range.topic, offset_range.partition) == (topic, partition)
        and offset_range.first <= offset < offset_range.after
        for offset_range in ranges
    )


def _trace_in_table(
    tables: Catalog, table: Table, entries: list[BatchRecord], column_values: dict[str, Any], what: str
) -> TraceStep:
    """Returns what became of it in one table. entries: the batches that may have read it."""
    written = [batch for batch in entries if batch.state in STATES_WITH_ROWS]
    versions = tuple(sorted(batch.version for batch in written if batch.version is not None))
    if not written:
        planned = next((batch for batch in entries if batch.state == PLANNED), None)
        state = f"is in batch {planned.name}, which is planned and not written" if planned else "no batch has read yet"
        lost = [f"batch {batch.name} had it: {batch.state}" for batch in entries if batch is not planned]
        return TraceStep(table.name, f"{table.name}: {what} {'; '.join(lost) or state}")
    rows = _count_rows(table.name, column_values)
    broken = _broken_rules(table, column_values)
    parts = [f"{table.name}: {_batch_words(written)}"]
    if rows is None:
        parts.append("its rows do not say where they are from: one of these versions holds it, if any does")
    elif rows:
        parts.append(f"{rows:,} rows of the table are of it")
    if broken:
        parts.append(f"it is in {table.quarantine}, as it broke {', '.join(map(repr, broken))}")
    elif rows == 0 and table.merges_changes:
        parts.append("no row shows it: a later change of its key counts, or it deletes its key")
    elif rows == 0:
        parts.append(_why_no_rows(written))
    below = [
        step
        for reader in tables.tables.values()
        for step in _trace_below(tables, table, reader, versions, column_values)
    ]
    return TraceStep(table.name, "; ".join(parts), versions, rows, broken, below)


def _trace_below(
    tables: Catalog, table: Table, reader: Table, versions: tuple[int, ...], column_values: dict[str, Any]
) -> Iterator[TraceStep]:
    flows = [flow.flow for flow in reader.flows if flow.source.table == table.name]
    if not flows or not locations.is_stored(reader.name):
        return
    matching = [
        batch
        for batch in _batches_with_offsets(reader, flows)
        if any(_reads_version(batch, version) for version in versions)
    ]
    yield _trace_in_table(tables, reader, matching, column_values, f"what versions {versions} of {table.name} brought")


def _reads_version(batch: BatchRecord, version: int) -> bool:
    """Returns whether a batch read any part of a version of its source."""
    if batch.source_to is None:
        return False
    first = 0 if batch.source_from is None else first_version(batch.source_from)
    return first <= version <= checkpoint_files.read_version(batch.source_to)


def _count_rows(table: str, column_values: dict[str, Any]) -> int | None:
    """Returns how many rows of the table match, or None where the table lacks one of the columns."""
    stored_columns = columns(table)
    # A table that is fed by one topic often leaves out the topic column.
    filter_values = {name: value for name, value in column_values.items() if name in stored_columns}
    if not set(filter_values) >= set(column_values) - {"topic"}:
        return None
    return int(stored_table.dataset(table).count_rows(filter=_filter(filter_values)))


def _broken_rules(table: Table, column_values: dict[str, Any]) -> tuple[str, ...]:
    if not locations.is_stored(table.quarantine):
        return ()
    stored_columns = columns(table.quarantine)
    filter_values = {name: value for name, value in column_values.items() if name in stored_columns}
    if not set(filter_values) >= set(column_values) - {"topic"}:
        return ()
    rows = stored_table.dataset(table.quarantine).to_table(columns=["_rules"], filter=_filter(filter_values))
    return tuple(dict.fromkeys(rule for names in rows["_rules"].to_pylist() for rule in names or []))


def _filter(filter_values: dict[str, Any]) -> Any:
    condition = None
    for name, value in filter_values.items():
        comparison = pc.field(name) == value
        condition = comparison if condition is None else condition & comparison
    return condition


def _batch_words(written: list[BatchRecord]) -> str:
    # Topics of several clusters may have the same name.
    listed = [
        f"batch {batch.name}{offset_ranges.cluster_words(batch.source)}, version {batch.version}{_lookup_words(batch)}"
        for batch in written[:3]
    ]
    return "; ".join(listed) + (f" and {len(written) - 3:,} more" if len(written) > 3 else "")


def _lookup_words(batch: BatchRecord) -> str:
    looked_up = [f"{table} at version {version}" for table, version in (batch.lookups or {}).items()]
    return f", with {' and '.join(looked_up)}" if looked_up else ""


def _why_no_rows(written: list[BatchRecord]) -> str:
    """Explains why neither the table nor the quarantine has a row of it."""
    row_counts = [batch.tally for batch in written if batch.tally]
    if not row_counts:
        return "no row is of it: the offset holds no record (compaction, transactions), or it is an empty file"
    dropped = sum(counts["dropped"] for counts in row_counts)
    repeated = sum(batch.tally["kept"] - batch.rows for batch in written if batch.tally and batch.rows is not None)
    rules = ", ".join(sorted({repr(name) for counts in row_counts for name, count in counts["broke"].items() if count}))
    return (
        f"no row is of it: these batches dropped {dropped:,} rows{f' (broken: {rules})' if rules else ''} and left out "
        f"{repeated:,} that repeat another"
    )
