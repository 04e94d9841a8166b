"""The command `rebuild`: what a reset of a checkpoint would do."""

import argparse
import json
from dataclasses import asdict

from include import catalog
from include.recovery.reset_preview import plan


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    found = commands.add_parser("rebuild", help="what `reset checkpoint` would do now; nothing is written")
    found.add_argument("flow")
    found.add_argument("--json", action="store_true", help="for programs")
    found.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    found = plan(catalog.load().flow(arguments.flow))
    print(json.dumps(asdict(found), indent=2) if arguments.json else "\n".join(found.lines()))
