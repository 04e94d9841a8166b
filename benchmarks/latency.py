"""From produce to a row in gold: python -m benchmarks.latency [--rate 500] [--seconds 45]

Against a platform that is up (`make up`). Events are sent at the rate; then each record is followed through the stamps
of the commits: the bronze commit that holds its offset, the silver commit that read that version, the gold commit that
read that one. Latency is the gold commit's time less the record's own, both by this machine's clock.
"""

import argparse
import json
import statistics
import time
from bisect import bisect_left
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import Producer
from deltalake import DeltaTable

from include.errors import report
from include.examples.events import events
from include.examples.producer import TOPIC
from include.ledger import kafka
from include.ledger.checkpoint import read_version
from include.settings import settings

WARM_UP_SECONDS = 20
SETTLE_SECONDS = 60


def send(rate: int, seconds: int) -> tuple[datetime, datetime]:
    """Send at `rate` events a second; returns the span that counts, UTC."""
    producer = Producer({"bootstrap.servers": settings().kafka, "linger.ms": 5})
    begin = datetime.now(UTC)
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


def commits(table: str) -> list[tuple[int, float, dict[str, Any]]]:
    """(version, commit time in seconds since 1970, stamp) of every stamped commit, oldest first."""
    history = DeltaTable(str(settings().table_path(table))).history()
    stamped = [entry for entry in history if entry.get("userMetadata")]
    return sorted((entry["version"], entry["timestamp"] / 1000, json.loads(entry["userMetadata"])) for entry in stamped)


def latencies_seconds(begin: datetime, end: datetime) -> list[float]:
    """One figure for each record that was sent between the two moments and has reached gold."""
    silver_done = [(read_version(stamp["source_to"]), at) for _, at, stamp in commits("gold.heart_rate_by_model")]
    bronze_done = [
        (read_version(stamp["source_to"]), version) for version, _, stamp in commits("silver.tracker_readings")
    ]
    found = []
    for version, _, stamp in commits("bronze.tracker_events"):
        silver = _first_reaching(bronze_done, version)
        gold_at = None if silver is None else _first_reaching(silver_done, silver)
        if gold_at is not None:
            found += [gold_at - at for at in _record_times(stamp) if begin.timestamp() <= at <= end.timestamp()]
    return found


def _first_reaching(done: list[tuple[int, Any]], version: int) -> Any:
    """What belongs to the first commit that had read up to `version`."""
    place = bisect_left(done, version, key=lambda entry: entry[0])
    return done[place][1] if place < len(done) else None


_times: dict[tuple[str, int], float] = {}


def _record_times(stamp: dict[str, Any]) -> list[float]:
    if not _times:
        columns = ["partition", "offset", "timestamp"]
        stored = DeltaTable(str(settings().table_path("bronze.tracker_events"))).to_pyarrow_table(columns=columns)
        for row in stored.to_pylist():
            _times[str(row["partition"]), row["offset"]] = row["timestamp"].timestamp()
    begin, end = stamp["source_from"] or {}, stamp["source_to"]
    return [
        _times[partition, offset]
        for partition, last in end[TOPIC].items()
        for offset in range(begin.get(TOPIC, {}).get(partition, 0), last)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.latency")
    parser.add_argument("--rate", type=int, default=500, help="events a second")
    parser.add_argument("--seconds", type=int, default=45, help="how long to measure, after a warm-up")
    arguments = parser.parse_args()
    kafka.identity(settings().kafka, TOPIC)
    begin, end = send(arguments.rate, arguments.seconds)
    time.sleep(SETTLE_SECONDS)
    found = sorted(latencies_seconds(begin, end))
    centiles = statistics.quantiles(found, n=100)
    print(
        f"{len(found):,} records at {arguments.rate}/s, produce to gold: median {centiles[49]:.2f} s, "
        f"p95 {centiles[94]:.2f} s, worst {found[-1]:.2f} s"
    )


if __name__ == "__main__":
    report(main)
