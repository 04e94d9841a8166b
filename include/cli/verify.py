"""The command `verify`: what was consumed against what was written."""

import argparse
import json
from dataclasses import asdict

from include import catalog
from include.errors import LedgerMismatch
from include.ledger.verify import Verification, lines, verify
from include.settings import settings


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("verify", help="what was consumed against what was written; fails at a difference")
    parser.add_argument("table", nargs="*", help="these only; without one, all that are stored")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    tables = catalog.load()
    named = [tables.table(name) for name in arguments.table]
    chosen = named or [stored for stored in tables.tables.values() if settings().is_stored(stored.name)]
    results: list[Verification] = []
    try:
        for table in chosen:
            results.append(verify(table))
            if not arguments.json:
                print("\n".join(lines(results[-1])), flush=True)
    except LedgerMismatch as difference:
        if arguments.json:
            print(
                json.dumps(
                    {"tables": [asdict(result) for result in results], "difference": str(difference)},
                    indent=2,
                )
            )
        raise
    if arguments.json:
        print(json.dumps({"tables": [asdict(result) for result in results], "difference": None}, indent=2))
