"""Runs the commands of `include.cli`: python -m include.ledger COMMAND."""

from include.cli.ledger import main
from include.errors import report

if __name__ == "__main__":
    report(main)
