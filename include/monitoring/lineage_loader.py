"""Imports OpenLineage's client only on use, because its import takes long."""

import importlib

from include.catalog import Catalog


def emit_events(tables: Catalog, url: str | None = None) -> dict[str, str]:
    """Calls `include.monitoring.lineage.tell`."""
    outcomes: dict[str, str] = importlib.import_module("include.monitoring.lineage").tell(tables, url)
    return outcomes
