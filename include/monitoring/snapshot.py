"""The newest snapshot of the platform, and seven days of history. The supervisor stores both in the control database.

Pages and exporters read this, so that no request opens a Delta log, Kafka or a store.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, delete, func, select

from include.control.store import database
from include.control.store.schema import samples, snapshots
from include.control.supervision.troubles import Trouble

PLATFORM = "platform"
# Of the part that has a flow's newest report; no table's name has a space.
REPORT = "report "
# The supervisor writes one a minute, and a run may take one.
OLD_SECONDS = 180
PHASES = (
    *("latest_offset_ms", "get_batch_ms", "query_planning_ms", "wal_commit_ms", "add_batch_ms", "commit_offsets_ms"),
)


@dataclass(frozen=True)
class FlowSnapshot:
    """A flow, or what reads one source of a view. Times are seconds since 1970; None and empty: not known, or none.

    wanted, state, reason: as in `FlowStatus`. next_step: in words. action: on the flow, that helps; empty: none does.
    command: to paste into a shell, while an alarm is open. alarm: its kind, open since alarm_at, taken on by
    acknowledged, in words. host: where its driver runs.

    unit, behind: the lag in the measure of the source, lag_words in words. rows, files, bytes, versions, offsets,
    lag_seconds, is_more: as in `Lag`. unknown: why the lag is unknown. loss_in_seconds: until Kafka deletes what is
    unread.

    age_seconds, promised_seconds, is_fresh: of its table; judged_by: the flow that is the oldest of all above it.
    trend: a verdict, trend_words with its numbers.

    phase: what it does now, and since when. in_flight: the batch that is planned and not committed.
    batch, batch_at, batch_ms, phases_ms, rows_in, rows_out: of the newest batch, which began at batch_at. Rates are
    means over the batches of the last minute, 0 if there was none.

    restarts: in 24 hours. executors: of its driver, in words. stale: why rows should be recomputed.
    interval_seconds: actual, where the driver's load makes it longer than declared. no_partner: rows by lookup.

    cpu_ms, bytes_written: since the snapshot before, see `include.monitoring.usage`. definition: begins the SHA-256 of
    the one that it runs by.
    """

    flow: str
    table: str
    layer: str = ""
    driver: str = ""
    host: str = ""
    is_view: bool = False
    wanted: str | None = None
    state: str | None = None
    reason: str = ""
    next_step: str = ""
    action: str = ""
    command: str = ""
    alarm: str = ""
    alarm_at: float | None = None
    acknowledged: str = ""
    unit: str = ""
    behind: int | None = None
    lag_words: str = ""
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    versions: int | None = None
    offsets: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    lag_seconds: float | None = None
    is_more: bool = False
    unknown: str | None = None
    loss_in_seconds: float | None = None
    age_seconds: float | None = None
    promised_seconds: float | None = None
    is_fresh: bool | None = None
    judged_by: str | None = None
    freshness_words: str = ""
    trend: str = "unknown"
    trend_words: str = ""
    caught_up_in_seconds: float | None = None
    phase: str = ""
    phase_at: float | None = None
    in_flight: int | None = None
    batch: int | None = None
    batch_at: float | None = None
    batch_ms: int | None = None
    phases_ms: Mapping[str, int] = field(default_factory=dict)
    rows_in: int | None = None
    rows_out: int | None = None
    rows_in_per_second: float | None = None
    rows_out_per_second: float | None = None
    starts: int | None = None
    restarts: int | None = None
    executors: str = ""
    stale: tuple[str, ...] = ()
    invalid_definition: str | None = None
    interval_seconds: float | None = None
    refresh: str = ""
    recomputed: str = ""
    no_partner: Mapping[str, int] = field(default_factory=dict)
    cpu_ms: int | None = None
    bytes_written: int | None = None
    definition: str | None = None


@dataclass(frozen=True)
class TableSnapshot:
    """A table in the list of all. rows, quarantined, files, bytes: of its newest version; None: unknown, see unknown.

    kind: `table` or `view`. unknown: why its log cannot be read; empty for a table that is not stored yet.
    """

    table: str
    layer: str = ""
    kind: str = "table"
    owner: str = ""
    comment: str = ""
    flows: tuple[str, ...] = ()
    is_stored: bool = False
    version: int | None = None
    written_at: float | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    quarantined: int | None = None
    age_seconds: float | None = None
    promised_seconds: float | None = None
    is_fresh: bool | None = None
    judged_by: str | None = None
    is_stale: bool = False
    unknown: str = ""


@dataclass(frozen=True)
class TableDetails:
    """What the page of one table shows besides. Dictionaries, as JSON has them.

    columns: name, type, comment. rules: name, otherwise, rows, broke, pass_rate. versions, newest first: version, at,
    operation, kind, flow, batch, rows, files, bytes, reads (what of the source, in words), above (the table that it
    read, and which version of it). quarantine: rules, reason, flow, batch, at, origin; no values of rows. broken_rules:
    quarantined rows by rule. replay_refusal: why none of them can move back. file_sizes: data files by their upper
    bound in bytes. readers: who reads it. held_by, held_version: who holds VACUUM back. These and the quarantine are as
    of held_at. unknown: by part, why it is not known.
    """

    table: str
    at: float = 0.0
    columns: tuple[Mapping[str, Any], ...] = ()
    rules: tuple[Mapping[str, Any], ...] = ()
    versions: tuple[Mapping[str, Any], ...] = ()
    quarantine: tuple[Mapping[str, Any], ...] = ()
    quarantine_version: int | None = None
    broken_rules: Mapping[str, int] = field(default_factory=dict)
    replay_refusal: str = ""
    file_sizes: Mapping[str, int] = field(default_factory=dict)
    readers: tuple[str, ...] = ()
    held_by: str = ""
    held_version: int | None = None
    held_at: float = 0.0
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class FlowReport:
    """The newest report of a flow's query that the supervisor has seen. at: when the batch began. raw: Spark's JSON."""

    flow: str
    at: float
    generation: int | None = None
    batch: int | None = None
    raw: str = "{}"


@dataclass(frozen=True)
class EdgeSnapshot:
    """`target` reads `source`. Kinds: topic, folder, table or step. flow: that reads; None for a step and a lookup."""

    source: str
    target: str
    source_kind: str = "table"
    target_kind: str = "table"
    flow: str | None = None


@dataclass(frozen=True)
class JobSnapshot:
    """An unfinished job. stopped: the flows that it holds. is_held: a process is at work, or about to be."""

    kind: str
    number: int
    table: str
    state: str
    who: str = ""
    reason: str = ""
    message: str = ""
    failure: str | None = None
    planned_at: float | None = None
    state_at: float | None = None
    stopped: tuple[str, ...] = ()
    is_held: bool = False


@dataclass(frozen=True)
class DriverUsage:
    """The CPU time of a driver's processes since their start. epoch: of its lease, one more at each start."""

    driver: str
    epoch: int
    cpu_seconds: float


