"""What Prometheus is to know of flows and tables: docs/metrics.md describes each name."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from include.catalog import Catalog
from include.monitoring import status
from include.monitoring.lag_trend import Direction
from include.monitoring.source_snapshot import TIMEOUT_SECONDS
from include.monitoring.status import FlowStatus

WORKS = ("HEALTHY", "LAGGING", "REJECTING", "NOT FRESH", "WAITING")
FLOW, TABLE = ("flow",), ("table",)


class Collector:
    """Looks anew at each scrape. What is not known has no sample, rather than a wrong one."""

    def __init__(self, tables: Catalog) -> None:
        self.tables = tables

    def describe(self) -> list[Metric]:
        """Nothing, so that registering it does not look."""
        return []

    def collect(self) -> Iterator[Metric]:
        found = status.look(self.tables, TIMEOUT_SECONDS)
        yield from _flows(found)
        yield from self._tables(found)

    def _tables(self, found: list[FlowStatus]) -> Iterator[Metric]:
        fresh = {one.freshness.table: one.freshness for one in found}
        ages = {name: one.seconds for name, one in fresh.items()}
        promises = {name: one.promised_seconds for name, one in fresh.items()}
        yield _gauge("sluice_table_age_seconds", "age of the oldest thing it has yet to show", TABLE, ages)
        yield _gauge("sluice_table_promised_age_seconds", "its fresh_minutes", TABLE, promises)
        stored = {name: status.rows_or_none(name) for name in self.tables.tables}
        kept = {one.name: status.rows_or_none(one.quarantine) for one in self.tables.tables.values()}
        yield _gauge("sluice_table_rows", "rows in its newest version", TABLE, stored)
        yield _gauge("sluice_quarantine_rows", "rows in its quarantine", TABLE, kept)


def _flows(found: list[FlowStatus]) -> Iterator[Metric]:
    def gauge(name: str, help: str, values: dict[str, float | None]) -> Metric:
        return _gauge(f"sluice_flow_{name}", help, FLOW, values)

    up = {one.flow: None if one.wanted is None else float(one.state in WORKS) for one in found}
    wanted = {one.flow: None if one.wanted is None else float(one.wanted == "running") for one in found}
    yield gauge("up", "1 while it works or waits for something, else 0", up)
    yield gauge("wanted", "1 where it is to run, else 0", wanted)
    for unit in ("versions", "files", "bytes", "rows", "seconds"):
        values = {one.flow: getattr(one.lag, unit) for one in found}
        yield gauge(f"lag_{unit}", f"unread {unit} of its source" if unit != "seconds" else "age of the oldest", values)
    yield _offsets(found)
    expires = {one.flow: one.lag.expires.expires_in_seconds if one.lag.expires else None for one in found}
    yield gauge("loss_in_seconds", "until Kafka deletes its first unread record", expires)
    in_flight: dict[str, float | None] = {one.flow: float(one.in_flight is not None) for one in found}
    yield gauge("batch_in_flight", "1 while a batch is planned and not committed", in_flight)
    yield _verdicts(found)
    soon = {one.flow: one.trend.caught_up_in_seconds for one in found}
    yield gauge("caught_up_in_seconds", "until nothing is unread, while it catches up", soon)


def _offsets(found: list[FlowStatus]) -> Metric:
    family = GaugeMetricFamily(
        "sluice_flow_lag_offsets", "unread offsets of a partition", labels=("flow", "topic", "partition")
    )
    for one in found:
        for topic, partitions in (one.lag.offsets or {}).items():
            for partition, count in partitions.items():
                family.add_metric((one.flow, topic, str(partition)), count)
    return family


def _verdicts(found: list[FlowStatus]) -> Metric:
    family = GaugeMetricFamily("sluice_flow_trend", "1 for the verdict that holds", labels=("flow", "verdict"))
    for one in found:
        for verdict in Direction:
            family.add_metric((one.flow, verdict), float(one.trend.verdict is verdict))
    return family


def _gauge(name: str, help: str, labels: tuple[str, ...], values: dict[str, Any]) -> Metric:
    family = GaugeMetricFamily(name, help, labels=labels)
    for label, value in values.items():
        if value is not None:
            family.add_metric((label,), value)
    return family


def registry(tables: Catalog) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(Collector(tables))
    return made
