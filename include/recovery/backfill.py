"""Previews backfills and full refreshes, with the rows that a table would lose because its source no longer holds them.

It also finds the commits that backfills made.
"""

from collections.abc import Iterator
from functools import reduce
from operator import or_

import pyarrow.compute as pc

from include.catalog import Catalog
from include.checkpoints import checkpoint_files, landing_folder
from include.control.jobs.backfills import Backfill
from include.delta import stored_table
from include.delta.delta_log import Commit, DeltaLog
from include.errors import FlowBroken, UsageError
from include.flows import resume_position
from include.flows.batches import BACKFILL
from include.kafka import broker, cluster
from include.lake import locations
from include.ledger import verify_sources
from include.maintenance import vacuum_guard
from include.project import ranges
from include.project.ranges import Slice
from include.settings import settings
from include.spec import Files, Flow, Kafka, Table

FILE = "_filename"


def lines(table: Table) -> Iterator[str]:
    """Describes for people what would be lost.

    Raises UsageError where the declaration does not permit the loss, and Unreachable.
    """
    for flow in table.flows:
        if flow.source.reads_topics:
            yield from _records(flow, flow.source_as(Kafka))
    if not table.reads_files:
        return
    source = table.single_flow.source_as(Files)
    if lost := missing_files(table, _files_in_folder(source)):
        yield f"  {_file_words(lost)} that it holds lie in {_folder(source)} no more, and those rows will be gone"


def missing_files(table: Table, existing: set[str]) -> list[str]:
    """Returns the files with rows in the table that are missing in `existing`.

    Raises UsageError where the declaration does not permit their loss.
    """
    missing = sorted(stored_file_names(table.name) - existing)
    if missing and table.reset_allowed is None:
        raise UsageError(
            f"{table.name} cannot be refreshed: {_file_words(missing)} that it holds cannot be read in "
            f"{_source_name(table.single_flow)} any more, and those rows would be gone; new data still flows: "
            f"restore what is missing, or declare reset_allowed=True to do without it"
        )
    return missing


def stored_file_names(table: str) -> set[str]:
    """Returns the files that have rows in a stored table."""
    stored = stored_table.dataset(table)
    file_names: set[str] = set()
    for rows in stored.to_batches(columns=[FILE]):
        file_names.update(rows.column(0).unique().to_pylist())
    return file_names


def _files_in_folder(source: Files) -> set[str]:
    path = landing_folder.file_system(settings().folder(source.path))[1]
    return {file.path.removeprefix(f"{path}/") for file in landing_folder.files_in_folder(source).values()}


def _folder(source: Files) -> str:
    return settings().folder(source.path)


def _file_words(names: list[str]) -> str:
    return f"file '{names[0]}'" if len(names) == 1 else f"{len(names):,} files ('{names[0]}' the first)"


def _records(flow: Flow, source: Kafka) -> Iterator[str]:
    """Describes the lost Kafka records. A topic that the flow has never read has none in the table."""
    if not (metadata := resume_position.last_commit_metadata(flow)):
        return
    if not set(verify_sources.OFFSET_COLUMNS) <= verify_sources.columns(flow.name):
        yield f"  what Kafka no longer holds of {source} will be gone: the table does not keep how much that is"
        return
    topics = broker.Topics(cluster.of(source))
    read = metadata["source"]["topics"]
    current_ids = topics.ids(read)
    stored = stored_table.dataset(flow.name)
    for topic, topic_id in read.items():
        is_lost = pc.field("topic") == topic
        if current_ids.get(topic) == topic_id:
            begins = [
                (pc.field("partition") == partition) & (pc.field("offset") < begin)
                for partition, (begin, _) in topics.offsets(topic).items()
            ]
            is_lost &= reduce(or_, begins)
        lost_rows = stored.count_rows(filter=is_lost)
        compacts = current_ids.get(topic) == topic_id and "compact" in topics.configuration(topic)["cleanup.policy"]
        suffix = ", and those that compaction took" if compacts else ""
        yield f"  {lost_rows:,} of its records are in topic '{topic}' no more, and will be gone{suffix}"


