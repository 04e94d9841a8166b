"""Requests to S3 of small batches and of idle minutes: python -m benchmarks.s3.requests [--small].

It has a broker and a store of its own. A driver carries one record a batch from a topic to bronze, and on to silver.
The lake lies in the store, whose access log is counted. The figures do not depend on the load of the machine.
"""

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.jobs.sluice import TABLES
from benchmarks.s3.request_log import RequestLog
from benchmarks.support import readings
from benchmarks.support.engine import Engine, broker, free_port, homes
from benchmarks.support.measure import OURS, Figure, Row, record
from include.errors import report
from include.local.broker import create_topic
from include.local.object_store import ObjectStore

BUCKET, LAKE = "bench", "lake"
TOPIC = "readings"
# USD for a million requests: Amazon's list price of S3 Standard in us-east-1.
PRICES = {"LIST": 5.0, "PUT": 5.0, "COPY": 5.0, "GET": 0.4, "HEAD": 0.4, "DELETE": 0.0}
WARM_BATCHES = 3
# With the start of a driver, on a busy machine.
SECONDS_MOST = 900
# A driver's start, its look after the last batch, and pauses that become longer.
SETTLE_SECONDS = 30
BOTH = ("bronze", "silver")


class StoreEngine(Engine):
    """A driver whose lake lies in a store on this machine, which keeps each object as a file."""

    def __init__(self, home: Path, kafka: str, store: ObjectStore) -> None:
        super().__init__(OURS, home, "sluice.py", kafka)
        self._lake = store.directory / "data" / BUCKET / LAKE

    def checkpoint(self, flow: str) -> Path:
        # Reading the file of an object is no request.
        return self._lake / "_checkpoints" / flow / "1"


class Topic:
    """The records, each in a batch of its own."""

    def __init__(self, kafka: str) -> None:
        create_topic(kafka, TOPIC, 1)
        self._kafka, self._sent = kafka, 0

    def carry(self, engine: Engine, layers: tuple[str, ...], records: int) -> None:
        flow = TABLES[layers[-1]].flow
        for _ in range(records):
            before = engine.batches(flow)
            readings.send(self._kafka, TOPIC, self._sent, 1)
            self._sent += 1
            engine.wait_for_batches(flow, before + 1, SECONDS_MOST)


@contextmanager
def driver(home: Path, kafka: str, store: ObjectStore, layers: tuple[str, ...], fast: str = "on") -> Iterator[Engine]:
    os.environ |= {**store.client_variables(), "SLUICE_LAKE": f"s3a://{BUCKET}/{LAKE}", "SLUICE_FAST_PATH": fast}
    engine = StoreEngine(home, kafka, store)
    try:
        engine.start(*layers)
        yield engine
    finally:
        engine.end()


def measure(folder: Path, kafka: str, store: ObjectStore, arguments: argparse.Namespace) -> Iterator[Row]:
    """Print the requests of each measurement, and yield their sum and their price."""
    topic, log = Topic(kafka), RequestLog(store)

    def batches(engine: Engine, layers: tuple[str, ...], what: str) -> Iterator[Row]:
        topic.carry(engine, layers, WARM_BATCHES)
        log.take()
        topic.carry(engine, layers, arguments.batches)
        yield from rows(what, log.take(), arguments.batches)

    def idle(what: str) -> Iterator[Row]:
        time.sleep(arguments.settle)
        log.take()
        time.sleep(arguments.seconds)
        yield from rows(what, log.take(), arguments.seconds / 60)

    print(f"| what | {' | '.join(PRICES)} |\n|---{'|---' * len(PRICES)}|", flush=True)
    with driver(folder / "bronze", kafka, store, ("bronze",)) as engine:
        yield from batches(engine, ("bronze",), "a batch of bronze")
    with driver(folder / "both", kafka, store, BOTH) as engine:
        yield from batches(engine, BOTH, "a batch of bronze and one of silver")
        yield from idle("an idle minute of both")
    with driver(folder / "wide", kafka, store, BOTH, fast="off") as engine:
        yield from batches(engine, BOTH, "the same, by Spark's writers")
    with driver(folder / "silver", kafka, store, ("silver",)):
        yield from idle("an idle minute of silver, bronze written elsewhere")


def rows(what: str, counts: Counter[str], units: float) -> Iterator[Row]:
    print(f"| {what} | {' | '.join(f'{counts[kind] / units:.1f}' for kind in PRICES)} |", flush=True)
    price = sum(PRICES.get(kind, 0.0) * count for kind, count in counts.items()) / units
    yield Row(f"{what}: requests", "requests", {OURS: Figure((sum(counts.values()) / units,))})
    yield Row(f"{what}: price of a million", "USD", {OURS: Figure((price,))})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.s3.requests", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20, help="that count, default 20")
    parser.add_argument("--seconds", type=float, default=60, help="of the idle time, default 60")
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds before that")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.batches, arguments.seconds, arguments.settle = 2, 5, 5
    environment = dict(os.environ)
    try:
        with (
            homes() as folder,
            ObjectStore(folder / "store", free_port()).running() as store,
            broker(folder) as kafka,
        ):
            store.create_bucket(BUCKET)
            record(*measure(folder, kafka, store, arguments))
    finally:
        # Other benchmarks of `make bench` have their lakes on the disk.
        os.environ.clear()
        os.environ.update(environment)


if __name__ == "__main__":
    report(main)
