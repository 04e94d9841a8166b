"""Imports OpenLineage's client only on use, because its import takes long."""

import importlib

from include.catalog import Catalog
from include.delta.table_logs import TableLogs


def emit_events(tables: Catalog, url: str | None = None, logs: TableLogs | None = None) -> dict[str, str]:
    """Calls `include.monitoring.lineage.emit_events`."""
    outcomes: dict[str, str] = importlib.import_module("include.monitoring.lineage").emit_events(tables, url, logs)
    return outcomes