def preview(table: Table, tables: Catalog, range_: Slice, alone: bool = False) -> Iterator[str]:
    """Yields what a backfill of the range would do to each table. alone: without the tables below.

    Raises UsageError where it would discard rows without permission, and Unreachable.
    """
    pending = {table.name: (table, range_)}
    while pending:
        # Graph order: a table below two others follows both.
        name = next(table_name for table_name in tables.tables if table_name in pending)
        target, part = pending.pop(name)
        if name in tables.warnings:
            yield tables.warnings[name]
        sources = [_source_name(flow) for flow in target.flows]
        yield f"{name} {part}: {rows(target, part):,} rows are recomputed from {', '.join(dict.fromkeys(sources))}"
        if part == Slice():
            yield from lines(target)
        for reader in _stored_readers(tables, name):
            follows = range_for_reader(tables.tables[reader.name], target, part, alone)
            if isinstance(follows, Slice):
                yield f"  {reader.flow} reads to the end, stops for a moment, and {reader.name} follows {follows}"
                pending.setdefault(reader.name, (tables.tables[reader.name], follows))
            else:
                yield f"  {reader.flow} reads to the end and stops for a moment; {reader.name} is STALE then: {follows}"


def range_for_reader(reader: Table, table: Table, replaced: Slice, alone: bool) -> Slice | str:
    """Returns what a backfill of `table` means for a reader, as `ranges.downstream_slice`; alone: nothing follows."""
    if alone:
        return f"{table.name} was recomputed alone: backfill {reader.name}"
    return ranges.downstream_slice(reader, table, replaced)


def _source_name(flow: Flow) -> str:
    if flow.source.reads_files:
        return _folder(flow.source_as(Files))
    return flow.source.table or str(flow.source)


def rows(table: Table, range_: Slice) -> int:
    """Returns how many rows the range holds now."""
    stored = stored_table.dataset(table.name)
    if range_.begin is None or range_.end is None:
        return int(stored.count_rows())
    time = pc.field(table.sliced_by)
    begin, end = (bound.date() if ranges.is_date(table) else bound for bound in (range_.begin, range_.end))
    return int(stored.count_rows(filter=(time >= begin) & (time < end)))


def _stored_readers(tables: Catalog, table: str) -> list[Flow]:
    flows = [tables.flows[name] for name in vacuum_guard.readers(tables, table)]
    return [flow for flow in flows if locations.is_stored(flow.name) and not flow.source.changes]


def txn_app_id(backfill: Backfill) -> str:
    """Returns the txnAppId under which the backfill's range is replaced once."""
    return f"backfill/{backfill.key}"


def replacing_commit(table: str, backfill: Backfill) -> Commit | None:
    """Returns the commit that replaced the range, also if its job died later; None where nothing was replaced.

    Raises FlowBroken if the range was replaced and the log no longer holds the commit.
    """
    if not locations.is_stored(table):
        return None
    if stored_table.open_table(table).transaction_version(txn_app_id(backfill)) is None:
        return None
    log = DeltaLog(locations.table_path(table))
    for commit in log.commits():
        if (commit.metadata.get(BACKFILL) or {}).get("key") == backfill.key:
            return commit
    raise FlowBroken(
        f"{table}: its log no longer holds the commit by which backfill {backfill.number} replaced its range, so "
        f"nobody can tell what is left to do: restore {log.directory} from its backup"
    )


def readers(tables: Catalog, table: str) -> list[Flow]:
    """Returns the started flows that read the table's appends.

    Flows that read its change feed receive a backfill's changes like any other change.
    """
    return [
        flow
        for flow in tables.flows.values()
        if flow.source.table == table and not flow.source.changes
        if checkpoint_files.position_of(flow.flow)
    ]
