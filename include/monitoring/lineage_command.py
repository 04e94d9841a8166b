"""The command `lineage`. It alone loads OpenLineage's client, which takes half as long again as all the others need."""

import argparse
import importlib
from typing import Any

from include import catalog
from include.catalog import Catalog


def tell(tables: Catalog, url: str | None = None) -> dict[str, str]:
    """As `include.monitoring.lineage.tell`."""
    found: dict[str, str] = importlib.import_module("include.monitoring.lineage").tell(tables, url)
    return found


def add(commands: Any) -> None:
    """The command `lineage`."""
    parser = commands.add_parser("lineage", help="tell OpenLineage of each flow's newest batch, once")
    parser.add_argument("--url", help="of the receiver; else OPENLINEAGE_URL, else the file lineage/events.ndjson")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    told = tell(catalog.load(), arguments.url)
    print("\n".join(f"{flow}: {batch}" for flow, batch in told.items()) or "nothing new to tell")
