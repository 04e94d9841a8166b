"""Imports OpenLineage's client only on use, because its import takes long."""

import importlib

from include.catalog import Catalog


def emit_events(tables: Catalog, url: str | None = None) -> dict[str, str]:
    """Calls `include.monitoring.lineage.emit_events`."""
    outcomes: dict[str, str] = importlib.import_module("include.monitoring.lineage").emit_events(tables, url)
    return outcomes
