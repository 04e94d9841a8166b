"""What a snapshot says of each table, from its log and that of its quarantine.

What costs more than a look at the newest commits is kept from the snapshot before while the log has not grown.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from deltalake.exceptions import DeltaError
from sqlalchemy import Engine

from include.catalog import Catalog
from include.checkpoints import offset_ranges
from include.delta.delta_log import Commit, DeltaLog
from include.delta.table_logs import TableLogs
from include.errors import SluiceError
from include.flows.batches import commit_kind
from include.ledger import quarantine, row_outcomes
from include.maintenance import table_survey, vacuum_guard
from include.monitoring import snapshot
from include.monitoring.snapshot import Snapshot, TableDetails, TableSnapshot
from include.monitoring.snapshot_parts import Parts
from include.monitoring.status import FlowStatus
from include.project import replays
from include.spec import Table, ddl

NEWEST_VERSIONS = 50
QUARANTINED_ROWS = 5
# Upper bounds of data files; larger ones come under the last name.
FILE_SIZES = {"1 MB": 1e6, "16 MB": 16e6, "128 MB": 128e6, "1 GB": 1e9}
LARGER = "more"
# Who holds VACUUM back is looked up in checkpoints and commits of hours, and a sample of a quarantine in all its files.
SLOW_PARTS_SECONDS = 600
# A damaged or missing part of one table must not hide the others.
ERRORS = (SluiceError, DeltaError, OSError, ValueError, KeyError, TypeError)


def of_all(
    engine: Engine, tables: Catalog, statuses: Iterable[FlowStatus], logs: TableLogs, now_seconds: float
) -> tuple[tuple[TableSnapshot, ...], list[TableDetails]]:
    """Returns all tables, and the details of those that have changed."""
    before = snapshot.newest(engine) or Snapshot(now_seconds)
    known = {table.table: table for table in before.tables}
    status_of = {status.table: status for status in statuses}
    listed, changed = [], []
    for table in tables.tables.values():
        declared = _declared(table, status_of.get(table.name))
        found, details = _of_table(engine, table, tables, logs, declared, known.get(table.name), now_seconds)
        listed.append(found)
        changed += [details] if details else []
    return tuple(listed), changed


def _declared(table: Table, status: FlowStatus | None) -> TableSnapshot:
    declared = TableSnapshot(
        table.name,
        table.layer,
        "view" if table.is_view else "table",
        table.owner or "",
        table.comment,
        tuple(flow.flow for flow in table.flows),
    )
    if status is None:
        return declared
    fresh = status.freshness
    judged: dict[str, Any] = {
        "age_seconds": fresh.seconds,
        "promised_seconds": fresh.promised_seconds,
        "judged_by": fresh.by,
    }
    return replace(declared, **judged, is_fresh=fresh.is_kept, is_stale=bool(status.stale))


def _of_table(
    engine: Engine,
    table: Table,
    tables: Catalog,
    logs: TableLogs,
    declared: TableSnapshot,
    before: TableSnapshot | None,
    now_seconds: float,
) -> tuple[TableSnapshot, TableDetails | None]:
    """Returns the table, and its details where these have changed."""
    try:
        log, rejected = logs.find(table.name), logs.find(table.quarantine)
        if log is None:
            return declared, None
        details = snapshot.details(engine, table.name)
        is_unchanged = before is not None and before.is_stored and not before.unknown and details is not None
        if is_unchanged and before and details and before.version == log.newest and not _is_due(details, now_seconds):
            return _counted(declared, before), None
        return _looked_at(engine, table, tables, declared, log, rejected, details, now_seconds)
    except ERRORS as error:
        return replace(declared, is_stored=True, unknown=f"{error}" or type(error).__name__), None


def _is_due(details: TableDetails, now_seconds: float) -> bool:
    return not 0 <= now_seconds - details.held_at < SLOW_PARTS_SECONDS


def _counted(declared: TableSnapshot, before: TableSnapshot) -> TableSnapshot:
    names = ("is_stored", "version", "written_at", "rows", "files", "bytes", "quarantined")
    return replace(declared, **{name: getattr(before, name) for name in names})


def _looked_at(
    engine: Engine,
    table: Table,
    tables: Catalog,
    declared: TableSnapshot,
    log: DeltaLog,
    rejected: DeltaLog | None,
    before: TableDetails | None,
    now_seconds: float,
) -> tuple[TableSnapshot, TableDetails]:
    parts = Parts(*ERRORS)
    newest_versions = log.versions[: -NEWEST_VERSIONS - 1 : -1]
    commits = parts.look("versions", lambda: [log.commit(version) for version in newest_versions]) or []
    live = parts.look("files", lambda: log.state.live)
    found = replace(
        declared,
        is_stored=True,
        version=log.newest,
        written_at=commits[0].timestamp if commits else None,
        rows=None if live is None else _sum(file.rows for file in live),
        files=None if live is None else len(live),
        bytes=None if live is None else sum(file.bytes for file in live),
        quarantined=parts.look(
            "quarantine", lambda: _sum(file.rows for file in rejected.state.live) if rejected else None
        ),
        unknown=parts.unknown.get("files", ""),
    )
    details = TableDetails(
        table.name,
        now_seconds,
        columns=_columns(table),
        replay_refusal=replays.refusal(table) or "",
        rules=parts.look("rules", lambda: _rules(table, commits)) or (),
        versions=tuple(map(_version, commits)),
        file_sizes=_file_sizes([file.bytes for file in live or ()]),
        readers=tuple(name for name, flow in tables.readers.items() if table.name in _tables_read(flow)),
    )
    kept = before or details
    rejects = _kept(kept, "quarantine", "quarantine_version", "broken_rules")
    has_first = rejected is not None and kept.quarantine_version is None
    if rejected and kept.quarantine_version != rejected.newest and (has_first or _is_due(kept, now_seconds)):
        rejects = parts.look("quarantine", lambda: _quarantine(table, rejected)) or {}
    holds = _kept(kept, "held_by", "held_version", "held_at")
    if _is_due(kept, now_seconds):
        holds = parts.look("vacuum", lambda: _holds(engine, table, tables, log, now_seconds)) or {}
    return found, replace(details, **rejects, **holds, unknown=parts.unknown)


def _kept(details: TableDetails, *names: str) -> dict[str, Any]:
    return {name: getattr(details, name) for name in names}


def _sum(counts: Iterable[int | None]) -> int | None:
    """Returns None where one is unknown."""
    known, listed = 0, list(counts)
    for count in listed:
        if count is None:
            return None
        known += count
    return known


def _columns(table: Table) -> tuple[dict[str, Any], ...]:
    comments = ddl.comments(table.schema)
    return tuple(
        {"name": name, "type": type_, "comment": comments.get(name, "")}
        for name, type_ in ddl.definitions(table.schema).items()
    )


def _rules(table: Table, commits: Sequence[Commit]) -> tuple[dict[str, Any], ...]:
    checked = [batch for batch in row_outcomes.batches_of(table, commits) if batch]
    return tuple(
        {
            "name": rule.name,
            "otherwise": rule.otherwise,
            "rows": rule.rows,
            "broke": rule.broke,
            "pass_rate": rule.pass_rate,
        }
        for rule in row_outcomes.rules(table, checked)
    )


def _version(commit: Commit) -> dict[str, Any]:
    place = commit.batch
    return {
        "version": commit.version,
        "at": commit.timestamp,
        "operation": commit.operation,
        "kind": "batch" if place else commit_kind(commit),
        "flow": commit.metadata.get("flow"),
        "batch": f"{place[0]}/{place[1]}" if place else None,
        "rows": commit.rows,
        "files": commit.files,
        "bytes": commit.bytes,
        "reads": _reads(commit) if place else "",
        "above": _above(commit) if place else None,
    }


def _reads(commit: Commit) -> str:
    """Returns in words what of its source the batch has read."""
    source_to = commit.metadata.get("source_to")
    if source_to is None:
        return ""
    return offset_ranges.describe(commit.metadata.get("source"), commit.metadata.get("source_from"), source_to)


def _above(commit: Commit) -> tuple[str, int] | None:
    """Returns the table that the batch has read, and its newest version that it has read from; None for no table."""
    source, source_to = commit.metadata.get("source"), commit.metadata.get("source_to")
    if not (isinstance(source, dict) and source.get("table") and source_to):
        return None
    version, index = offset_ranges.delta_position(source_to)
    return str(source["table"]), version - 1 if index < 0 else version


def _file_sizes(sizes: Sequence[int]) -> dict[str, int]:
    names = [next((name for name, bound in FILE_SIZES.items() if size <= bound), LARGER) for size in sizes]
    counts = Counter(names)
    return {name: counts[name] for name in (*FILE_SIZES, LARGER)}


def _tables_read(flow: Table) -> set[str]:
    return {source.table for source in flow.upstream} | {lookup.table for lookup in flow.lookups}


def _quarantine(table: Table, rejected: DeltaLog) -> dict[str, Any]:
    """Returns the newest quarantined rows, without their values."""
    sample = quarantine.sample(table, QUARANTINED_ROWS)
    rows = tuple(
        {
            "rules": row.rules,
            "reason": row.reason,
            "errors": [error["field"] for error in row.errors],
            "flow": row.flow,
            "batch": f"{row.generation}/{row.batch}",
            "at": row.at,
            "origin": {name: str(value) for name, value in row.origin.items()},
        }
        for row in sample.rows
    )
    return {"quarantine": rows, "quarantine_version": rejected.newest, "broken_rules": sample.broke}


def _holds(engine: Engine, table: Table, tables: Catalog, log: DeltaLog, now_seconds: float) -> dict[str, Any]:
    """Returns who needs the oldest version."""
    held = vacuum_guard.oldest_consumer(table_survey.consumers_of(engine, table, tables, log, table.name, now_seconds))
    return {"held_by": held.name, "held_version": held.version, "held_at": now_seconds} if held else {}
