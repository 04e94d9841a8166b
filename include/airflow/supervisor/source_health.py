"""The health of flows from outside: missing sources, backlog, expiring records, rejected rows, broken promises."""

from contextlib import suppress

from deltalake.exceptions import DeltaError
from sqlalchemy import Engine

from include import logs
from include.catalog import Catalog
from include.control.flows import incidents
from include.control.flows.decide import State
from include.control.store import database
from include.control.supervision import lag_history
from include.control.supervision.supervision import SourceHealth
from include.delta.table_logs import TableLogs
from include.errors import SluiceError
from include.flows.lag import Lag
from include.kafka import broker
from include.monitoring import lag, rejected_rows, trend
from include.monitoring.lag import Measured
from include.spec import Table


def look(engine: Engine, tables: Catalog, measured: Measured | None = None) -> dict[str, SourceHealth]:
    """The health by flow, and by table for a broken promise of a table without a flow.

    Stores each flow's backlog. measured: the lags of all readers, by a caller who needs them too. Raises Unreachable
    for the control database only.
    """
    promises = any(table.fresh_minutes is not None for table in tables.tables.values())
    lags, sources = measured or lag.look(tables.readers.values(), broker.TIMEOUT_SECONDS)
    lag_of = {flow: flow_lag for flow, flow_lag in lags.items() if flow_lag.has_begun and flow in tables.flows}
    for flow, flow_lag in lag_of.items():
        if flow_lag.unknown and not _waits(flow_lag):
            # The checkpoint or the source table is damaged, which the flow's next start reports.
            logs.warning(f"its lag is unknown: {flow_lag.unknown}", flow)
    lag_history.remember(
        engine, {flow: flow_lag.count for flow, flow_lag in lag_of.items() if flow_lag.count is not None}
    )
    samples, broken = lag_history.samples(engine), _broken_promises(tables, lags) if promises else {}
    with database.reading(engine) as connection:
        now_seconds, rejecting = database.now(connection), incidents.targets_in_state(connection, State.REJECTING)
    health = {
        flow: SourceHealth(
            _waits(lag_of.get(flow)),
            _falls_behind(table, lag_of.get(flow), samples.get(flow, [])),
            _expires(lag_of.get(flow)),
            _rejects(table, sources.logs, now_seconds, flow in rejecting),
            broken.pop(table.name, None),
        )
        for flow, table in tables.flows.items()
    }
    return health | {table: SourceHealth(not_fresh=reason) for table, reason in broken.items()}


def _broken_promises(tables: Catalog, lags: dict[str, Lag]) -> dict[str, str]:
    """By table, how its freshness promise is broken."""
    freshness_of = trend.measure(tables, lags)
    return {
        name: f"what it lacks is {table_freshness.words}"
        for name, table_freshness in freshness_of.items()
        if table_freshness.is_kept is False
    }


def _rejects(flow: Table, logs: TableLogs, now_seconds: float, is_rejecting: bool) -> str | None:
    """Why the flow's rows do not reach the table. Unreadable data is ignored here: the flow's next start reports it."""
    with suppress(SluiceError, DeltaError, OSError, ValueError, KeyError, TypeError):
        return rejected_rows.of(flow, logs.get(flow.name), now_seconds, is_rejecting)
    return None


def _waits(flow_lag: Lag | None) -> str | None:
    """The missing part of the source, or the lake. A source table that is not stored yet is not reported."""
    if flow_lag is None or not (flow_lag.is_lake_away or (flow_lag.is_away and flow_lag.unit != "versions")):
        return None
    return flow_lag.unknown


def _falls_behind(flow: Table, flow_lag: Lag | None, samples: list[int]) -> str | None:
    if flow_lag is None or not trend.falls_behind(flow, flow_lag, samples):
        return None
    minutes = lag_history.TREND_SECONDS // 60
    return f"falls behind: {samples[0]:,} unread {minutes} minutes ago, {samples[-1]:,} now"


def _expires(flow_lag: Lag | None) -> str | None:
    expiry = flow_lag.expires if flow_lag else None
    if expiry is None or not expiry.is_soon or expiry.expires_in_seconds is None:
        return None
    hours = expiry.expires_in_seconds / 3600
    partition = f"topic '{expiry.topic}', partition {expiry.partition},"
    return f"Kafka deletes unread records of {partition} in {hours:.1f} h: {expiry.why}"
