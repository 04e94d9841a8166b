"""Consumers that hold back VACUUM and the clean-up of the log: real tables, and checkpoints in Spark's layout."""

import json
import os
import time
from pathlib import Path

import pyarrow
import pytest
from deltalake import DeltaTable, write_deltalake

from include.catalog import Catalog
from include.delta.delta_log import DeltaLog
from include.lake import locations
from include.maintenance import vacuum_guard
from include.maintenance.vacuum_guard import Consumer
from include.spec import Delta, Kafka, Table
from tests.support.delta_log import added, append, commit, commit_info, removed
from tests.support.lake import planned_checkpoint

NOW = 1_800_000_000.0
HOUR = 3_600
# The time of version 3, where versions 0 to 8 are committed hourly up to NOW.
TIME_OF_VERSION_3 = "2027-01-15T03:00:00Z"
FLOW, OTHER = "silver.reader", "gold.reader"
SOURCES = {FLOW: Delta("silver.table")}
SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'


pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table"


def hourly_commits(table: Path, count: int) -> DeltaLog:
    """Commits one version an hour, the last at NOW. Each version removes the file of the version before it."""
    for version in range(count):
        at = NOW - (count - 1 - version) * HOUR
        removals = [removed(f"{version - 1}", at)] if version else []
        commit(table, version, commit_info(at), added(f"{version}"), *removals)
    return DeltaLog(table)


def find_consumer(flow: str, log: DeltaLog, source: Delta | None = None, **options) -> Consumer | None:
    flows = {flow: source or Delta("silver.table")}
    consumers = vacuum_guard.consumers(["silver.table"], log, flows, time_travel_hours=1, now_seconds=NOW, **options)
    return next((consumer for consumer in consumers if consumer.name.startswith(flow)), None)


def write_file(table: Path, path: str, at: float = NOW, size: int = 10) -> None:
    (table / path).parent.mkdir(parents=True, exist_ok=True)
    (table / path).write_bytes(b"x" * size)
    os.utime(table / path, (at, at))


def files_kept_since(log: DeltaLog, consumers: list[Consumer]) -> float | None:
    return vacuum_guard.files_kept_since(log, consumers, NOW, window_seconds=HOUR)


def test_the_flows_that_read_a_table_are_those_whose_source_it_is():
    tables = [
        Table(name="bronze.a", source=Kafka("t"), comment=""),
        Table(name="silver.b", source=Delta("bronze.a"), comment=""),
        Table(name="silver.c", source=Delta("bronze.x"), comment=""),
    ]
    assert vacuum_guard.readers(Catalog({table.name: table for table in tables}), "bronze.a") == {
        "silver.b": Delta("bronze.a")
    }


def test_a_flow_stands_where_its_last_committed_batch_ended(table: Path):
    directory = planned_checkpoint(FLOW, planned=[2, 4, 6], committed=2)
    os.utime(directory / "commits" / "1", (NOW, NOW))
    assert find_consumer(FLOW, hourly_commits(table, 9)) == Consumer(FLOW, 4, NOW)


def test_the_log_is_kept_from_the_end_of_the_batch_before_the_last_and_no_file(table: Path):
    planned_checkpoint(FLOW, planned=[2, 4, 6], committed=2)
    consumers = vacuum_guard.consumers(
        ["silver.table"], log := hourly_commits(table, 9), SOURCES, time_travel_hours=1, now_seconds=NOW
    )
    assert vacuum_guard.log_needed_from(log, consumers) == 2
    oldest = vacuum_guard.oldest_consumer(consumers)
    assert oldest and oldest.version == 4


def test_the_newest_generation_counts(table: Path):
    planned_checkpoint(FLOW, planned=[2], committed=1)
    planned_checkpoint(FLOW, planned=[5], committed=1, generation=2)
    consumer = find_consumer(FLOW, hourly_commits(table, 9))
    assert consumer and consumer.version == 5


