"""Much from Kafka to bronze: python -m benchmarks.bulk_bronze [--count N] [--small], with a broker of its own.

Measures CPU seconds and bytes on disk for a million records of 200 bytes: Sluice with --once, a stock job that ends at
the end of its source, and a loop of confluent-kafka and delta-rs. A run over a single record measures the start of each
job, which is subtracted.
"""

import argparse
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.jobs.sluice import TABLES
from benchmarks.support import readings
from benchmarks.support.engine import Engine, broker, homes
from benchmarks.support.measure import OURS, Figure, Row, Spent, cpu_figure, record, run_alternating
from include.errors import report
from include.local.broker import create_topic

BYTES, PARTITIONS = 200, 3
MUCH, LITTLE = "much", "little"
PEERS = {OURS: "sluice.py", "stock": "stock.py", "confluent-kafka + delta-rs": "delta_rs.py"}


def without_start(run: Callable[[str], Spent]) -> Spent:
    """The cost of a job without its start. run: runs the job over a topic, into a new table."""
    small, large = run(LITTLE), run(MUCH)
    others = max(small.others, large.others)
    return replace(large, cpu_seconds=large.cpu_seconds - small.cpu_seconds, others=others)


def fill(kafka: str, count: int, size: int) -> None:
    for topic, records in ((MUCH, count), (LITTLE, 1)):
        create_topic(kafka, topic, PARTITIONS)
        readings.send(kafka, topic, 0, records, size)


def bytes_at_rest(path: Path) -> int:
    """The size of the table: data files and log."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk_bronze", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=1_000_000, help="records, default 1,000,000")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, in turn, default 1")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.count = 20_000
    sizes: dict[str, float] = {}
    with homes() as folder, broker(folder) as kafka:
        fill(kafka, arguments.count, BYTES)

        def run(name: str, topic: str) -> Spent:
            engine = Engine(name, folder / "home", PEERS[name], kafka)
            spent = engine.run("bronze", "--once", "--topic", topic)
            path = engine.table(TABLES["bronze"].name)
            if topic == MUCH:
                assert DeltaTable(str(path)).to_pyarrow_dataset().count_rows() == arguments.count
                sizes[name] = bytes_at_rest(path) / 1e6
            shutil.rmtree(engine.home)
            return spent

        spent = run_alternating({name: partial(without_start, partial(run, name)) for name in PEERS}, arguments.rounds)
    title = f"Kafka to bronze, {arguments.count:,} records of {BYTES} bytes"
    cpu = {name: cpu_figure(blocks, arguments.count / 1e6) for name, blocks in spent.items()}
    record(
        Row(title, "CPU-s per million", cpu),
        Row(f"{title}: at rest", "MB", {name: Figure((size,)) for name, size in sizes.items()}),
    )


if __name__ == "__main__":
    report(main)
