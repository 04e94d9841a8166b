"""The command `rebuild`: what a reset of a checkpoint would do."""

import argparse
import json
from dataclasses import asdict

from include import catalog
from include.recovery.reset_preview import plan


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("rebuild", help="what `reset checkpoint` would do now; nothing is written")
    parser.add_argument("flow")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    preview = plan(catalog.load().flow(arguments.flow))
    print(json.dumps(asdict(preview), indent=2) if arguments.json else "\n".join(preview.lines()))