def test_a_flow_that_never_ran_needs_nothing(table: Path):
    assert find_consumer(FLOW, hourly_commits(table, 3)) is None
    planned_checkpoint(FLOW, planned=[], committed=0)
    assert find_consumer(FLOW, hourly_commits(table, 3)) is None


@pytest.mark.parametrize("is_first", [True, False])
def test_a_first_batch_that_was_planned_needs_the_version_it_may_begin_with(table: Path, is_first: bool):
    # Delta may begin the replay with the whole version before the one in which the batch ends.
    planned_checkpoint(FLOW, planned=[5], committed=0, is_first=is_first)
    consumer = find_consumer(FLOW, hourly_commits(table, 9))
    assert consumer and consumer.version == 4


@pytest.mark.parametrize("begins", [{"since_version": 3}, {"since": TIME_OF_VERSION_3}], ids=str)
def test_a_first_batch_that_was_planned_from_a_declared_beginning_on_needs_all_that_it_reads(begins: dict):
    source = Delta("silver.table", **begins)
    log = hourly_commits(locations.table_path("silver.table"), 9)
    planned_checkpoint(FLOW, planned=[7], committed=0)
    consumer = find_consumer(FLOW, log, source)
    assert consumer and consumer.version == 2
    assert files_kept_since(log, [consumer]) == NOW - 5 * HOUR
    planned_checkpoint(FLOW, planned=[7], committed=1, generation=2)
    next_consumer = find_consumer(FLOW, log, source)
    assert next_consumer and next_consumer.version == 7


@pytest.mark.parametrize("damaged", ["offsets/1", "commits/1", "metadata"])
def test_a_flow_whose_checkpoint_is_damaged_holds_everything_back_by_name(table: Path, damaged: str):
    directory = planned_checkpoint(FLOW, planned=[2, 4], committed=2)
    (directory / damaged).write_text("")
    log = hourly_commits(table, 9)
    consumers = vacuum_guard.consumers(["silver.table"], log, SOURCES, 1, NOW)
    oldest = vacuum_guard.oldest_consumer(consumers)
    assert oldest and oldest.name == "silver.reader, whose checkpoint does not say where it stands"
    assert files_kept_since(log, consumers) == 0
    assert vacuum_guard.log_needed_from(log, consumers) == 0


def test_a_checkpoint_of_another_source_holds_everything_back(table: Path):
    directory = planned_checkpoint(FLOW, planned=[2], committed=1)
    (directory / "offsets" / "0").write_text(f'v1\n{SETTINGS}\n{{"topic":{{"0":5}}}}')
    consumer = find_consumer(FLOW, hourly_commits(table, 3))
    assert consumer and consumer.version == -1


def test_a_flow_that_was_released_does_not_count_and_the_others_do(table: Path):
    planned_checkpoint(FLOW, planned=[2], committed=1)
    planned_checkpoint(OTHER, planned=[4], committed=1)
    log = hourly_commits(table, 9)
    consumers = vacuum_guard.consumers(
        ["silver.table"], log, {**SOURCES, OTHER: SOURCES[FLOW]}, 1, NOW, released={FLOW}
    )
    assert vacuum_guard.oldest_consumer(consumers) == Consumer(OTHER, 4, consumers[0].since)


def test_a_reader_that_registered_itself_counts_also_where_a_flow_of_its_name_was_released(table: Path):
    log = hourly_commits(table, 9)
    report = Consumer("report", 3, 5.0)
    assert (
        vacuum_guard.oldest_consumer(vacuum_guard.consumers(["silver.table"], log, {}, 1, NOW, registered=[report]))
        == report
    )
    oldest = vacuum_guard.oldest_consumer(
        vacuum_guard.consumers(["silver.table"], log, {}, 1, NOW, registered=[report], released={"report"})
    )
    assert oldest == report


