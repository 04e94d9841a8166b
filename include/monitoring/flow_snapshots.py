"""What a snapshot says of each flow: its status, the batches of the last minute, and where it runs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row, func, select

from include.catalog import Catalog
from include.checkpoints import checkpoint_files
from include.control.flows import alarms, incidents
from include.control.flows.decide import Decision
from include.control.flows.incidents import Acknowledgement
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import incidents as incident_rows
from include.control.store.schema import leases, samples
from include.errors import SluiceError
from include.lake import locations
from include.monitoring import query_progress
from include.monitoring.query_progress import PHASES_MS
from include.monitoring.snapshot import FlowReport, FlowSnapshot
from include.monitoring.status import FlowStatus
from include.spec import Flow

Report = Mapping[str, Any]
# Rates are those of so long.
RECENT_SECONDS = 90
DAY_SECONDS = 86_400.0
WHOLE_BATCH = "trigger_execution_ms"


@dataclass(frozen=True)
class Observed:
    """What the control database has of flows. first_starts: by flow, the starts of a day ago, or of the first sample.

    alarms, acknowledged: by target. leases: by flow. decisions: of the supervisor, by flow.
    """

    now: float
    alarms: Mapping[str, Row[Any]]
    acknowledged: Mapping[str, Acknowledgement]
    leases: Mapping[str, Row[Any]]
    first_starts: Mapping[str, int]
    decisions: Mapping[str, Decision]


def observe(engine: Engine, decisions: Mapping[str, Decision]) -> Observed:
    """Raises Unreachable."""
    with database.reading(engine) as connection:
        now = database.now(connection)
        open_rows = connection.execute(select(incident_rows).where(incident_rows.c.ended_at.is_(None))).all()
        return Observed(
            now,
            {row.target: row for row in open_rows},
            incidents.valid_acknowledgements(connection),
            {row.flow: row for row in connection.execute(select(leases).where(leases.c.expires_at > now))},
            _first_starts(connection, now - DAY_SECONDS),
            decisions,
        )


def _first_starts(connection: Connection, since: float) -> dict[str, int]:
    least = select(samples.c.flow, func.min(samples.c.starts).label("starts")).where(
        samples.c.at >= since, samples.c.starts > 0
    )
    return {row.flow: row.starts for row in connection.execute(least.group_by(samples.c.flow))}


def recent_reports(now_seconds: float) -> dict[str, list[Report]]:
    """Returns by flow the reports in the drivers' journals of batches that have ended of late, oldest first."""
    since = now_seconds - RECENT_SECONDS
    ended = [row for row in query_progress.waiting_batches() if _ended_at(row) > since]
    query_progress.add_output_rows(ended)
    found: dict[str, list[Report]] = defaultdict(list)
    for report in ended:
        found[report["flow"]].append(report)
    return {flow: sorted(reports, key=lambda report: report["at"]) for flow, reports in found.items()}


def newest_reports(reports: Mapping[str, Sequence[Report]]) -> list[FlowReport]:
    """Returns the newest of each flow, whole. reports: by flow, of `recent_reports`."""
    return [
        FlowReport(flow, newest["at"].timestamp(), newest["generation"], newest["batch"], newest["raw"] or "{}")
        for flow, of_flow in reports.items()
        for newest in of_flow[-1:]
    ]


def _ended_at(report: Report) -> float:
    began_at: datetime = report["at"]
    return began_at.timestamp() + (report[WHOLE_BATCH] or 0) / 1000


def of_flow(
    flow: Flow, status: FlowStatus, observed: Observed, reports: Sequence[Report], is_measured: bool
) -> FlowSnapshot:
    """reports: of its newest batches. is_measured: whether reports could be read at all."""
    lag, fresh = status.lag, status.freshness
    lease = observed.leases.get(flow.flow)
    starts = lease.epoch if lease else None
    first_starts = observed.first_starts.get(flow.flow)
    phase, phase_at = _phase(flow, status, lease, reports)
    return FlowSnapshot(
        flow=flow.flow,
        table=flow.name,
        layer=flow.layer,
        driver=status.driver,
        host=Holder.from_json(lease.holder).host if lease else "",
        is_view=flow.is_view,
        wanted=status.wanted,
        **_state(flow, status, observed),
        unit=lag.unit,
        behind=lag.count,
        lag_words=lag.words,
        rows=lag.rows,
        files=lag.files,
        bytes=lag.bytes,
        versions=lag.versions,
        offsets=_with_names(lag.offsets),
        lag_seconds=lag.seconds,
        is_more=lag.is_more,
        unknown=lag.unknown,
        loss_in_seconds=lag.expires.expires_in_seconds if lag.expires else None,
        age_seconds=fresh.seconds,
        promised_seconds=fresh.promised_seconds,
        is_fresh=fresh.is_kept,
        judged_by=fresh.by,
        freshness_words=fresh.words,
        trend=status.trend.verdict,
        trend_words=status.trend.words,
        caught_up_in_seconds=status.trend.caught_up_in_seconds,
        phase=phase,
        phase_at=phase_at,
        in_flight=status.in_flight,
        **(_batches(reports) if reports else _no_batches(is_measured and not flow.is_view)),
        starts=starts,
        restarts=None if starts is None or first_starts is None else max(0, starts - first_starts),
        executors=status.executors.words if status.executors else "",
        stale=status.stale,
        invalid_definition=status.invalid_definition,
        interval_seconds=status.longer_interval_seconds,
        refresh=status.refresh,
        recomputed=status.recomputed,
        no_partner=status.no_partner,
    )


