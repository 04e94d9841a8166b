"""Drops a bank's daily files into the landing folder.

python -m include.examples.transactions --days 365 --every 5
"""

import argparse
import csv
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from types import FrameType

from include.errors import report
from include.settings import settings

FOLDER = "bank-transactions"
HEADER = ("date", "amount", "description")
BEGIN = date(2019, 8, 4)
PAY, PAY_DAYS = "500.00", 7
SHOPS = ("Uber Eats", "Movie Ticket", "Netflix", "ATM Withdrawal", "Groceries", 'Books, "used"', "Café\nCentral")
# Each kind of error occurs in about one file or row of twenty.
TROUBLE_SHARE = 0.05


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--days", type=int, default=365, help="how many daily files")
    parser.add_argument("--every", type=float, default=5, help="seconds from one to the next")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, _exit)
    folder = Path(settings().folder(FOLDER))
    for name, rows in files(arguments.seed, arguments.days):
        if not (folder / name).exists():
            write_file(folder, name, rows)
            time.sleep(arguments.every)
    # `make up` reports processes that end.
    signal.pause()


def files(seed: int, days: int) -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Generate the name and the rows of each daily file. Some files are a few days late."""
    chance = random.Random(seed)
    late: list[tuple[int, tuple[str, list[tuple[str, str, str]]]]] = []
    for number in range(days):
        day = BEGIN + timedelta(days=number)
        file = f"{day}_transactions.csv", list(_rows(chance, day, number))
        if chance.random() < TROUBLE_SHARE:
            late.append((number + chance.randint(1, 5), file))
        else:
            yield file
        yield from [late_file for due, late_file in late if due == number]
        late = [entry for entry in late if entry[0] > number]
    yield from [late_file for _, late_file in late]


def write_file(folder: Path, name: str, rows: list[tuple[str, str, str]]) -> None:
    """Write the file and rename it into place, so that readers see only complete files."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary_file = folder / f".{name}"
    with temporary_file.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([HEADER, *rows])
        file.flush()
        os.fsync(file.fileno())
    temporary_file.rename(folder / name)


def _rows(chance: random.Random, day: date, number: int) -> Iterator[tuple[str, str, str]]:
    if number % PAY_DAYS == 0:
        yield str(day), PAY, "Pay"
    for _ in range(chance.randint(1, 4)):
        amount = f"-{chance.randint(100, 6000) / 100:.2f}"
        if chance.random() < TROUBLE_SHARE:
            amount = chance.choice(("", "a lot", "12,50"))
        yield str(day), amount, chance.choice(SHOPS)


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    report(main)