@pytest.mark.parametrize(("hours", "version"), [(0, 8), (1, 7), (2.5, 5), (8, 0), (100, 0)])
def test_time_travel_keeps_the_version_that_was_the_newest_at_that_moment(table: Path, hours: float, version: int):
    log = hourly_commits(table, 9)
    oldest = vacuum_guard.oldest_consumer(vacuum_guard.consumers(["silver.table"], log, {}, hours, NOW))
    assert oldest and oldest.version == version


def test_a_tables_own_flow_keeps_the_log_from_its_newest_stamp_on_and_no_files(table: Path):
    hourly_commits(table, 9)
    for version, flow in ((2, "silver.table"), (3, "silver.table"), (4, "another")):
        commit(table, version, commit_info(NOW - (8 - version) * HOUR, userMetadata=json.dumps({"flow": flow})))
    log = DeltaLog(table)
    consumers = vacuum_guard.consumers(["silver.table"], log, {}, 1, NOW)
    assert vacuum_guard.log_needed_from(log, consumers) == 3
    oldest = vacuum_guard.oldest_consumer(consumers)
    assert oldest and oldest.version == 7


def test_each_of_a_tables_flows_keeps_the_log_from_its_newest_stamp_on(table: Path):
    hourly_commits(table, 9)
    for version, flow in ((2, "silver.table.eu"), (3, "silver.table.eu"), (4, "silver.table.us"), (5, "silver.table")):
        commit(table, version, commit_info(NOW - (8 - version) * HOUR, userMetadata=json.dumps({"flow": flow})))
    log = DeltaLog(table)
    consumers = vacuum_guard.consumers(["silver.table.eu", "silver.table.us", "silver.table.new"], log, {}, 1, NOW)
    assert [consumer.version for consumer in consumers if not consumer.needs_files] == [4, 3]
    assert vacuum_guard.log_needed_from(log, consumers) == 3


def test_a_commit_that_was_undone_is_none_from_which_a_flow_goes_on(table: Path):
    for version in range(3):
        metadata = json.dumps({"flow": FLOW, "generation": 1, "batch": version})
        commit(table, version, commit_info(NOW, userMetadata=metadata), added(f"{version}"))
    commit(table, 3, commit_info(NOW, operation="RESTORE", operationParameters={"version": "1"}))
    [flow_consumer] = [
        consumer
        for consumer in vacuum_guard.consumers([FLOW], DeltaLog(table), {}, 0, NOW)
        if consumer.name.startswith(FLOW)
    ]
    assert flow_consumer.version == 1


def test_files_are_kept_since_the_first_deletion_that_a_consumer_has_not_seen(table: Path):
    log = hourly_commits(table, 9)
    assert files_kept_since(log, [Consumer("a", 4)]) == NOW - 3 * HOUR
    assert files_kept_since(log, [Consumer("a", 4), Consumer("b", 6)]) == NOW - 3 * HOUR


def test_an_optimize_that_began_before_the_consumers_version_counts_from_its_beginning(table: Path):
    commit(table, 0, commit_info(NOW - 9 * HOUR), added("a"), added("b"))
    commit(table, 1, commit_info(NOW - 3 * HOUR), added("c"))
    commit(
        table, 2, commit_info(NOW - 2 * HOUR), removed("a", NOW - 5 * HOUR), removed("b", NOW - 5 * HOUR), added("ab")
    )
    assert files_kept_since(DeltaLog(table), [Consumer("a", 1)]) == NOW - 5 * HOUR


def test_nothing_holds_vacuum_back_where_nothing_was_removed_or_nobody_reads(table: Path):
    log = hourly_commits(table, 9)
    assert files_kept_since(log, [Consumer("a", 8)]) is None
    assert files_kept_since(log, []) is None
    assert files_kept_since(log, [Consumer("log only", 2, needs_files=False)]) is None


