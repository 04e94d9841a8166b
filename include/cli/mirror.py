"""The command `mirror`: shows Kafka's tools how far flows are."""

import argparse
from typing import Any

from include import catalog
from include.monitoring.consumer_groups import group, mirror


def add(commands: Any) -> None:
    """Adds the command `mirror`."""
    parser = commands.add_parser("mirror", help="show Kafka's tools how far flows are, as groups sluice.<flow>")
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> None:
    outcomes = mirror(catalog.load())
    for flow, why_not in outcomes.items():
        print(f"{group(flow)}: {why_not or 'mirrored'}")
    if not outcomes:
        print("nothing to mirror: no flow has read from Kafka yet")
