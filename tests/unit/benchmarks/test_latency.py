"""The latency benchmark reads the commits of a platform that has run for a long time."""

from pathlib import Path

from benchmarks import latency
from include.delta.delta_log import Commit, DeltaLog
from include.lake import locations
from tests.support import lake


def versions(commits: list[Commit]) -> list[int]:
    return [commit.version for commit in commits]


def batch(table: str, seconds: float, version: int) -> int:
    return lake.rows(table, seconds, 10, flow=table, source_from=None, source_to=lake.delta_offset(version, index=0))


def test_commits_of_backfills_windows_and_strangers_are_no_batches(home: Path):
    batches = [batch("silver.readings", 100, 1)]
    lake.rows("silver.readings", 110, 10, backfill={"key": "2026-01-01"}, range=["a", "b"])
    lake.write("silver.readings", 120)
    lake.write("silver.readings", 130, window={"steps": ["optimize"]})
    batches.append(batch("silver.readings", 140, 2))
    commits = DeltaLog(locations.table_path("silver.readings")).commits()
    assert versions(latency.batches(commits, since=0)) == batches


def test_batches_from_before_the_first_record_was_sent_do_not_count(home: Path):
    for version, seconds in enumerate((100, 200, 300)):
        batch("silver.readings", seconds, version)
    commits = DeltaLog(locations.table_path("silver.readings")).commits()
    assert versions(latency.batches(commits, since=150)) == [1, 2]


def test_a_batch_holds_the_records_between_its_two_places_in_the_topic():
    metadata = {"source_from": {latency.TOPIC: {"0": 5}}, "source_to": {latency.TOPIC: {"0": 7, "1": 1}}}
    assert list(latency.records(metadata)) == [("0", 5), ("0", 6), ("1", 0)]