def test_a_deletion_that_delta_forgot_counts_from_the_files_own_age(table: Path):
    day = 24 * HOUR
    write_file(table, "a", at=NOW - 20 * day)
    commit(table, 0, commit_info(NOW - 20 * day), added("a"))
    commit(table, 1, commit_info(NOW - 10 * day), removed("a", NOW - 10 * day))
    assert files_kept_since(DeltaLog(table), [Consumer("a", 0)]) == NOW - 20 * day
    metadata = {"configuration": {"delta.deletedFileRetentionDuration": "interval 30 days"}}
    commit(table, 2, {"metaData": metadata}, commit_info(NOW))
    assert files_kept_since(DeltaLog(table), [Consumer("a", 0)]) == NOW - 10 * day


def test_a_deletion_that_delta_forgets_while_the_window_lasts_counts_from_the_files_own_age_already(table: Path):
    week = 7 * 24 * HOUR
    at_borders = NOW - week + HOUR
    for moment, kept_since in ((at_borders, NOW - 2 * week), (at_borders + 1, at_borders + 1)):
        log_table = table / f"{moment:.0f}"
        commit(log_table, 0, commit_info(NOW - 2 * week), added("0"))
        commit(log_table, 1, commit_info(NOW), removed("0", moment), added("1"))
        write_file(log_table, "0", at=NOW - 2 * week)
        consumer = Consumer("reader", 0)
        assert files_kept_since(DeltaLog(log_table), [consumer]) == kept_since


def test_a_deletion_that_delta_forgot_and_whose_file_is_gone_holds_nothing_back(table: Path):
    commit(table, 0, commit_info(0), added("a"))
    commit(table, 1, commit_info(0), removed("a", 0))
    assert files_kept_since(DeltaLog(table), [Consumer("a", 0)]) is None


def test_a_file_that_was_removed_and_added_again_holds_nothing_back(table: Path):
    write_file(table, "a", at=5)
    commit(table, 0, commit_info(0), added("a"))
    commit(table, 1, commit_info(0), removed("a", 0))
    commit(table, 2, commit_info(0), added("a"))
    assert files_kept_since(DeltaLog(table), [Consumer("a", 0)]) is None


def test_everything_is_kept_for_a_consumer_whose_next_commit_is_gone_from_the_log(table: Path):
    for _ in range(5):
        append(table)
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{0:020}.json").unlink()
    (table / "_delta_log" / f"{1:020}.json").unlink()
    log = DeltaLog(table)
    assert files_kept_since(log, [Consumer("a", 0)]) == 0
    assert files_kept_since(log, [Consumer("a", 1)]) is None


def test_a_file_that_a_stream_has_yet_to_read_is_kept_and_one_it_has_read_is_not(table: Path):
    for _ in range(3):
        append(table)
    DeltaTable(table).optimize.compact()
    for _ in range(3):
        append(table)
    DeltaTable(table).optimize.compact()
    log = DeltaLog(table)
    later_seconds = time.time() + 10
    kept_since = vacuum_guard.files_kept_since(log, [Consumer("a", 5)], later_seconds, window_seconds=HOUR)
    assert kept_since
    deleted_paths = {file.path for file in vacuum_guard.would_vacuum(log, later_seconds - kept_since, later_seconds)}
    assert deleted_paths == {file.path for file in log.removed_after(0) if file.version == 3}


def test_vacuum_would_delete_what_it_would_delete(table: Path):
    for _ in range(3):
        append(table)
    DeltaTable(table).optimize.compact()
    write_deltalake(table, pyarrow.table({"number": [1]}), mode="append")
    write_file(table, "orphan.parquet", at=time.time() - 10, size=7)
    for hidden_path in ("_hidden/orphan.parquet", ".orphan.parquet.crc"):
        write_file(table, hidden_path, at=0)
    expected = DeltaTable(table).vacuum(retention_hours=0, dry_run=True, enforce_retention_duration=False, full=True)
    files = vacuum_guard.would_vacuum(DeltaLog(table), 0, time.time() + 1)
    assert {file.path for file in files} == set(expected)
    assert len(files) == 4
    assert {file.path: file.bytes for file in files}["orphan.parquet"] == 7


