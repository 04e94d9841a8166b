"""The command `mirror`: shows Kafka's tools how far flows are."""

import argparse
from typing import Any

from include import catalog
from include.monitoring.consumer_groups import group, mirror


def add(commands: Any) -> None:
    """The command `mirror`."""
    parser = commands.add_parser("mirror", help="show Kafka's tools how far flows are, as groups sluice.<flow>")
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> None:
    told = mirror(catalog.load())
    for flow, why_not in told.items():
        print(f"{group(flow)}: {why_not or 'mirrored'}")
    if not told:
        print("nothing to mirror: no flow has read from Kafka yet")
