"""The command `mirror`: shows Kafka's tools how far flows are."""

import argparse
from typing import Any

from include import catalog
from include.monitoring.consumer_groups import mirror


def add(commands: Any) -> None:
    """Adds the command `mirror`."""
    parser = commands.add_parser("mirror", help="show Kafka's tools how far flows are, as groups sluice.<flow>")
    parser.set_defaults(run=_run)


def _run(_: argparse.Namespace) -> None:
    outcomes = mirror(catalog.load())
    for mirrored in outcomes.values():
        print(f"{mirrored.group}: {mirrored.refusal or 'mirrored'}")
    if not outcomes:
        print("nothing to mirror: no flow has read from Kafka yet")
