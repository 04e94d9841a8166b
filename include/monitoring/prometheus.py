"""Exports the metrics of flows and tables for Prometheus. docs/reference/metrics.md describes each name.

A scrape reads the supervisor's newest snapshot, which costs one query. Where there is none, or it is old, most values
are measured at the scrape, as the supervisor would.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from sqlalchemy import Engine

from include.catalog import Catalog
from include.control.store import database
from include.errors import SluiceError
from include.flows.lag import TIMEOUT_SECONDS
from include.monitoring import flow_snapshots, snapshot, status
from include.monitoring.snapshot import PHASES, FlowSnapshot, Snapshot, TableSnapshot
from include.monitoring.trend import Direction
from include.settings import settings

UP_STATES = ("HEALTHY", "LAGGING", "REJECTING", "NOT FRESH", "WAITING")
FLOW, TABLE = ("flow",), ("table",)
LAGS = {"versions": "versions", "files": "files", "bytes": "bytes", "rows": "rows", "seconds": "lag_seconds"}


class Collector:
    """Collects the current values at each scrape. Unknown values have no sample."""

    def __init__(self, tables: Catalog) -> None:
        self.tables = tables

    def describe(self) -> list[Metric]:
        """Returns nothing, so that the registration does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        stored, age_seconds = _stored()
        current = stored if stored and age_seconds is not None and age_seconds <= snapshot.OLD_SECONDS else None
        current = current or _measured(self.tables)
        yield from _flow_metrics(current.flows)
        yield from _batch_metrics(current.flows)
        yield from _table_metrics(current.tables)
        yield from _platform_metrics(stored, age_seconds)


def _stored() -> tuple[Snapshot | None, float | None]:
    """Returns the newest snapshot and its age in seconds; None where there is none, or the database does not answer."""
    try:
        engine: Engine = database.connect(settings().control_url)
        found = snapshot.newest(engine)
        with database.reading(engine) as connection:
            now_seconds = database.now(connection)
    except SluiceError:
        return None, None
    return found, max(0.0, now_seconds - found.at) if found else None


def _measured(tables: Catalog) -> Snapshot:
    """Returns what can be measured here and now."""
    statuses, readers = status.statuses(tables, TIMEOUT_SECONDS), tables.readers
    nothing = flow_snapshots.Observed(0.0, {}, {}, {}, {}, {})
    flows = tuple(flow_snapshots.of_flow(readers[found.flow], found, nothing, (), False) for found in statuses)
    fresh = {found.table: found.freshness for found in statuses}
    listed = [
        TableSnapshot(
            table.name,
            rows=status.rows_or_none(table.name),
            quarantined=status.rows_or_none(table.quarantine),
        )
        for table in tables.tables.values()
    ]
    judged = [
        replace(table, age_seconds=of.seconds, promised_seconds=of.promised_seconds) if of else table
        for table in listed
        for of in [fresh.get(table.table)]
    ]
    return Snapshot(0.0, flows=flows, tables=tuple(judged))


def _flow_metrics(flows: Iterable[FlowSnapshot]) -> Iterator[Metric]:
    def gauge(name: str, help: str, values: Mapping[str, float | None]) -> Metric:
        return _gauge(f"sluice_flow_{name}", help, FLOW, values)

    flows = list(flows)
    up = {flow.flow: None if flow.wanted is None else float(flow.state in UP_STATES) for flow in flows}
    wanted = {flow.flow: None if flow.wanted is None else float(flow.wanted == "running") for flow in flows}
    yield gauge("up", "1 while it works or waits for something, else 0", up)
    yield gauge("wanted", "1 where it is to run, else 0", wanted)
    for unit, name in LAGS.items():
        values = {flow.flow: getattr(flow, name) for flow in flows}
        yield gauge(f"lag_{unit}", f"unread {unit} of its source" if unit != "seconds" else "age of the oldest", values)
    yield _offset_metric(flows)
    yield gauge(
        "loss_in_seconds",
        "until Kafka deletes its first unread record",
        {flow.flow: flow.loss_in_seconds for flow in flows},
    )
    in_flight = {flow.flow: float(flow.in_flight is not None) for flow in flows}
    yield gauge("batch_in_flight", "1 while a batch is planned and not committed", in_flight)
    yield _trend_metric(flows)
    seconds_left = {flow.flow: flow.caught_up_in_seconds for flow in flows}
    yield gauge("caught_up_in_seconds", "until nothing is unread, while it catches up", seconds_left)


