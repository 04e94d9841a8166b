"""Exports the metrics of flows and tables for Prometheus. docs/reference/metrics.md describes each name."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from include.catalog import Catalog
from include.flows.lag import TIMEOUT_SECONDS
from include.monitoring import status
from include.monitoring.status import FlowStatus
from include.monitoring.trend import Direction

UP_STATES = ("HEALTHY", "LAGGING", "REJECTING", "NOT FRESH", "WAITING")
FLOW, TABLE = ("flow",), ("table",)


class Collector:
    """Collects the current values at each scrape. Unknown values have no sample."""

    def __init__(self, tables: Catalog) -> None:
        self.tables = tables

    def describe(self) -> list[Metric]:
        """Returns nothing, so that the registration does not collect."""
        return []

    def collect(self) -> Iterator[Metric]:
        statuses = status.statuses(self.tables, TIMEOUT_SECONDS)
        yield from _flow_metrics(statuses)
        yield from self._tables(statuses)

    def _tables(self, statuses: list[FlowStatus]) -> Iterator[Metric]:
        freshness_by_table = {flow_status.freshness.table: flow_status.freshness for flow_status in statuses}
        ages = {name: freshness.seconds for name, freshness in freshness_by_table.items()}
        promises = {name: freshness.promised_seconds for name, freshness in freshness_by_table.items()}
        yield _gauge("sluice_table_age_seconds", "age of the oldest thing it has yet to show", TABLE, ages)
        yield _gauge("sluice_table_promised_age_seconds", "its fresh_minutes", TABLE, promises)
        stored = {name: status.rows_or_none(name) for name in self.tables.tables}
        quarantined = {table.name: status.rows_or_none(table.quarantine) for table in self.tables.tables.values()}
        yield _gauge("sluice_table_rows", "rows in its newest version", TABLE, stored)
        yield _gauge("sluice_quarantine_rows", "rows in its quarantine", TABLE, quarantined)


def _flow_metrics(statuses: list[FlowStatus]) -> Iterator[Metric]:
    def gauge(name: str, help: str, values: dict[str, float | None]) -> Metric:
        return _gauge(f"sluice_flow_{name}", help, FLOW, values)

    up = {
        flow_status.flow: None if flow_status.wanted is None else float(flow_status.state in UP_STATES)
        for flow_status in statuses
    }
    wanted = {
        flow_status.flow: None if flow_status.wanted is None else float(flow_status.wanted == "running")
        for flow_status in statuses
    }
    yield gauge("up", "1 while it works or waits for something, else 0", up)
    yield gauge("wanted", "1 where it is to run, else 0", wanted)
    for unit in ("versions", "files", "bytes", "rows", "seconds"):
        values = {flow_status.flow: getattr(flow_status.lag, unit) for flow_status in statuses}
        yield gauge(f"lag_{unit}", f"unread {unit} of its source" if unit != "seconds" else "age of the oldest", values)
    yield _offset_metric(statuses)
    expires = {
        flow_status.flow: flow_status.lag.expires.expires_in_seconds if flow_status.lag.expires else None
        for flow_status in statuses
    }
    yield gauge("loss_in_seconds", "until Kafka deletes its first unread record", expires)
    in_flight: dict[str, float | None] = {
        flow_status.flow: float(flow_status.in_flight is not None) for flow_status in statuses
    }
    yield gauge("batch_in_flight", "1 while a batch is planned and not committed", in_flight)
    yield _trend_metric(statuses)
    seconds_left = {flow_status.flow: flow_status.trend.caught_up_in_seconds for flow_status in statuses}
    yield gauge("caught_up_in_seconds", "until nothing is unread, while it catches up", seconds_left)


def _offset_metric(statuses: list[FlowStatus]) -> Metric:
    family = GaugeMetricFamily(
        "sluice_flow_lag_offsets", "unread offsets of a partition", labels=("flow", "topic", "partition")
    )
    for flow_status in statuses:
        for topic, partitions in (flow_status.lag.offsets or {}).items():
            for partition, count in partitions.items():
                family.add_metric((flow_status.flow, topic, str(partition)), count)
    return family


def _trend_metric(statuses: list[FlowStatus]) -> Metric:
    family = GaugeMetricFamily("sluice_flow_trend", "1 for the verdict that holds", labels=("flow", "verdict"))
    for flow_status in statuses:
        for verdict in Direction:
            family.add_metric((flow_status.flow, verdict), float(flow_status.trend.verdict is verdict))
    return family


def _gauge(name: str, help: str, labels: tuple[str, ...], values: dict[str, Any]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=labels)
    for label, value in values.items():
        if value is not None:
            family.add_metric((label,), value)
    return family


def registry(tables: Catalog) -> CollectorRegistry:
    collectors = CollectorRegistry()
    collectors.register(Collector(tables))
    return collectors