@dataclass(frozen=True)
class PlatformSnapshot:
    """notices: of table files that are not used, in words. unknown: by part of the snapshot, why it is not known.

    took_seconds: CPU time of this snapshot. drivers: those on the supervisor's machine.
    """

    notices: tuple[str, ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict)
    took_seconds: float | None = None
    drivers: tuple[DriverUsage, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """at: when the supervisor looked, in seconds since 1970 by the control database's clock."""

    at: float
    platform: PlatformSnapshot = PlatformSnapshot()
    flows: tuple[FlowSnapshot, ...] = ()
    tables: tuple[TableSnapshot, ...] = ()
    edges: tuple[EdgeSnapshot, ...] = ()
    troubles: tuple[Trouble, ...] = ()
    jobs: tuple[JobSnapshot, ...] = ()

    def is_old(self, now_seconds: float) -> bool:
        """Whether what it says may not hold any more. now_seconds: by the control database's clock."""
        return now_seconds - self.at > OLD_SECONDS


@dataclass(frozen=True)
class Sample:
    """A flow at one moment. batch_ms and what follows: of the newest batch of the minute; None without one."""

    at: float
    state: str | None = None
    starts: int | None = None
    behind: int | None = None
    lag_seconds: float | None = None
    rows_in_per_second: float | None = None
    rows_out_per_second: float | None = None
    batch_ms: int | None = None
    latest_offset_ms: int | None = None
    get_batch_ms: int | None = None
    query_planning_ms: int | None = None
    wal_commit_ms: int | None = None
    add_batch_ms: int | None = None
    commit_offsets_ms: int | None = None
    cpu_ms: int | None = None
    bytes_written: int | None = None
    definition: str | None = None


@dataclass(frozen=True)
class Used:
    """What a flow has used. samples: with CPU time, about one a minute. None: nobody has measured it."""

    cpu_ms: int | None
    bytes_written: int | None
    samples: int


Part = TypeVar("Part")


def newest(engine: Engine) -> Snapshot | None:
    """Returns the newest snapshot; None where no supervisor has stored one. Raises Unreachable."""
    document = _document(engine, PLATFORM)
    if document is None:
        return None
    parts = {
        "flows": FlowSnapshot,
        "tables": TableSnapshot,
        "edges": EdgeSnapshot,
        "troubles": Trouble,
        "jobs": JobSnapshot,
    }
    listed: dict[str, Any] = {
        name: tuple(_to_part(kind, values) for values in document.get(name, ())) for name, kind in parts.items()
    }
    stored = document.get("platform", {})
    drivers = tuple(_to_part(DriverUsage, driver) for driver in stored.get("drivers", ()))
    platform = replace(_to_part(PlatformSnapshot, stored), drivers=drivers)
    return Snapshot(document["at"], platform, **listed)


def details(engine: Engine, table: str) -> TableDetails | None:
    """Returns the newest details of a table; None where no supervisor has stored them. Raises Unreachable."""
    document = _document(engine, table)
    return None if document is None else _to_part(TableDetails, document)


def report(engine: Engine, flow: str) -> FlowReport | None:
    """Returns the newest report of a flow; None where no supervisor has stored one. Raises Unreachable."""
    document = _document(engine, REPORT + flow)
    return None if document is None else _to_part(FlowReport, document)


def history(engine: Engine, flow: str, since_seconds: float) -> list[Sample]:
    """Returns the samples of a flow in the last `since_seconds`, oldest first. Raises Unreachable."""
    return histories(engine, [flow], since_seconds).get(flow, [])


def histories(engine: Engine, flows: Collection[str], since_seconds: float) -> dict[str, list[Sample]]:
    """Returns by flow the samples of the last `since_seconds`, oldest first. Raises Unreachable."""
    with database.reading(engine) as connection:
        now_seconds = database.now(connection)
        # A sample from the future was written before the clock was set back.
        is_recent = samples.c.flow.in_(flows) & samples.c.at.between(now_seconds - since_seconds, now_seconds)
        rows = connection.execute(select(samples).where(is_recent).order_by(samples.c.flow, samples.c.at)).all()
    found: dict[str, list[Sample]] = {}
    for flow, *values in rows:
        found.setdefault(flow, []).append(Sample(*values))
    return found


def used(engine: Engine, flows: Collection[str], begin: float, end: float) -> dict[str, Used]:
    """Returns by flow what its samples from `begin` to before `end` count. Raises Unreachable."""
    # A range of each flow: a range of times alone has no index.
    is_chosen = samples.c.flow.in_(flows) & (samples.c.at >= begin) & (samples.c.at < end)
    counts = func.sum(samples.c.cpu_ms), func.sum(samples.c.bytes_written), func.count(samples.c.cpu_ms)
    with database.reading(engine) as connection:
        rows = connection.execute(select(samples.c.flow, *counts).where(is_chosen).group_by(samples.c.flow)).all()
    return {flow: Used(_number(cpu_ms), _number(written), measured) for flow, cpu_ms, written, measured in rows}


def _number(count: Any) -> int | None:
    # PostgreSQL adds such columns up to a decimal.
    return None if count is None else int(count)


def store(
    engine: Engine,
    snapshot: Snapshot,
    table_details: Collection[TableDetails] = (),
    reports: Collection[FlowReport] = (),
) -> None:
    """Replaces the stored snapshot, the details of these tables and these reports, and adds a sample of each flow.

    Details and reports of what the snapshot does not list are deleted. Raises Unreachable.
    """
    documents = {PLATFORM: asdict(snapshot), **{part.table: asdict(part) for part in table_details}}
    documents |= {REPORT + report.flow: asdict(report) for report in reports}
    sample_rows = [_sample(flow, snapshot.at) for flow in snapshot.flows if not flow.is_view]
    with database.transaction(engine) as connection:
        _write(connection, documents, snapshot.at)
        flow_parts = {REPORT + flow.flow for flow in snapshot.flows}
        _forget(connection, {PLATFORM, *(table.table for table in snapshot.tables), *flow_parts})
        if sample_rows:
            # Two supervisors may write in the same millisecond, the resolution of SQLite's clock.
            connection.execute(database.insert(connection, samples).on_conflict_do_nothing(), sample_rows)


def replace_newest(engine: Engine, snapshot: Snapshot) -> None:
    """Replaces the stored snapshot alone. Raises Unreachable."""
    with database.transaction(engine) as connection:
        _write(connection, {PLATFORM: asdict(snapshot)}, snapshot.at)


def _write(connection: Connection, documents: Mapping[str, Any], at: float) -> None:
    rows = [{"part": part, "at": at, "document": json.dumps(values)} for part, values in documents.items()]
    statement = database.insert(connection, snapshots)
    changed = {"at": statement.excluded.at, "document": statement.excluded.document}
    connection.execute(statement.on_conflict_do_update(index_elements=["part"], set_=changed), rows)


def _sample(flow: FlowSnapshot, at: float) -> dict[str, Any]:
    measured = {"state": flow.state, "starts": flow.starts, "behind": flow.behind, "lag_seconds": flow.lag_seconds}
    rates = {"rows_in_per_second": flow.rows_in_per_second, "rows_out_per_second": flow.rows_out_per_second}
    is_new = flow.batch_at is not None and flow.rows_in_per_second is not None
    spent = {"batch_ms": flow.batch_ms, **{phase: flow.phases_ms.get(phase) for phase in PHASES}}
    used = {"cpu_ms": flow.cpu_ms, "bytes_written": flow.bytes_written, "definition": flow.definition}
    return {"flow": flow.flow, "at": at, **measured, **rates, **used, **(spent if is_new else dict.fromkeys(spent))}


def _forget(connection: Connection, parts: set[str]) -> None:
    stored = set(connection.execute(select(snapshots.c.part)).scalars())
    if gone := stored - parts:
        connection.execute(delete(snapshots).where(snapshots.c.part.in_(gone)))


def _document(engine: Engine, part: str) -> dict[str, Any] | None:
    with database.reading(engine) as connection:
        found = connection.execute(select(snapshots.c.document).where(snapshots.c.part == part)).scalar_one_or_none()
    return None if found is None else json.loads(found)


def _to_part(kind: type[Part], values: Mapping[str, Any]) -> Part:
    """Returns a part as this build knows it: a supervisor of another build may have stored more fields, or fewer."""
    known = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: _frozen(value) for name, value in values.items() if name in known})


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
