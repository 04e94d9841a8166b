"""The command `verify`: what was consumed against what was written."""

import argparse
import json
from dataclasses import asdict

from include import catalog
from include.errors import Unbalanced
from include.ledger.verify import Verification, lines, verify
from include.settings import settings


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    found = commands.add_parser("verify", help="what was consumed against what was written; fails at a difference")
    found.add_argument("table", nargs="*", help="these only; without one, all that are stored")
    found.add_argument("--json", action="store_true", help="for programs")
    found.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    tables = catalog.load()
    named = [tables.table(name) for name in arguments.table]
    chosen = named or [one for one in tables.tables.values() if settings().is_stored(one.name)]
    verdicts: list[Verification] = []
    try:
        for table in chosen:
            verdicts.append(verify(table))
            if not arguments.json:
                print("\n".join(lines(verdicts[-1])), flush=True)
    except Unbalanced as difference:
        if arguments.json:
            print(json.dumps({"tables": [asdict(one) for one in verdicts], "difference": str(difference)}, indent=2))
        raise
    if arguments.json:
        print(json.dumps({"tables": [asdict(one) for one in verdicts], "difference": None}, indent=2))
