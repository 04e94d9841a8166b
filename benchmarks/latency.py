"""From produce to a row in gold: python -m benchmarks.latency [--rate 500] [--seconds 45]

Needs a running platform (`make up`). Sends events at the rate, and follows each record through the metadata of the
commits: the bronze commit that holds its offset, the silver commit that read that version, and the gold commit that
read the silver version. Latency is the time of the gold commit minus the timestamp of the record, both from the clock
of this machine. Also measures the CPU of the drivers. For the platform with its default load, from the fifth minute on:
--rate 0 --seconds 180 --from-minute 5
"""

import argparse
import itertools
import statistics
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import psutil
from confluent_kafka import Producer
from deltalake import DeltaTable

from benchmarks.support import measure
from include.checkpoints.checkpoint_files import read_version
from include.delta.delta_log import Commit, DeltaLog
from include.errors import report
from include.examples.events import events
from include.examples.producer import TOPIC
from include.kafka import broker, cluster
from include.lake import locations
from include.local.processes import Platform
from include.settings import settings

WARM_UP_SECONDS = 20
SETTLE_SECONDS = 60
TABLES = ("bronze.tracker_events", "silver.tracker_readings", "gold.heart_rate_by_model")


def send(rate: int, seconds: int) -> tuple[datetime, datetime]:
    """Send `rate` events a second. Returns begin and end of the measured time, UTC."""
    begin = datetime.now(UTC)
    if not rate:
        time.sleep(WARM_UP_SECONDS + seconds)
    producer = cluster.named(None).client(Producer, {"linger.ms": 5})
    count = rate * (seconds + WARM_UP_SECONDS)
    for number, event in enumerate(events(seed=1, count=count, start=begin, per_second=rate)):
        ahead_seconds = number / rate - (datetime.now(UTC) - begin).total_seconds()
        if ahead_seconds > 0.005:
            producer.poll(0)
            time.sleep(ahead_seconds)
        producer.produce(TOPIC, key=event.key, value=event.value)
    producer.flush(30)
    end = datetime.now(UTC)
    return datetime.fromtimestamp(begin.timestamp() + WARM_UP_SECONDS, UTC), end


def batches(commits: Iterable[Commit], since: float) -> list[Commit]:
    """The commits of batches from `since` (seconds since 1970) on, oldest first.

    commits: newest first. Commits of windows, backfills and rewinds have metadata, too, but read no new records.
    """
    new = itertools.takewhile(lambda commit: commit.timestamp >= since, commits)
    return [commit for commit in new if commit.metadata.get("source_to")][::-1]


def of_flow(table: str, since: float) -> list[Commit]:
    return batches(DeltaLog(locations.table_path(table)).commits(), since)


def latencies_seconds(begin: datetime, end: datetime) -> list[float]:
    """The latency of each record that arrived between `begin` and `end` and has reached gold."""
    since = begin.timestamp()
    bronze, silver, gold = (of_flow(table, since) for table in TABLES)
    gold_positions = [(read_version(commit.metadata["source_to"]), commit.timestamp) for commit in gold]
    silver_positions = [(read_version(commit.metadata["source_to"]), commit.version) for commit in silver]
    times, latencies = record_times(begin), []
    for commit in bronze:
        silver_version = _first_reaching(silver_positions, commit.version)
        gold_at = None if silver_version is None else _first_reaching(gold_positions, silver_version)
        if gold_at is not None:
            arrivals = [times.get(record) for record in records(commit.metadata)]
            latencies += [
                gold_at - arrived_at
                for arrived_at in arrivals
                if arrived_at is not None and since <= arrived_at <= end.timestamp()
            ]
    return latencies


def _first_reaching(positions: list[tuple[int, Any]], version: int) -> Any:
    """The value of the first commit that had read `version`; None if there is none."""
    index = bisect_left(positions, version, key=lambda entry: entry[0])
    return positions[index][1] if index < len(positions) else None


def record_times(since: datetime) -> dict[tuple[str, int], float]:
    """The timestamp of each record by partition and offset, in seconds since 1970."""
    columns = ["partition", "offset", "timestamp"]
    table = DeltaTable(str(locations.table_path(TABLES[0])))
    stored = table.to_pyarrow_table(columns=columns, filters=[("timestamp", ">=", since)])
    return {(str(row["partition"]), row["offset"]): row["timestamp"].timestamp() for row in stored.to_pylist()}


def records(metadata: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Partition and offset of each record of a bronze batch."""
    begin, end = metadata["source_from"] or {}, metadata["source_to"]
    for partition, last in end[TOPIC].items():
        yield from ((partition, offset) for offset in range(begin.get(TOPIC, {}).get(partition, 0), last))


def drivers() -> list[psutil.Process]:
    """The JVM of each driver of the platform, which is the spark-submit process."""
    processes = Platform(settings().home).processes()
    return [
        process for process in processes if "jobs/stream.py" in " ".join(process.cmdline()) and "java" in process.name()
    ]


def drivers_cpu_seconds() -> float:
    return sum(measure.tree_cpu_seconds(process.pid) for process in drivers())


def wait_for_age(minutes: float) -> None:
    """Wait until the youngest driver has this age."""
    youngest = max((process.create_time() for process in drivers()), default=0)
    time.sleep(max(0.0, youngest + 60 * minutes - time.time()))


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.latency")
    parser.add_argument("--rate", type=int, default=500, help="events a second; 0: what the platform sends by itself")
    parser.add_argument("--seconds", type=int, default=45, help="how long to measure, after a warm-up")
    parser.add_argument("--from-minute", type=float, default=0, help="how old the drivers have to be before that")
    arguments = parser.parse_args()
    broker.identity(cluster.named(None), TOPIC)
    wait_for_age(arguments.from_minute)
    span: list[datetime] = []
    spent = measure.spend(drivers_cpu_seconds, lambda: span.extend(send(arguments.rate, arguments.seconds)))
    time.sleep(SETTLE_SECONDS)
    latencies = sorted(latencies_seconds(*span))
    centiles = statistics.quantiles(latencies, n=100)
    print(
        f"{len(latencies):,} records, {arguments.rate}/s sent, produce to gold: median {centiles[49]:.2f} s, "
        f"p95 {centiles[94]:.2f} s, worst {latencies[-1]:.2f} s"
    )
    minutes = spent.wall_seconds / 60
    print(
        f"{len(drivers())} drivers: {spent.cpu_seconds / minutes:.0f} CPU seconds a minute over {minutes:.1f} minutes"
    )


if __name__ == "__main__":
    report(main)
