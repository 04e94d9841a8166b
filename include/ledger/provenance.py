"""What is in a version of a table: its batch, and what that read, up to Kafka and the files."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from include.catalog import Catalog
from include.errors import Broken, UsageError
from include.ledger.batch_files import Appends, Read
from include.readers import checkpoint, landing_folder, offset_ranges
from include.readers.batches import BatchHistory, BatchRecord, Other
from include.readers.delta_log import Log
from include.readers.offset_ranges import Range
from include.settings import settings
from include.spec import Delta, Files, Table


@dataclass(frozen=True)
class Origin:
    """One table on the way. entries: its batches that count. reads: of a Delta source, which files they read.

    ranges, files: what they read of Kafka, and the names of files. above: what the versions that they read are of.
    note: why no more can be told.
    """

    table: str
    entries: list[BatchRecord]
    reads: list[Read] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    above: "Origin | None" = None
    note: str = ""


def of_version(tables: Catalog, table: Table, version: int) -> Origin:
    """What the commit of this version brought. Raises UsageError where it is not in the log or is no batch's."""
    account = BatchHistory(table)
    if version not in account.log.versions:
        held = f"{account.log.versions[0]} to {account.log.newest}"
        raise UsageError(f"--version is {version}, and the log of {table.name} holds {held}: name one of these")
    found = next(one for one in account.entries() if one.version == version)
    if isinstance(found, Other) and found.note:
        return Origin(table.name, [], note=f"version {version} of {table.name} is a {found.kind}: {found.note}")
    if isinstance(found, Other):
        raise UsageError(f"version {version} of {table.name} is a {found.operation} ({found.kind}) and read no source")
    return _origin(tables, table, [account.detailed(found)])


def _origin(tables: Catalog, table: Table, entries: list[BatchRecord]) -> Origin:
    if not entries:
        return Origin(table.name, [], note="no batch of it is told by its log any more")
    flow = next((one for one in table.flows if one.flow == entries[-1].flow), None)
    if flow is None:
        return Origin(table.name, entries, note=f"{entries[-1].flow} is declared no more")
    if isinstance(flow.source, Files):
        return _of_files(table, entries)
    if not isinstance(flow.source, Delta):
        ranges = [span for one in entries for span in offset_ranges.of_kafka(one.source_from, one.source_to)]
        return Origin(table.name, entries, ranges=offset_ranges.joined(ranges))
    return _of_delta(tables, table, entries, flow.source)


def _of_files(table: Table, entries: list[BatchRecord]) -> Origin:
    names: list[str] = []
    try:
        for one in entries:
            home = settings().checkpoints(one.flow) / str(one.generation)
            names += [taken.path for taken in landing_folder.of_batch(home, one.source_from, one.source_to)]
    except Broken as error:
        return Origin(table.name, entries, files=names, note=str(error))
    return Origin(table.name, entries, files=names)


def _of_delta(tables: Catalog, table: Table, entries: list[BatchRecord], source: Delta) -> Origin:
    above = tables.table(source.table)
    log = Log(settings().table_path(source.table))
    reads: list[Read] = []
    note = ""
    try:
        reads = [read for one in entries for read in Appends(log, source).of(one)]
    except Broken as error:
        note = str(error)
    first, last = _versions(entries)
    # A snapshot's files hold rows of every version up to it.
    is_whole = any(one.is_of_snapshot for one in reads)
    named = None if is_whole or note else {one.version for one in reads}
    upstream = BatchHistory(above)
    chosen = [
        upstream.detailed(one)
        for one in upstream.batches()
        if one.version is not None and (one.version in named if named is not None else first <= one.version <= last)
    ]
    return Origin(table.name, entries, reads, above=_origin(tables, above, chosen[::-1]), note=note)


def _versions(entries: list[BatchRecord]) -> tuple[int, int]:
    """The versions of the source that batches reach over, the first and the last."""
    begins = [0 if one.source_from is None else first_version(one.source_from) for one in entries]
    return min(begins), max(checkpoint.read_version(one.source_to) for one in entries)


def first_version(begin: Any) -> int:
    """The first version that is read behind a Delta offset; 0 within the snapshot that a flow begins with."""
    return 0 if begin.get("isStartingVersion") else offset_ranges.place(begin)[0]


def lines(origin: Origin) -> Iterator[str]:
    """For people, the table itself first."""
    for one in origin.entries[:1] if len(origin.entries) == 1 else ():
        what = offset_ranges.say(one.source, one.source_from, one.source_to)
        yield f"{origin.table} version {one.version} is batch {one.name}: {what}"
    if len(origin.entries) > 1:
        versions = [one.version for one in origin.entries if one.version is not None]
        yield f"{origin.table}: {len(origin.entries):,} batches, versions {min(versions)} to {max(versions)}"
    if origin.reads:
        rows = sum(one.rows or 0 for one in origin.reads)
        by_version: dict[tuple[int, bool], set[int]] = {}
        for read in origin.reads:
            by_version.setdefault((read.version, read.is_of_snapshot), set()).add(read.index)
        yield f"  {len(origin.reads):,} files with {rows:,} rows, by (version, index):"
        for (version, is_of_snapshot), indexes in by_version.items():
            what = "snapshot of version" if is_of_snapshot else "version"
            yield f"  {what} {version}, files {min(indexes)} to {max(indexes)}"
    yield from (f"  {one}" for one in origin.ranges)
    yield from (f"  file {one}" for one in origin.files)
    if origin.note:
        yield f"  {origin.note}"
    if origin.above:
        yield from lines(origin.above)
