"""Takes a snapshot of the platform and stores it. A part that cannot be read is unknown, and the others are stored."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Engine

from include.catalog import Catalog
from include.control.flows import placements
from include.control.flows.decide import Decision
from include.control.jobs import all_kinds
from include.control.supervision import troubles
from include.kafka import broker
from include.monitoring import flow_snapshots, graph, lag, snapshot, status, table_snapshots, usage
from include.monitoring.lag import Measured
from include.monitoring.snapshot import EdgeSnapshot, JobSnapshot, PlatformSnapshot, Snapshot
from include.monitoring.snapshot_parts import Parts


def take(
    engine: Engine,
    tables: Catalog,
    decisions: Mapping[str, Decision] | None = None,
    measured: Measured | None = None,
    timeout_seconds: float = broker.TIMEOUT_SECONDS,
) -> Snapshot:
    """Stores a snapshot and returns it. Raises Unreachable for the control database only.

    decisions: of the supervisor, by flow. measured: the lags of all readers, if it knows them. timeout_seconds: the
    maximum wait for a broker.
    """
    began_seconds = time.process_time()
    # Any kind of error: the other parts are worth as much without that one.
    parts = Parts(Exception)
    tables = placements.place(engine, tables)
    observed = flow_snapshots.observe(engine, decisions or {})
    measured = measured or lag.look(tables.readers.values(), timeout_seconds)
    logs = measured.sources.logs
    statuses = parts.look("status", lambda: status.statuses(tables, timeout_seconds, measured)) or []
    reports = parts.look("rates", lambda: flow_snapshots.recent_reports(observed.now))
    flows = parts.look("flows", lambda: flow_snapshots.of_all(tables, statuses, observed, reports)) or ()
    looks = parts.look("tables", lambda: table_snapshots.of_all(engine, tables, statuses, logs, observed.now))
    listed, details = looks or ((), [])
    edges = parts.look("edges", lambda: _edges(tables)) or ()
    wrong = parts.look("troubles", lambda: tuple(troubles.troubles(engine, tables))) or ()
    unfinished = parts.look("jobs", lambda: _jobs(engine)) or ()
    before = snapshot.newest(engine)
    drivers = parts.look("CPU time", lambda: usage.of_drivers(observed, tables.drivers())) or ()
    flows = parts.look("usage", lambda: usage.with_usage(flows, drivers, before, reports or {}, details)) or flows
    flows = parts.look("definitions", lambda: usage.with_definitions(flows, before)) or flows
    took_seconds = round(time.process_time() - began_seconds, 3)
    platform = PlatformSnapshot(tuple(tables.notices), parts.unknown, took_seconds, drivers)
    taken = Snapshot(observed.now, platform, flows, listed, edges, wrong, unfinished)
    snapshot.store(engine, taken, details, flow_snapshots.newest_reports(reports or {}))
    return taken


def renew_verdicts(engine: Engine, tables: Catalog, decisions: Mapping[str, Decision]) -> bool:
    """Stores what the supervisor has decided in the newest snapshot, if it differs from what that says.

    A look at all tables takes longer, and follows. Returns whether it differs. Raises Unreachable.
    """
    before, observed = snapshot.newest(engine), flow_snapshots.observe(engine, decisions)
    # The time of an old snapshot says how old its other values are.
    if before is None or before.is_old(observed.now):
        return False
    flows = tuple(flow_snapshots.with_verdict(flow, observed) for flow in before.flows)
    wrong = tuple(troubles.troubles(engine, tables))
    renewed = replace(before, at=observed.now, flows=flows, troubles=wrong)
    if _verdicts(renewed) == _verdicts(before):
        return False
    snapshot.replace_newest(engine, renewed)
    return True


def _verdicts(stored: Snapshot) -> tuple[Any, ...]:
    """What a person acts on. Reasons also count seconds, and always differ."""
    states = [(flow.flow, flow.state, flow.alarm, flow.acknowledged) for flow in stored.flows]
    causes = [(trouble.cause, trouble.kind, trouble.needs_person, list(trouble.flows)) for trouble in stored.troubles]
    return states, causes


def _edges(tables: Catalog) -> tuple[EdgeSnapshot, ...]:
    def kind(name: str) -> str:
        return graph.kind_of(name, tables)

    return tuple(
        EdgeSnapshot(edge.source, edge.target, kind(edge.source), kind(edge.target), edge.flow)
        for edge in graph.edges_of(tables)
    )


def _jobs(engine: Engine) -> tuple[JobSnapshot, ...]:
    return tuple(
        JobSnapshot(
            *(job.kind, job.number, job.table, job.state, job.who, job.reason, job.message, job.failure),
            *(job.planned_at, job.state_at, tuple(job.stopped), job.is_held),
        )
        for job in all_kinds.unfinished(engine)
    )
