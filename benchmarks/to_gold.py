"""From produce to gold: python -m benchmarks.to_gold [--rate N ...] [--small], with a broker of its own.

Three flows of Sluice in one driver against three stock jobs, one after the other, at 20, 500 and 5,000 events a second.
A record has reached gold when gold's batch that read it is done: each engine's checkpoints and logs tell, read from
outside. What the engine burns meanwhile stands beside it.
"""

import argparse
import statistics
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from confluent_kafka import Producer
from deltalake import DeltaTable

from benchmarks import readings
from benchmarks.engine import Engine, broker, homes, place
from benchmarks.measure import OURS, Figure, Row, Spent, cpu_figure, found, spend
from benchmarks.sluice_job import TABLES
from include.errors import Broken, report
from include.local.broker import create_topic
from include.readers import checkpoint
from include.readers.delta_log import Log

RATES = (20, 500, 5_000)
STOCK = "stock, three jobs"
LOOK_SECONDS = 0.5
SETTLE_SECONDS = 30


@dataclass
class Journal:
    """When each batch of a flow was done, and up to where it had read; kept, as Spark forgets old batches."""

    path: Path
    done: dict[int, tuple[float, int]] = field(default_factory=dict)

    def look(self) -> None:
        for number in checkpoint.numbers(self.path / "commits") - self.done.keys():
            with suppress(FileNotFoundError, Broken):
                at = (self.path / "commits" / str(number)).stat().st_mtime
                self.done[number] = (at, place(checkpoint.end_offset(self.path, number)))

    @property
    def batches(self) -> list[tuple[float, int]]:
        """Oldest first."""
        return [self.done[number] for number in sorted(self.done)]


@contextmanager
def watched(journals: list[Journal]) -> Iterator[None]:
    ends = threading.Event()

    def watch() -> None:
        while not ends.wait(LOOK_SECONDS):
            for journal in journals:
                journal.look()

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def first_reaching(batches: list[tuple[float, int]], end: int) -> float | None:
    """When the first batch was done that had read so far."""
    at = bisect_left(batches, end, key=lambda batch: batch[1])
    return batches[at][0] if at < len(batches) else None


def newest_version(path: Path, at: float) -> int:
    """Of a table at a moment."""
    versions = Log(path).versions
    files = [path / "_delta_log" / f"{version:020}.json" for version in versions]
    return max(
        (version for version, file in zip(versions, files, strict=True) if file.stat().st_mtime <= at), default=-1
    )


def reached_gold(engine: Engine, journals: dict[str, Journal]) -> list[tuple[int, float]]:
    """For each batch of bronze, oldest first: the records up to which it had read, and when these were in gold."""
    reached = []
    for at, records in journals["bronze"].batches:
        for layer, below in (("bronze", "silver"), ("silver", "gold")):
            version = newest_version(engine.table(TABLES[layer].name), at)
            at = first_reaching(journals[below].batches, version) or float("inf")
            if at == float("inf"):
                break
        else:
            reached.append((records, at))
    return reached


def latencies_seconds(engine: Engine, journals: dict[str, Journal], since: float, until: float) -> list[float]:
    """Of each record that came between the two moments; the topic has one partition."""
    table = DeltaTable(str(engine.table(TABLES["bronze"].name)))
    stored = table.to_pyarrow_table(columns=["offset", "timestamp"]).to_pylist()
    reached = [(at, records) for records, at in reached_gold(engine, journals)]
    latencies = []
    for row in stored:
        came = row["timestamp"].timestamp()
        at = first_reaching(reached, row["offset"] + 1)
        if at is not None and since <= came <= until:
            latencies.append(at - came)
    return sorted(latencies)


class Stream:
    """Records at a rate into the topic of one engine, from where the last rate ended."""

    def __init__(self, kafka: str, topic: str) -> None:
        create_topic(kafka, topic, 1)
        self._producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5, "log_level": 0})
        self._topic, self._sent = topic, 0

    def send(self, rate: int, seconds: float) -> None:
        begin = time.monotonic()
        for number in range(int(rate * seconds)):
            ahead = number / rate - (time.monotonic() - begin)
            if ahead > 0.005:
                self._producer.poll(0)
                time.sleep(ahead)
            self._producer.produce(self._topic, readings.payload(self._sent))
            self._sent += 1
        self._producer.flush()


def start(engine: Engine, stream: Stream, topic: str) -> None:
    """Return when the first records are in gold."""
    stream.send(20, 1)
    layers = list(TABLES)
    for group in [layers] if engine.name == OURS else [[layer] for layer in layers]:
        engine.start(*group, "--topic", topic)
        engine.wait(TABLES[group[-1]].flow, 0)


def at_rates(engine: Engine, kafka: str, arguments: argparse.Namespace) -> dict[int, tuple[list[float], Spent]]:
    """By rate: latencies, and what was spent while records came."""
    topic = f"events-{engine.home.name}"
    journals = {layer: Journal(engine.checkpoint(table.flow)) for layer, table in TABLES.items()}
    stream, spans = Stream(kafka, topic), {}
    try:
        with watched(list(journals.values())):
            start(engine, stream, topic)
            for rate in arguments.rate:
                stream.send(rate, arguments.warm)
                since = time.time()
                spent = spend(engine.cpu_seconds, partial(stream.send, rate, arguments.seconds))
                spans[rate] = since, time.time(), spent
                time.sleep(arguments.settle)
    finally:
        engine.end()
    return {
        rate: (latencies_seconds(engine, journals, since, until), spent)
        for rate, (since, until, spent) in spans.items()
    }


def rows(by_engine: dict[str, dict[int, tuple[list[float], Spent]]], rates: list[int]) -> Iterator[Row]:
    for rate in rates:
        what, latencies, burnt = f"trackers alone at {rate:,} events/s", {}, {}
        centiles: dict[int, dict[str, Figure]] = {50: {}, 95: {}}
        for name, at in by_engine.items():
            latencies[name], spent = at[rate]
            burnt[name] = cpu_figure([spent], spent.wall_seconds / 60)
            for centile in centiles:
                value = statistics.quantiles(latencies[name], n=100)[centile - 1]
                centiles[centile][name] = Figure((value,), burnt[name].is_flagged)
        yield Row(what, "CPU-s a minute", burnt)
        yield Row(f"{what}: produce to gold, median", "s", centiles[50])
        yield Row(f"{what}: produce to gold, p95", "s", centiles[95])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.to_gold", description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=int, action="append", help="events a second; may be given again")
    parser.add_argument("--seconds", type=float, default=120, help="that count, at each rate, default 120")
    parser.add_argument("--warm", type=float, default=60, help="seconds at each rate before that, default 60")
    parser.add_argument("--settle", type=float, default=SETTLE_SECONDS, help="seconds without records after each rate")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    arguments.rate = arguments.rate or list(RATES)
    if arguments.small:
        arguments.rate, arguments.seconds, arguments.warm = arguments.rate[:1], 20, 10
    with homes() as folder, broker(folder) as kafka:
        engines = [
            Engine(OURS, folder / "sluice", "sluice_job.py", kafka),
            Engine(STOCK, folder / "stock", "stock_job.py", kafka),
        ]
        measured = {engine.name: at_rates(engine, kafka, arguments) for engine in engines}
        found(*rows(measured, arguments.rate))


if __name__ == "__main__":
    report(main)
