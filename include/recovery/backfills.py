"""python -m include.ledger backfills [TABLE]: what was made again, how far one has come, and which tables are stale."""

from collections.abc import Iterator
from datetime import UTC, datetime

import pyarrow.compute as pc  # type: ignore[import-untyped]
from deltalake import DeltaTable

from include.catalog import Catalog
from include.control.jobs import stale_tables
from include.control.jobs.backfills import Backfill
from include.control.jobs.stale_tables import Stale
from include.control.store import database
from include.errors import SluiceError
from include.maintenance import vacuum_guard
from include.readers import position, stored_rows
from include.readers.batches import BACKFILL
from include.readers.delta_log import Commit, Log
from include.recovery import lost_on_refresh
from include.settings import settings
from include.spec import Delta, Files, Table
from include.validation import slices
from include.validation.slices import Slice


def rehearsal(table: Table, tables: Catalog, range_: Slice, alone: bool = False) -> Iterator[str]:
    """What a backfill of the range would do, table by table; alone: only of this one.

    Raises UsageError where that would throw away what nobody has allowed to, and Unreachable.
    """
    left = {table.name: (table, range_)}
    while left:
        # In graph order, so that one below two others comes behind both.
        name = next(one for one in tables.tables if one in left)
        found, part = left.pop(name)
        if name in tables.warnings:
            yield tables.warnings[name]
        sources = [_said(flow) for flow in found.flows]
        yield f"{name} {part}: {rows(found, part):,} rows are made again from {', '.join(dict.fromkeys(sources))}"
        if part == Slice():
            yield from lost_on_refresh.lines(found)
        for reader in _readers(tables, name):
            follows = that_follows(tables.tables[reader.name], found, part, alone)
            if isinstance(follows, Slice):
                yield f"  {reader.flow} reads to the end, stops for a moment, and {reader.name} follows {follows}"
                left.setdefault(reader.name, (tables.tables[reader.name], follows))
            else:
                yield f"  {reader.flow} reads to the end and stops for a moment; {reader.name} is STALE then: {follows}"


def that_follows(reader: Table, table: Table, replaced: Slice, alone: bool) -> Slice | str:
    """As `slices.that_follows`; alone: whoever asked for it wanted nothing to follow."""
    if alone:
        return f"{table.name} was made again alone: backfill {reader.name}"
    return slices.that_follows(reader, table, replaced)


def _said(flow: Table) -> str:
    source = flow.source
    if isinstance(source, Files):
        return settings().folder(source.path)
    return source.table if isinstance(source, Delta) else str(source)


def rows(table: Table, range_: Slice) -> int:
    """How many the range holds now."""
    stored = stored_rows.dataset(table.name)
    if range_.begin is None or range_.end is None:
        return int(stored.count_rows())
    time = pc.field(table.sliced_by)
    begin, end = (one.date() if slices.is_date(table) else one for one in (range_.begin, range_.end))
    return int(stored.count_rows(filter=(time >= begin) & (time < end)))


def _readers(tables: Catalog, table: str) -> list[Table]:
    flows = [tables.flows[name] for name in vacuum_guard.readers(tables, table)]
    return [
        flow
        for flow in flows
        if settings().is_stored(flow.name) and isinstance(flow.source, Delta) and not flow.source.changes
    ]


def txn_app_id(one: Backfill) -> str:
    """Under which its range is replaced once."""
    return f"backfill/{one.key}"


def replaced_by(table: str, one: Backfill) -> Commit | None:
    """The commit by which its range was replaced, by its job or by one that died; None where there is none."""
    path = settings().table_path(table)
    if not settings().is_stored(table) or DeltaTable(str(path)).transaction_version(txn_app_id(one)) is None:
        return None
    found = (commit for commit in Log(path).commits() if (commit.metadata.get(BACKFILL) or {}).get("key") == one.key)
    return next(found)


def readers(tables: Catalog, table: str) -> list[Table]:
    """The flows that read the table's appends and have begun; one that reads its changes is shown what a backfill
    replaced, as any other change.
    """
    return [
        flow
        for flow in tables.flows.values()
        if isinstance(flow.source, Delta) and flow.source.table == table and not flow.source.changes
        if position.of(flow.flow)
    ]


def words(one: Stale) -> str:
    """For people."""
    since = f"{datetime.fromtimestamp(one.since, UTC):%Y-%m-%d %H:%M}Z"
    return f"{one.table}: STALE since {since}: {one.why}"


def stale_or_nothing() -> list[Stale]:
    """Nothing where the control database does not answer, which `status` says."""
    try:
        return stale_tables.every(database.connect(settings().control_url))
    except SluiceError:
        return []
