"""Looks, without a JVM, at what was done to the tables and what is to be done, and keeps old versions for a reader:

python -m include.ledger status [--json]
python -m include.ledger graph [--json]
python -m include.ledger metrics [--port N]
python -m include.ledger mirror
python -m include.ledger lineage [--url URL]
python -m include.ledger windows [TABLE] [--limit N] [--json]
python -m include.ledger plan TABLE [--json]
python -m include.ledger backfills [TABLE] [--limit N] [--json]
python -m include.ledger rewind TABLE MOMENT [--json]
python -m include.ledger rewinds [--limit N] [--json]
python -m include.ledger expectations TABLE [--limit N] [--json]
python -m include.ledger quarantine TABLE [--limit N] [--json]
python -m include.ledger inspect TABLE [--flow FLOW] [--limit N] [--json]
python -m include.ledger verify [TABLE ...] [--accept KEY --reason TEXT] [--json]
python -m include.ledger explain TABLE --version N | TABLE --file NAME | --topic T --partition P --offset O [--json]
python -m include.ledger rebuild FLOW [--json]
python -m include.ledger progress FLOW [--limit N] [--json]
python -m include.ledger gather
python -m include.ledger hold TABLE --version N --hours H --name WHO
python -m include.ledger release-hold TABLE --name WHO
"""

import argparse
import sys
from importlib import import_module

from include.errors import SluiceError
from include.lake import outages

# The module of each command. Only the module of the requested command is imported: all of them take a second.
COMMANDS = {
    "status": "status",
    "graph": "graph",
    "inspect": "inspect",
    "verify": "verify",
    "explain": "explain",
    "rebuild": "rebuild",
    "progress": "progress",
    "gather": "progress",
    "expectations": "expectations",
    "quarantine": "quarantine",
    "windows": "windows",
    "plan": "windows",
    "hold": "windows",
    "release-hold": "windows",
    "backfills": "backfills",
    "rewind": "rewind",
    "rewinds": "rewind",
    "metrics": "metrics",
    "mirror": "mirror",
    "lineage": "lineage",
}


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m include.ledger", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(required=True)
    requested = [COMMANDS[word] for word in sys.argv[1:2] if word in COMMANDS]
    for module in dict.fromkeys(requested or COMMANDS.values()):
        import_module(f"include.cli.{module}").add(commands)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except SluiceError:
        raise
    except Exception as error:
        # Each library has its own words for a store that is away.
        if outage := outages.of_lake():
            raise outage from error
        raise