def test_a_young_file_and_a_young_tombstone_survive_vacuum(table: Path):
    commit(table, 0, added("old"), added("live"))
    commit(table, 1, removed("old", NOW - 2 * HOUR))
    for path in ("old", "live"):
        write_file(table, path, at=0)
    write_file(table, "day=1/unfinished", at=NOW - HOUR)
    log = DeltaLog(table)
    assert [file.path for file in vacuum_guard.would_vacuum(log, 3 * HOUR, NOW)] == []
    assert [file.path for file in vacuum_guard.would_vacuum(log, 1.5 * HOUR, NOW)] == ["old"]
    assert {file.path for file in vacuum_guard.would_vacuum(log, 0, NOW)} == {"old", "day=1/unfinished"}


def table_with_checkpoints(table: Path) -> DeltaLog:
    """Writes versions 0 to 11, checkpoints at 4 and 8, and Hadoop's checksums."""
    for version in range(12):
        append(table)
        if version in (4, 8):
            DeltaTable(table).create_checkpoint()
    directory = table / "_delta_log"
    for version in range(12):
        (directory / f"{version:020}.crc").write_text("{}")
        for kind in ("json", "crc"):
            (directory / f".{version:020}.{kind}.crc").write_text("")
    return DeltaLog(table)


@pytest.mark.parametrize(("needed", "oldest"), [(11, 8), (8, 8), (7, 4), (4, 4), (3, 0), (0, 0)])
def test_the_log_is_cut_at_the_newest_checkpoint_from_which_the_needed_version_can_be_read(
    table: Path, needed: int, oldest: int
):
    table_with_checkpoints(table)
    rows = {version: DeltaTable(table, version=version).count() for version in range(needed, 12)}
    deleted = vacuum_guard.clean_log(DeltaLog(table), needed)
    log = DeltaLog(table)
    assert log.versions == list(range(oldest, 12))
    assert not any(file.exists() for file in deleted)
    assert not [name for name in log.names if name.lstrip(".")[:20].isdigit() and int(name.lstrip(".")[:20]) < oldest]
    assert (table / "_delta_log" / "_last_checkpoint").exists()
    assert {version: DeltaTable(table, version=version).count() for version in rows} == rows


def test_killed_anywhere_the_clean_up_leaves_a_log_without_holes(table: Path):
    log = table_with_checkpoints(table)
    state = log.state
    removable = vacuum_guard.removable_log_files(log, 11)
    assert len(removable) == 8 * 4 + 1
    for file in removable:
        file.unlink()
        remaining_log = DeltaLog(table)
        assert remaining_log.versions == list(range(remaining_log.versions[0], 12))
        assert remaining_log.state == state


def test_a_log_whose_only_checkpoint_was_cut_short_is_left_alone(table: Path):
    for _ in range(4):
        append(table)
    DeltaTable(table).create_checkpoint()
    os.truncate(table / "_delta_log" / f"{3:020}.checkpoint.parquet", 100)
    assert vacuum_guard.clean_log(DeltaLog(table), 3) == []


def test_files_of_the_change_feed_that_a_reader_has_yet_to_read_are_kept_by_their_age(table: Path):
    commit(table, 0, commit_info(NOW - 9 * HOUR), added("a"))
    write_file(table, "_change_data/cdc-1", at=NOW - 6 * HOUR)
    commit(
        table,
        1,
        commit_info(NOW - 5 * HOUR),
        removed("a", NOW - 5 * HOUR),
        added("b"),
        {"cdc": {"path": "_change_data/cdc-1"}},
    )
    write_file(table, "b")
    log = DeltaLog(table)
    assert files_kept_since(log, [Consumer("reader", 0)]) == NOW - 6 * HOUR
    assert files_kept_since(log, [Consumer("reader", 1)]) is None
    assert [file.path for file in vacuum_guard.would_vacuum(log, 4 * HOUR, NOW)] == ["_change_data/cdc-1"]