def _with_names(offsets: Mapping[str, Mapping[int, int]] | None) -> dict[str, dict[str, int]]:
    return {
        topic: {str(partition): count for partition, count in partitions.items()}
        for topic, partitions in (offsets or {}).items()
    }


def _state(flow: Flow, status: FlowStatus, observed: Observed) -> dict[str, Any]:
    """Returns state, reason and alarm, by the supervisor's decision where it has made one."""
    return {"state": status.state, "reason": status.reason, **_verdict(flow.flow, observed)}


def _verdict(flow: str, observed: Observed) -> dict[str, Any]:
    """Returns what the supervisor has decided about the flow, and its alarm."""
    found: dict[str, Any] = {"alarm": "", "alarm_at": None, "command": "", "acknowledged": ""}
    if decision := observed.decisions.get(flow):
        found |= {"state": decision.state, "reason": decision.reason}
        found |= {"next_step": decision.next_step, "action": decision.action}
    if alarm := observed.alarms.get(flow):
        taken = observed.acknowledged.get(flow)
        command = alarms.command(alarm.state, flow, alarm.number, alarm.error)
        found |= {"alarm": alarm.state, "alarm_at": alarm.began_at, "command": command}
        found["acknowledged"] = str(taken) if taken else ""
    return found


def with_verdict(before: FlowSnapshot, observed: Observed) -> FlowSnapshot:
    """Returns a flow of an earlier snapshot with what the supervisor has decided since."""
    return replace(before, **_verdict(before.flow, observed))


def _phase(
    flow: Flow, status: FlowStatus, lease: Row[Any] | None, reports: Sequence[Report]
) -> tuple[str, float | None]:
    """Returns what a flow does now, and since when; "" where nobody holds its lease."""
    if lease is None:
        return "", None
    planned_at = None if status.in_flight is None else _planned_at(flow.flow, status.in_flight)
    if lease.mode == "wants":
        return f"waits to write {lease.writes} alone", lease.wanted_at
    if status.in_flight is not None:
        return ("writes a batch" if lease.writes else "has planned a batch"), planned_at
    return "waits for rows", max(map(_ended_at, reports)) if reports else None


def _planned_at(flow: str, batch: int) -> float | None:
    checkpoints = locations.checkpoints(flow)
    try:
        generation = checkpoint_files.newest_generation(checkpoints)
        return checkpoint_files.planned_batch(checkpoints / str(generation), batch).at
    except (SluiceError, OSError):
        return None


def _batches(reports: Sequence[Report]) -> dict[str, Any]:
    """Returns the newest batch, and the rates over all of these batches."""
    batch = reports[-1]
    began_at: datetime = batch["at"]
    return {
        "batch": batch["batch"],
        "batch_at": began_at.astimezone(UTC).timestamp(),
        "batch_ms": batch[WHOLE_BATCH],
        "phases_ms": {phase: batch[phase] for phase in PHASES_MS if phase != WHOLE_BATCH and batch[phase] is not None},
        "rows_in": batch["input_rows"],
        "rows_out": batch["output_rows"],
        "rows_in_per_second": _mean(reports, "input_rows"),
        "rows_out_per_second": _mean(reports, "output_rows"),
    }


def _mean(reports: Sequence[Report], rows: str) -> float | None:
    """Returns the rows a second over all batches. Each took the time since the one before it began."""
    timed = [report for report in reports if report["input_rows_per_second"] is not None and report[rows] is not None]
    seconds = sum(_seconds(report) for report in timed)
    return sum(report[rows] for report in timed) / seconds if seconds else None


def _seconds(report: Report) -> float:
    rate: float = report["input_rows_per_second"]
    return report["input_rows"] / rate if rate else (report[WHOLE_BATCH] or 0) / 1000


def _no_batches(is_measured: bool) -> dict[str, Any]:
    return {"rows_in_per_second": 0.0, "rows_out_per_second": 0.0} if is_measured else {}


def of_all(
    tables: Catalog, statuses: Iterable[FlowStatus], observed: Observed, reports: Mapping[str, Sequence[Report]] | None
) -> tuple[FlowSnapshot, ...]:
    """reports: by flow; None where they cannot be read."""
    readers, is_measured = tables.readers, reports is not None
    return tuple(
        of_flow(readers[status.flow], status, observed, (reports or {}).get(status.flow, ()), is_measured)
        for status in statuses
    )
