"""The command `lineage`: sends OpenLineage events of each flow's newest batch."""

import argparse
from typing import Any

from include import catalog
from include.monitoring.lineage_loader import emit_events


def add(commands: Any) -> None:
    """Adds the command `lineage`."""
    parser = commands.add_parser("lineage", help="tell OpenLineage of each flow's newest batch, once")
    parser.add_argument("--url", help="of the receiver; else OPENLINEAGE_URL, else the file lineage/events.ndjson")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    outcomes = emit_events(catalog.load(), arguments.url)
    print("\n".join(f"{flow}: {batch}" for flow, batch in outcomes.items()) or "nothing new to tell")
