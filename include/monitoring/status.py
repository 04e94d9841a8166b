"""Gathers the status of every flow and table: desired and actual state, lag, freshness and trend, without a JVM."""

import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from deltalake.exceptions import DeltaError
from sqlalchemy import Engine, select

from include.catalog import Catalog
from include.checkpoints import checkpoint_files
from include.control import first_loads
from include.control.flows import incidents, orders, placements, sizing
from include.control.flows.decide import State
from include.control.flows.sizing import Size
from include.control.jobs import store
from include.control.store import database
from include.control.store.job_id import JobKind
from include.control.store.schema import incidents as incident_rows
from include.control.supervision import lag_history, supervision
from include.delta import stored_table
from include.delta.table_logs import TableLogs
from include.errors import SluiceError
from include.flows import refreshes
from include.flows.lag import TIMEOUT_SECONDS, Lag
from include.lake import locations
from include.monitoring import lag as lags
from include.monitoring import stale_rows, trend
from include.monitoring.lag import Measured
from include.monitoring.trend import Freshness, Trend
from include.settings import settings
from include.spec import Flow, Table


def by_target() -> dict[str, str]:
    """Returns a description of each open alarm, by target; empty where the control database does not answer.

    A target is a flow, a table, the supervisor, or "window" or "vacuum" with a table.
    """
    try:
        with database.reading(database.connect(settings().control_url)) as connection:
            open_alarms = connection.execute(select(incident_rows).where(incident_rows.c.ended_at.is_(None))).all()
            acknowledged = incidents.valid_acknowledgements(connection)
    except SluiceError:
        return {}
    alarms = {}
    for alarm in open_alarms:
        since = datetime.fromtimestamp(alarm.began_at, UTC)
        acknowledgement = f" ({acknowledged[alarm.target]})" if alarm.target in acknowledged else ""
        alarms[alarm.target] = f"alarm {alarm.state} since {since:%Y-%m-%d %H:%M}Z{acknowledgement}: {alarm.reason}"
    return alarms


# States of flows that the supervisor does not keep running.
IN_WINDOWS, VIEW = "IN WINDOWS", "VIEW"
# Of the table of a flow, in which rows without a partner are counted.
NEWEST_COMMITS = 100
# Intervals longer than the declared one by this factor are reported.
LONGER = 1.5


@dataclass(frozen=True)
class FlowStatus:
    """The status of one flow, or of one source of a view.

    wanted: running, draining or stopped. state: as `control.decide.State`, or IN_WINDOWS or VIEW. reason: of the state.
    wanted and state are None where the control database does not answer.
    in_flight: the batch that is planned and not committed.
    stale: why the table, or some of its rows, should be recomputed.
    alarm: the open alarm of the flow or table, and who has acknowledged it.
    invalid_definition: why the table runs with its last valid definition.
    longer_interval_seconds: the actual interval, where the driver's load makes it longer than declared.
    refresh: `incremental` or `full`, for the newest refresh of a view; empty where that is not known. recomputed: why
    it was full, else empty.
    no_partner: by lookup, how many rows of the newest batches have found none, where there are any.
    executors: of its driver; None where nobody scales it.
    driver: which runs it; empty for a view.
    """

    flow: str
    table: str
    wanted: str | None
    state: str | None
    reason: str
    lag: Lag
    trend: Trend
    freshness: Freshness
    in_flight: int | None
    stale: tuple[str, ...] = ()
    alarm: str | None = None
    invalid_definition: str | None = None
    longer_interval_seconds: float | None = None
    refresh: str = ""
    recomputed: str = ""
    no_partner: dict[str, int] = field(default_factory=dict)
    executors: Size | None = None
    driver: str = ""

    def as_json(self) -> dict[str, Any]:
        lag, trend = asdict(self.lag), asdict(self.trend)
        lag |= {"hours_until_loss": self.lag.hours_until_loss, "is_up_to_date": self.lag.is_up_to_date}
        fresh = {**asdict(self.freshness), "is_kept": self.freshness.is_kept}
        executors = self.executors.as_json() if self.executors else None
        return {**asdict(self), "lag": lag, "trend": trend, "freshness": fresh, "executors": executors}


def statuses(
    tables: Catalog, timeout_seconds: float = TIMEOUT_SECONDS, measured: Measured | None = None
) -> list[FlowStatus]:
    """Returns the status of every flow and view, in graph order. timeout_seconds: the maximum wait for a broker.

    measured: all of them, by a caller who has measured them already.
    """
    tables = placements.place_if_known(tables)
    flows = list(tables.readers.values())
    flow_lags, sources = measured or lags.look(flows, timeout_seconds)
    states = _states(tables)
    fresh = trend.measure(tables, flow_lags)
    stale, open_alarms = stale_rows.by_table(tables), by_target()
    longer, samples, sizes = _longer_intervals(flows), _backlog_samples(), _sizes()
    return [
        FlowStatus(
            flow.flow,
            flow.name,
            *states[flow.flow],
            flow_lags[flow.flow],
            trend.of(flow, flow_lags[flow.flow], sources, samples.get(flow.flow, ())),
            fresh[flow.name],
            _in_flight(flow.flow),
            stale.get(flow.name, ()),
            open_alarms.get(flow.flow) or open_alarms.get(flow.name),
            tables.warnings.get(flow.name),
            longer.get(flow.flow),
            *_refresh(flow),
            no_partner(flow, sources.logs),
            None if flow.is_view else sizes.get(tables.driver_of(flow)),
            "" if flow.is_view else tables.driver_of(flow),
        )
        for flow in flows
    ]


