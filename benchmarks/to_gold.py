"""From produce to gold: python -m benchmarks.to_gold [--root DIR] [--rate N ...] [--small], with a broker of its own.

Compares three flows of Sluice in one driver with three stock jobs, or with another checkout of Sluice (`--root`), in
sequence, at 20, 500 and 5,000 events a second. A record has reached gold when the gold batch that read it is committed,
according to the checkpoints and Delta logs of the engine. Also measures the CPU of the engine.
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

from benchmarks.jobs.sluice import TABLES
from benchmarks.small_batches import BEFORE
from benchmarks.support import readings
from benchmarks.support.engine import Engine, broker, homes, place
from benchmarks.support.measure import OURS, Figure, Row, Spent, cpu_figure, record, spend
from include.checkpoints import checkpoint_files
from include.delta.delta_log import DeltaLog
from include.errors import FlowBroken, report
from include.local.broker import create_topic

RATES = (20, 500, 5_000)
STOCK = "stock, three jobs"
LOOK_SECONDS = 0.5
SETTLE_SECONDS = 30


@dataclass
class Journal:
    """Commit time and end position of each batch of a flow. Spark deletes old batches, so they are collected."""

    path: Path
    done: dict[int, tuple[float, int]] = field(default_factory=dict)

    def look(self) -> None:
        for number in checkpoint_files.numbers(self.path / "commits") - self.done.keys():
            with suppress(FileNotFoundError, FlowBroken):
                at = (self.path / "commits" / str(number)).stat().st_mtime
                self.done[number] = (at, place(checkpoint_files.end_offset(self.path, number)))

    @property
    def batches(self) -> list[tuple[float, int]]:
        """Commit time (seconds since 1970) and end position of each batch, oldest first."""
        return [self.done[number] for number in sorted(self.done)]


@contextmanager
def watch(journals: list[Journal]) -> Iterator[None]:
    stopped = threading.Event()

    def poll() -> None:
        while not stopped.wait(LOOK_SECONDS):
            for journal in journals:
                journal.look()

    thread = threading.Thread(target=poll)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join()


def first_reaching(batches: list[tuple[float, int]], end: int) -> float | None:
    """The commit time of the first batch that had read up to `end`; None if there is none."""
    index = bisect_left(batches, end, key=lambda batch: batch[1])
    return batches[index][0] if index < len(batches) else None


def newest_version(path: Path, at: float) -> int:
    """The newest version of a table at a time in seconds since 1970."""
    versions = DeltaLog(path).versions
    files = [path / "_delta_log" / f"{version:020}.json" for version in versions]
    return max(
        (version for version, file in zip(versions, files, strict=True) if file.stat().st_mtime <= at), default=-1
    )


def gold_positions(engine: Engine, journals: dict[str, Journal]) -> list[tuple[int, float]]:
    """For each bronze batch, oldest first: its end position in the topic, and when its records reached gold."""
    reached = []
    for at, records in journals["bronze"].batches:
        for layer, next_layer in (("bronze", "silver"), ("silver", "gold")):
            version = newest_version(engine.table(TABLES[layer].name), at)
            at = first_reaching(journals[next_layer].batches, version) or float("inf")
            if at == float("inf"):
                break
        else:
            reached.append((records, at))
    return reached


def latencies_seconds(engine: Engine, journals: dict[str, Journal], since: float, until: float) -> list[float]:
    """The sorted latencies of records that arrived between `since` and `until`. The topic has one partition."""
    table = DeltaTable(str(engine.table(TABLES["bronze"].name)))
    stored = table.to_pyarrow_table(columns=["offset", "timestamp"]).to_pylist()
    reached = [(gold_at, records) for records, gold_at in gold_positions(engine, journals)]
    latencies = []
    for row in stored:
        arrived_at = row["timestamp"].timestamp()
        gold_at = first_reaching(reached, row["offset"] + 1)
        if gold_at is not None and since <= arrived_at <= until:
            latencies.append(gold_at - arrived_at)
    return sorted(latencies)


class Stream:
    """Sends records to the topic of an engine at a given rate."""

    def __init__(self, kafka: str, topic: str) -> None:
        create_topic(kafka, topic, 1)
        self._producer = Producer({"bootstrap.servers": kafka, "linger.ms": 5, "log_level": 0})
        self._topic, self._sent = topic, 0

    def send(self, rate: int, seconds: float) -> None:
        begin = time.monotonic()
        for number in range(int(rate * seconds)):
            ahead_seconds = number / rate - (time.monotonic() - begin)
            if ahead_seconds > 0.005:
                self._producer.poll(0)
                time.sleep(ahead_seconds)
            self._producer.produce(self._topic, readings.payload(self._sent))
            self._sent += 1
        self._producer.flush()


def start(engine: Engine, stream: Stream, topic: str) -> None:
    """Start the engine, and wait until the first records are in gold."""
    stream.send(20, 1)
    layers = list(TABLES)
    for group in [[layer] for layer in layers] if engine.name == STOCK else [layers]:
        engine.start(*group, "--topic", topic)
        engine.wait(TABLES[group[-1]].flow, 0)


def at_rates(engine: Engine, kafka: str, arguments: argparse.Namespace) -> dict[int, tuple[list[float], Spent]]:
    """By rate: the latencies in seconds, and the cost of the engine while records arrived."""
    topic = f"events-{engine.home.name}"
    journals = {layer: Journal(engine.checkpoint(table.flow)) for layer, table in TABLES.items()}
    stream, spans = Stream(kafka, topic), {}
    try:
        with watch(list(journals.values())):
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
        title, latencies, cpu = f"trackers alone at {rate:,} events/s", {}, {}
        centiles: dict[int, dict[str, Figure]] = {50: {}, 95: {}}
        for name, by_rate in by_engine.items():
            latencies[name], spent = by_rate[rate]
            cpu[name] = cpu_figure([spent], spent.wall_seconds / 60)
            for centile in centiles:
                value = statistics.quantiles(latencies[name], n=100)[centile - 1]
                centiles[centile][name] = Figure((value,), cpu[name].is_flagged)
        yield Row(title, "CPU-s a minute", cpu)
        yield Row(f"{title}: produce to gold, median", "s", centiles[50])
        yield Row(f"{title}: produce to gold, p95", "s", centiles[95])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.to_gold", description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="another checkout of Sluice, instead of the stock jobs")
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
        engines = [Engine(OURS, folder / "sluice", "sluice.py", kafka)]
        if arguments.root:
            engines.append(Engine(BEFORE, folder / "before", "sluice.py", kafka, arguments.root.resolve()))
        else:
            engines.append(Engine(STOCK, folder / "stock", "stock.py", kafka))
        measured = {engine.name: at_rates(engine, kafka, arguments) for engine in engines}
        record(*rows(measured, arguments.rate))


if __name__ == "__main__":
    report(main)
