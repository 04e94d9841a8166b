"""The command `verify`: what was consumed against what was written."""

import argparse
import getpass
import json
from collections.abc import Iterable
from dataclasses import asdict

from include import catalog
from include.control import accepted_differences
from include.control.store import database
from include.errors import LedgerMismatch, UsageError
from include.ledger.verify import Verification, lines, verify
from include.settings import settings
from include.spec import Table


def add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    parser = commands.add_parser("verify", help="what was consumed against what was written; fails at a difference")
    parser.add_argument("table", nargs="*", help="these only; without one, all that are stored")
    parser.add_argument("--accept", metavar="KEY", action="append", help="a difference of the one table that is named")
    parser.add_argument("--reason", metavar="TEXT", help="why it is accepted, for the audit")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    tables = catalog.load()
    named = [tables.table(name) for name in arguments.table]
    chosen = named or [stored for stored in tables.tables.values() if settings().is_stored(stored.name)]
    if arguments.accept:
        _accept(named, arguments.accept, arguments.reason)
    results: list[Verification] = []
    differences: list[tuple[Table, LedgerMismatch]] = []
    for table in chosen:
        try:
            results.append(verify(table))
        except LedgerMismatch as error:
            differences += [(table, difference) for difference in error.differences]
        else:
            if not arguments.json:
                print("\n".join(lines(results[-1])), flush=True)
    sentences = [f"{one} ({_remedy(table, one)})" for table, one in differences]
    if arguments.json:
        document = {"tables": [asdict(result) for result in results], "difference": "\n".join(sentences) or None}
        listed = [{"table": table.name, "key": one.key, "difference": str(one)} for table, one in differences]
        print(json.dumps({**document, "differences": listed}, indent=2))
    if sentences:
        raise LedgerMismatch("\nsluice: ".join(sentences))


def _remedy(table: Table, difference: LedgerMismatch) -> str:
    return f"docs/runbooks/differs.md; once it is known: verify {table.name} --accept {difference.key} --reason '...'"


def _accept(named: list[Table], keys: Iterable[str], reason: str | None) -> None:
    """Raises UsageError for what no verification of the table finds now."""
    if len(named) != 1 or not reason:
        raise UsageError("--accept is for differences of one table: name the table, and write --reason why")
    try:
        verify(named[0])
        found: dict[str, LedgerMismatch] = {}
    except LedgerMismatch as error:
        found = {difference.key: difference for difference in error.differences}
    for key in keys:
        if key not in found:
            raise UsageError(f"{named[0].name} has no difference '{key}': verify {named[0].name} lists them")
        engine = database.connect(settings().control_url)
        accepted_differences.accept(engine, named[0].name, key, str(found[key]), getpass.getuser(), reason)