def _batch_metrics(flows: Iterable[FlowSnapshot]) -> Iterator[Metric]:
    """What the batches of the last minute took. Only a snapshot has them."""

    def gauge(name: str, help: str, values: Mapping[str, float | None]) -> Metric:
        return _gauge(f"sluice_flow_{name}", help, FLOW, values)

    flows = list(flows)
    yield gauge("input_rows_per_second", "rows that it reads", {flow.flow: flow.rows_in_per_second for flow in flows})
    yield gauge(
        "output_rows_per_second", "rows that it writes", {flow.flow: flow.rows_out_per_second for flow in flows}
    )
    yield gauge("batch_input_rows", "rows that its newest batch read", {flow.flow: flow.rows_in for flow in flows})
    yield gauge("batch_output_rows", "rows that its newest batch wrote", {flow.flow: flow.rows_out for flow in flows})
    spent = {flow.flow: None if flow.batch_ms is None else flow.batch_ms / 1000 for flow in flows}
    yield gauge("batch_seconds", "what its newest batch took", spent)
    phases = GaugeMetricFamily(
        "sluice_flow_batch_phase_seconds", "what a phase of its newest batch took", labels=("flow", "phase")
    )
    for flow in flows:
        for phase in PHASES:
            if phase in flow.phases_ms:
                phases.add_metric((flow.flow, phase.removesuffix("_ms")), flow.phases_ms[phase] / 1000)
    yield phases
    yield gauge("restarts", "starts in 24 hours, after the first", {flow.flow: flow.restarts for flow in flows})


def _table_metrics(tables: Iterable[TableSnapshot]) -> Iterator[Metric]:
    tables = list(tables)

    def gauge(name: str, help: str, value: str) -> Metric:
        return _gauge(f"sluice_{name}", help, TABLE, {table.table: getattr(table, value) for table in tables})

    yield gauge("table_age_seconds", "age of the oldest thing it has yet to show", "age_seconds")
    yield gauge("table_promised_age_seconds", "its fresh_minutes", "promised_seconds")
    yield gauge("table_rows", "rows in its newest version", "rows")
    yield gauge("table_files", "data files of its newest version", "files")
    yield gauge("table_bytes", "bytes of these files", "bytes")
    yield gauge("quarantine_rows", "rows in its quarantine", "quarantined")


def _platform_metrics(stored: Snapshot | None, age_seconds: float | None) -> Iterator[Metric]:
    age = GaugeMetricFamily("sluice_snapshot_age_seconds", "since the supervisor last looked at everything")
    troubles = GaugeMetricFamily("sluice_troubles", "open troubles by kind", labels=("kind", "needs_person"))
    if stored and age_seconds is not None:
        age.add_metric((), age_seconds)
        counts: dict[tuple[str, str], int] = {}
        for trouble in stored.troubles:
            key = (str(trouble.kind), "yes" if trouble.needs_person else "no")
            counts[key] = counts.get(key, 0) + 1
        for key, count in counts.items():
            troubles.add_metric(key, count)
    yield age
    yield troubles


def _offset_metric(flows: Iterable[FlowSnapshot]) -> Metric:
    family = GaugeMetricFamily(
        "sluice_flow_lag_offsets", "unread offsets of a partition", labels=("flow", "topic", "partition")
    )
    for flow in flows:
        for topic, partitions in flow.offsets.items():
            for partition, count in partitions.items():
                family.add_metric((flow.flow, topic, partition), count)
    return family


def _trend_metric(flows: Iterable[FlowSnapshot]) -> Metric:
    family = GaugeMetricFamily("sluice_flow_trend", "1 for the verdict that holds", labels=("flow", "verdict"))
    for flow in flows:
        for verdict in Direction:
            family.add_metric((flow.flow, verdict), float(flow.trend == verdict))
    return family


def _gauge(name: str, help: str, labels: tuple[str, ...], values: Mapping[str, Any]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=labels)
    for label, value in values.items():
        if value is not None:
            family.add_metric((label,), value)
    return family


def registry(tables: Catalog) -> CollectorRegistry:
    collectors = CollectorRegistry()
    collectors.register(Collector(tables))
    return collectors
