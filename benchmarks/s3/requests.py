"""Requests to S3 of small batches and of idle minutes: python -m benchmarks.s3.requests [--small].

It has a broker and a store of its own. A driver carries one record a batch from a topic to bronze, silver and gold. The
lake lies in the store, whose access log is counted. The figures do not depend on the load of the machine.
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

BUCKET = "bench"
TOPIC = "readings"
# USD for a million requests: Amazon's list price of S3 Standard in us-east-1.
PRICES = {"LIST": 5.0, "PUT": 5.0, "COPY": 5.0, "GET": 0.4, "HEAD": 0.4, "DELETE": 0.0}
# After its hundredth batch, a query deletes its oldest files.
WARM_BATCHES = 105
# A record a batch, of each flow, without pauses.
SINGLE = ("--rows", "1", "--files", "1", "--interval", "0.1")
# With the start of a driver, on a busy machine.
SECONDS_MOST = 900
# A driver's start, its look after the last batch, and pauses that become longer.
SETTLE_SECONDS = 30


class StoreEngine(Engine):
    """A driver whose lake lies in a store on this machine, which keeps each object as a file."""

    def __init__(self, home: Path, kafka: str, store: ObjectStore, name: str) -> None:
        super().__init__(OURS, home, "sluice.py", kafka)
        self._lake, self._kafka, self._sent = store.directory / "data" / BUCKET / name, kafka, 0
        self.topic = f"{TOPIC}-{name}"

    def checkpoint(self, flow: str) -> Path:
        # Reading the file of an object is no request.
        return self._lake / "_checkpoints" / flow / "1"

    def carry(self, layers: tuple[str, ...], times: int, records: int = 1) -> None:
        """Send records so many times, and wait each time for as many batches of the last layer."""
        flow = TABLES[layers[-1]].flow
        for _ in range(times):
            before = self.batches(flow)
            readings.send(self._kafka, self.topic, self._sent, records)
            self._sent += records
            self.wait_for_batches(flow, before + records, SECONDS_MOST)


@contextmanager
def driver(
    folder: Path, kafka: str, store: ObjectStore, name: str, *options: str, fast: str = "on"
) -> Iterator[StoreEngine]:
    """Runs a driver with a topic and a lake of this name. options: its layers, and how it runs."""
    os.environ |= {**store.client_variables(), "SLUICE_LAKE": f"s3a://{BUCKET}/{name}", "SLUICE_FAST_PATH": fast}
    engine = StoreEngine(folder / f"{name}-{options[0]}", kafka, store, name)
    try:
        engine.start(*options, "--topic", engine.topic)
        yield engine
    finally:
        engine.end()


def measure(folder: Path, kafka: str, store: ObjectStore, arguments: argparse.Namespace) -> Iterator[Row]:
    """Print the requests of each measurement, and yield their sum and their price."""
    log = RequestLog(store)

    def batches(what: str, name: str, *layers: str, fast: str = "on") -> Iterator[Row]:
        create_topic(kafka, f"{TOPIC}-{name}", 1)
        with driver(folder, kafka, store, name, *layers, *SINGLE, fast=fast) as engine:
            engine.carry(layers, 1, arguments.warm)
            log.take()
            engine.carry(layers, arguments.batches)
            yield from rows(what, log.take(), arguments.batches)

    def idle(what: str) -> Iterator[Row]:
        time.sleep(arguments.settle)
        log.take()
        time.sleep(arguments.seconds)
        yield from rows(what, log.take(), arguments.seconds / 60)

    print(f"| what | {' | '.join(PRICES)} |\n|---{'|---' * len(PRICES)}|", flush=True)
    yield from batches("a batch of bronze", "bronze", "bronze")
    yield from batches("a batch of bronze and one of silver", "both", "bronze", "silver")
    yield from batches("these, and one of an aggregate", "gold", "bronze", "silver", "gold")
    yield from batches("bronze and silver, by Spark's writers", "wide", "bronze", "silver", fast="off")
    create_topic(kafka, f"{TOPIC}-idle", 1)
    with driver(folder, kafka, store, "idle", "bronze", "silver") as engine:
        engine.carry(("bronze", "silver"), 1)
        yield from idle("an idle minute of bronze and silver")
    with driver(folder, kafka, store, "idle", "silver"):
        yield from idle("an idle minute of silver, bronze written elsewhere")


def rows(what: str, counts: Counter[str], units: float) -> Iterator[Row]:
    print(f"| {what} | {' | '.join(f'{counts[kind] / units:.1f}' for kind in PRICES)} |", flush=True)
    price = sum(PRICES.get(kind, 0.0) * count for kind, count in counts.items()) / units
    yield Row(f"{what}: requests", "requests", {OURS: Figure((sum(counts.values()) / units,))})
    yield Row(f"{what}: price of a million", "USD", {OURS: Figure((price,))})


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.s3.requests", description=__doc__.splitlines()[0])
    parser.add_argument("--batches", type=int, default=20, help="that count, default 20")
    parser.add_argument("--warm", type=int, default=WARM_BATCHES, help="batches before, default 105")
    parser.add_argument("--seconds", type=float, default=60, help="of the idle time, default 60")
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds before that")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.batches, arguments.seconds, arguments.settle, arguments.warm = 2, 5, 5, 2
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
