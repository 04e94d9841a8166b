"""The command `lineage`: tells OpenLineage of each flow's newest batch."""

import argparse
from typing import Any

from include import catalog
from include.monitoring.lineage_loader import tell


def add(commands: Any) -> None:
    """The command `lineage`."""
    parser = commands.add_parser("lineage", help="tell OpenLineage of each flow's newest batch, once")
    parser.add_argument("--url", help="of the receiver; else OPENLINEAGE_URL, else the file lineage/events.ndjson")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    told = tell(catalog.load(), arguments.url)
    print("\n".join(f"{flow}: {batch}" for flow, batch in told.items()) or "nothing new to tell")