def _refresh(flow: Table) -> tuple[str, str]:
    method = refreshes.newest_method(flow.name) if flow.is_view else None
    if method is None:
        return "", ""
    return ("full", method.recomputed) if method.recomputed else ("incremental", "")


def _states(tables: Catalog) -> dict[str, tuple[str | None, str | None, str]]:
    """Returns the desired state, the actual state and its reason, by flow."""
    states: dict[str, tuple[str | None, str | None, str]] = {
        flow: (None, VIEW, refreshes.staleness_words(table))
        if table.is_view
        else (None, IN_WINDOWS if table.merges_in_windows else None, "")
        for flow, table in tables.readers.items()
    }
    try:
        engine = database.connect(settings().control_url)
        states |= _failed_views(engine, tables) | _waiting_views(engine, tables)
        for driver, flows in tables.drivers().items():
            observed_states = supervision.preview(engine, driver, [flow.flow for flow in flows])
            states |= {
                flow: (wanted, observed.state, observed.reason) for flow, (wanted, observed) in observed_states.items()
            }
    except SluiceError as error:
        states = {flow: (None, state, reason or str(error)) for flow, (_, state, reason) in states.items()}
    return states


def _failed_views(engine: Engine, tables: Catalog) -> dict[str, tuple[None, str, str]]:
    """Returns the states of views that their newest job has failed to refresh."""
    states: dict[str, tuple[None, str, str]] = {}
    for flow, view in tables.readers.items():
        if not view.is_view:
            continue
        with database.reading(engine) as connection:
            jobs = store.select_newest(connection, JobKind.REFRESH, view.name, 1)
        with suppress(SluiceError, DeltaError, OSError):
            if jobs and jobs[0].failure and not refreshes.in_run(view.name, jobs[0].who):
                states[flow] = (None, VIEW, f"its last refresh failed: {jobs[0].failure}")
    return states


def _waiting_views(engine: Engine, tables: Catalog) -> dict[str, tuple[None, str, str]]:
    """Returns the states of views whose first refresh waits for the first load of what they read."""
    names = {
        flow: table.name
        for flow, table in tables.readers.items()
        if table.is_view and not locations.is_stored(table.name)
    }
    with database.reading(engine) as connection:
        loads = first_loads.waiting(connection, set(names.values()), "refresh")
    return {flow: (None, State.WAITING, loads[name]) for flow, name in names.items() if name in loads}


def _longer_intervals(flows: Iterable[Flow]) -> dict[str, float]:
    try:
        actual = orders.intervals(database.connect(settings().control_url))
    except SluiceError:
        return {}
    declared = {flow.flow: flow.interval_seconds for flow in flows}
    return {flow: seconds for flow, seconds in actual.items() if seconds > LONGER * declared.get(flow, math.inf)}


def _backlog_samples() -> dict[str, list[int]]:
    try:
        return lag_history.samples(database.connect(settings().control_url))
    except SluiceError:
        return {}


def _sizes() -> dict[str, Size]:
    try:
        return sizing.sizes(database.connect(settings().control_url))
    except SluiceError:
        return {}


def no_partner(flow: Flow, logs: TableLogs) -> dict[str, int]:
    """Returns by lookup how many rows of the newest `NEWEST_COMMITS` have no partner, where there are any."""
    counts: dict[str, int] = {}
    with suppress(SluiceError, DeltaError, OSError):
        commits = logs.get(flow.name).commits() if flow.lookups else iter(())
        for commit in islice(commits, NEWEST_COMMITS):
            found = (commit.metadata.get("no_partner") or {}) if commit.metadata.get("flow") == flow.flow else {}
            counts |= {lookup: counts.get(lookup, 0) + rows for lookup, rows in found.items() if rows}
    return counts


def _in_flight(flow: str) -> int | None:
    try:
        flow_position = checkpoint_files.position_of(flow)
    except SluiceError:
        return None
    return flow_position.in_flight if flow_position else None


def rows(table: str) -> int | None:
    """Returns the rows in the newest version, from the log's statistics; None where the table is not stored."""
    delta_table = stored_table.find_table(table)
    return None if delta_table is None else delta_table.count()


def rows_or_none(table: str) -> int | None:
    """Returns `rows`, or None where the log cannot be read."""
    try:
        return rows(table)
    except (SluiceError, DeltaError, OSError):
        return None


def lag(flow: Flow) -> str:
    """Describes how far the flow is behind its source."""
    return lags.measure([flow])[flow.flow].words
