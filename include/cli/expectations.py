"""The command `expectations`: which rules the rows of a table broke."""

import argparse
import json
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from include import catalog
from include.ledger import change_outcomes
from include.monitoring.row_outcomes import Batch, batches, rules


def add(commands: Any) -> None:
    """Adds the command `expectations`. commands: what `add_subparsers` returned."""
    parser = commands.add_parser(
        "expectations", help="how many rows broke each rule, and what became of each batch's rows"
    )
    parser.add_argument("table")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="of the newest N batches (20)")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    table = catalog.load().owner(arguments.table)
    newest = batches(table, arguments.limit)
    checked_rules = rules(table, newest)
    if arguments.json:
        as_json = [{**asdict(rule), "pass_rate": rule.pass_rate} for rule in checked_rules]
        print(
            json.dumps(
                {"table": table.name, "rules": as_json, "batches": [asdict(batch) for batch in newest]}, indent=2
            )
        )
        return
    for rule in checked_rules:
        rate = "not judged yet" if rule.pass_rate is None else f"{rule.pass_rate:.2%} of {rule.rows:,} rows pass"
        print(f"{rule.name} ({rule.otherwise or 'declared no more'}): {rate}, {rule.broke:,} broke it")
    print("\n".join(_batch_line(batch) for batch in newest) or f"no batch of {table.name} has counted its rows yet")


def _batch_line(batch: Batch) -> str:
    committed_at = datetime.fromtimestamp(batch.at, UTC)
    broke = ", ".join(f"{count:,} broke '{name}'" for name, count in batch.broke.items() if count)
    kept = [f"{batch.written:,} written", f"{batch.duplicates:,} duplicates"]
    return (
        f"{batch.name}  {committed_at:%Y-%m-%d %H:%M:%S}Z  version {batch.version}: "
        f"{batch.read:,} read = {' + '.join(change_outcomes.words(batch.outcomes) if batch.outcomes else kept)} + "
        f"{batch.quarantined:,} quarantined + {batch.dropped:,} dropped{'; ' if broke else ''}{broke}"
    )
