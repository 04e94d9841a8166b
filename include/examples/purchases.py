"""Buys, moves and corrects in the database of the shop, in real time until SIGTERM.

python -m include.examples.purchases --rate 0.2
"""

import argparse
import os
import random
import secrets
import signal
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from types import FrameType
from typing import Any, LiteralString

import psycopg

from include import logs
from include.errors import report
from include.examples import database
from include.examples.views import USERS

COUNTRIES = ("Austria", "Denmark", "France", "Italy", "Poland", "Spain")
# Each kind occurs in about one change of twenty. All others are good purchases.
KINDS = ("late", "no amount", "corrected", "cancelled", "moves", "leaves", "returns")
KIND_SHARE = 0.05
# A shop that is offline sends its purchases later.
LATE_SECONDS = (1_200, 5_400)
# What an empty shop has sold in the two hours before.
PAST_CHANGES, PAST_SECONDS = 100, 7_200
RECENT = 20
# Number of page views and events of trackers for each change.
EVENTS_PER_CHANGE = 100

BUY: LiteralString = "INSERT INTO purchases (user_id, amount, time) VALUES (%s, %s, %s)"
CORRECT: LiteralString = "UPDATE purchases SET amount = %s WHERE user_id = %s AND time = %s"
CANCEL: LiteralString = "DELETE FROM purchases WHERE user_id = %s AND time = %s"
MOVE: LiteralString = "UPDATE customers SET country = %s WHERE user_id = %s"
LEAVE: LiteralString = "DELETE FROM customers WHERE user_id = %s"
RETURN: LiteralString = "INSERT INTO customers VALUES (%s, %s) ON CONFLICT DO NOTHING"


@dataclass(frozen=True)
class Change:
    """A statement with its values. `kind` is one of `KINDS`, or "good"."""

    statement: LiteralString
    values: tuple[Any, ...]
    kind: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    rate = float(os.environ.get("SLUICE_EVENTS_PER_SECOND") or "20") / EVENTS_PER_CHANGE
    parser.add_argument("--rate", type=float, default=rate, help="changes a second")
    parser.add_argument("--seed", type=int, help="the same seed gives the same changes; without it, new ones each time")
    arguments = parser.parse_args()
    logs.start()
    signal.signal(signal.SIGTERM, _exit)
    seed = secrets.randbits(64) if arguments.seed is None else arguments.seed
    logs.info(f"begins with --seed {seed}")
    connection = database.wait()
    open_shop(connection, seed)
    began_seconds = time.monotonic()
    for number, change in enumerate(changes(seed, sys.maxsize, datetime.now(UTC), arguments.rate)):
        time.sleep(max(began_seconds + number / arguments.rate - time.monotonic(), 0))
        connection = execute(connection, change)


def open_shop(connection: psycopg.Connection, seed: int) -> None:
    """Give an empty database its customers and the purchases of the past, in one transaction."""
    with connection.transaction():
        if connection.execute("SELECT 1 FROM customers LIMIT 1").fetchone():
            return
        with connection.cursor() as cursor:
            cursor.executemany(RETURN, list(customers(seed)))
            past = datetime.now(UTC) - timedelta(seconds=PAST_SECONDS)
            for change in changes(seed + 1, PAST_CHANGES, past, PAST_CHANGES / PAST_SECONDS):
                # What had no amount then has none today, and is in the quarantine from the first minute on.
                if change.kind != "corrected":
                    cursor.execute(change.statement, change.values)


def execute(connection: psycopg.Connection, change: Change) -> psycopg.Connection:
    """Make the change, however often the database is away meanwhile. Returns the connection that did it."""
    while True:
        try:
            connection.execute(change.statement, change.values)
            return connection
        except psycopg.OperationalError as error:
            logs.warning(f"the database of the shop is away ({str(error).strip().splitlines()[0]}), and is tried again")
            connection.close()
            connection = database.wait()


def customers(seed: int) -> Iterator[tuple[str, str]]:
    """Id and country of each customer: the users of the page views."""
    chance = random.Random(seed)
    return ((_user(number), chance.choice(COUNTRIES)) for number in range(USERS))


def changes(seed: int, count: int, start: datetime, per_second: float) -> Iterator[Change]:
    """Generate `count` changes from `start` (UTC) on, at a rate of `per_second`."""
    chance = random.Random(seed)
    # What a later change refers to: purchases by user and time, and users.
    wrong: list[tuple[str, datetime]] = []
    good: deque[tuple[str, datetime]] = deque(maxlen=RECENT)
    gone: list[str] = []
    for number in range(count):
        kind, user = _kind(chance), _user(chance.randrange(USERS))
        moment = start + timedelta(seconds=number / per_second)
        referred = {"corrected": wrong, "cancelled": good, "returns": gone}
        if not referred.get(kind, True):
            kind = "good"
        match kind:
            case "corrected":
                yield Change(CORRECT, (_amount(chance), *wrong.pop(0)), kind)
            case "cancelled":
                yield Change(CANCEL, good.popleft(), kind)
            case "moves":
                yield Change(MOVE, (chance.choice(COUNTRIES), user), kind)
            case "leaves":
                gone.append(user)
                yield Change(LEAVE, (user,), kind)
            case "returns":
                yield Change(RETURN, (gone.pop(), chance.choice(COUNTRIES)), kind)
            case "no amount":
                wrong.append((user, moment))
                yield Change(BUY, (user, Decimal(0), moment), kind)
            case _:
                if kind == "late":
                    moment -= timedelta(seconds=chance.uniform(*LATE_SECONDS))
                good.append((user, moment))
                yield Change(BUY, (user, _amount(chance), moment), kind)


def _kind(chance: random.Random) -> str:
    index = int(chance.random() / KIND_SHARE)
    return KINDS[index] if index < len(KINDS) else "good"


def _user(number: int) -> str:
    return f"user-{number:03d}"


def _amount(chance: random.Random) -> Decimal:
    return Decimal(chance.randint(99, 9_999)) / 100


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    report(main)
