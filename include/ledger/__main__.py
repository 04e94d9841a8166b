"""The command `sluice` by its old name: python -m include.ledger COMMAND."""

from functools import partial

from include.cli.main import main
from include.errors import report

if __name__ == "__main__":
    report(partial(main, "python -m include.ledger"))
