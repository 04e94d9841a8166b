"""A checkpoint or a table is lost, damaged, reset or belongs to another flow, or the disk is full."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from include.control.commands import Action
from include.engine import commit
from include.errors import FlowBroken, FlowFailed, LeaseHeld
from include.lake import locations
from include.lake.paths import remove_tree
from include.spec import Delta, Flow, Table
from tests.support.commits import fail_commits
from tests.support.flows import only_in_full_runs, rows_of


def directory(table: Table, generation: int = 1) -> Path:
    return locations.checkpoints(table.name) / str(generation)


@contextmanager
def failing_commits(monkeypatch, after: int = 0) -> Iterator[None]:
    """Fail all commits of the block except the first `after`. The failed batches are planned and quarantined."""
    with monkeypatch.context() as patch, pytest.raises(FlowFailed, match="the disk is gone"):
        fail_commits(patch, after)
        yield


def delete_commit_log_entry(table: Table, batch: int, generation: int = 1) -> None:
    """Leave the checkpoint as a kill between the table's commit and the commit log entry does."""
    commits = directory(table, generation) / "commits"
    for file in (commits / str(batch), commits / f".{batch}.crc"):
        file.unlink(missing_ok=True)


def test_a_checkpoint_that_is_gone_is_refused_and_begins_anew_where_the_table_ends(chain, topic, run_once, ask):
    topic.create(2).send(*range(4), "x")
    run_once(*chain.all)
    topic.send(*range(60, 64), "y")
    for table in chain.all:
        shutil.rmtree(directory(table))
        with pytest.raises(FlowBroken, match=f"{table.name}: .*batch 0, .*action reset checkpoint") as refusal:
            run_once(table)
        assert refusal.value.error == "CHECKPOINT_LOST"
        ask(Action.RESET_CHECKPOINT, table)
        run_once(table)
    chain.assert_holds(topic.messages())


@only_in_full_runs
def test_a_checkpoint_whose_newest_generation_is_gone_is_refused(chain, topic, run_once, ask):
    topic.create().send(1)
    run_once(chain.bronze)
    for generation in (2, 3):
        ask(Action.RESET_CHECKPOINT, chain.bronze)
        topic.send(generation)
        run_once(chain.bronze)
    shutil.rmtree(directory(chain.bronze, 3))
    with pytest.raises(FlowBroken) as refusal:
        run_once(chain.bronze)
    assert refusal.value.error == "CHECKPOINT_LOST"
    ask(Action.RESET_CHECKPOINT, chain.bronze)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


@only_in_full_runs
def test_a_checkpoint_restored_from_an_old_backup_is_refused(chain, topic, run_once, ask, tmp_path):
    topic.create().send(1)
    run_once(chain.bronze)
    shutil.copytree(directory(chain.bronze), tmp_path / "backup")
    topic.send(2)
    run_once(chain.bronze)
    shutil.rmtree(directory(chain.bronze))
    shutil.copytree(tmp_path / "backup", directory(chain.bronze))
    with pytest.raises(FlowBroken) as refusal:
        run_once(chain.bronze)
    assert refusal.value.error == "CHECKPOINT_LOST"
    ask(Action.RESET_CHECKPOINT, chain.bronze)
    run_once(chain.bronze)
    chain.assert_bronze_holds(topic.messages())


def test_a_table_that_is_gone_is_refused_and_read_again_from_its_source(chain, topic, run_once, ask):
    topic.create(2).send(*range(4), "x")
    run_once(*chain.all)
    topic.send(*range(60, 64))
    for table in reversed(chain.all):
        remove_tree(locations.table_path(table.name))
        with pytest.raises(FlowBroken, match=f"{table.name}: its checkpoint .*restore the table") as refusal:
            run_once(table)
        assert refusal.value.error == "TABLE_LOST"
    for table in chain.all:
        ask(Action.RESET_CHECKPOINT, table)
        run_once(table)
    chain.assert_holds(topic.messages())


@only_in_full_runs
def test_a_table_that_is_lost_after_a_reset_and_before_the_next_batch_is_noticed_too(chain, topic, run_once, ask):
    topic.create().send(1)
    run_once(chain.bronze)
    ask(Action.RESET_CHECKPOINT, chain.bronze)
    run_once(chain.bronze)
    remove_tree(locations.table_path(chain.bronze.name))
    with pytest.raises(FlowBroken) as refusal:
        run_once(chain.bronze)
    assert refusal.value.error == "TABLE_LOST"
    ask(Action.RESET_CHECKPOINT, chain.bronze)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


@only_in_full_runs
def test_a_table_whose_source_was_lost_is_made_anew_from_the_new_one(chain, topic, run_once, ask):
    topic.create().send(1, "x")
    run_once(*chain.all)
    remove_tree(locations.table_path(chain.bronze.name))
    ask(Action.RESET_CHECKPOINT, chain.bronze)
    topic.send(2, "y")
    run_once(chain.bronze)
    with pytest.raises(FlowBroken, match=f"{chain.silver.name}: .*move its table away and action reset") as refusal:
        run_once(chain.silver)
    assert refusal.value.error == "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE"
    for table in (chain.silver, chain.gold):
        remove_tree(locations.table_path(table.name))
        ask(Action.RESET_CHECKPOINT, table)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


def test_a_reset_is_not_misled_by_what_others_write_into_the_tables_history(chain, topic, run_once, ask, spark):
    topic.create().send(1)
    run_once(chain.bronze)
    spark.conf.set(commit.USER_METADATA, "by hand")
    spark.sql(f"ALTER TABLE {chain.bronze.name} SET TBLPROPERTIES ('by' = 'hand')")
    spark.conf.unset(commit.USER_METADATA)
    topic.send(2)
    ask(Action.RESET_CHECKPOINT, chain.bronze)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


@pytest.mark.parametrize("is_planned", [pytest.param(False, marks=only_in_full_runs), True], ids=["idle", "planned"])
def test_a_reset_loses_and_doubles_nothing(chain, topic, run_once, ask, monkeypatch, is_planned):
    topic.create(2).send(*range(4), "x")
    run_once(*chain.all)
    topic.send(*range(60, 64), "y")
    if is_planned:
        for table in chain.all:
            with failing_commits(monkeypatch):
                run_once(table)
            run_once(*chain.all[: chain.all.index(table)])
            ask(Action.RESET_CHECKPOINT, table)
            run_once(table)
    for table in chain.all:
        ask(Action.RESET_CHECKPOINT, table)
    topic.send(*range(120, 124), "z")
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


@only_in_full_runs
def test_a_kill_in_the_first_batch_after_a_reset_loses_and_doubles_nothing(chain, topic, run_once, ask, monkeypatch):
    topic.create().send(*range(3))
    run_once(*chain.all)
    topic.send(100, "y")
    for table in chain.all:
        ask(Action.RESET_CHECKPOINT, table)
        with failing_commits(monkeypatch):
            run_once(table)
        run_once(table)
    chain.assert_holds(topic.messages())


@only_in_full_runs
def test_a_reset_before_the_first_commit_starts_from_the_beginning(chain, topic, run_once, ask, monkeypatch):
    topic.create().send(1, "x")
    run_once(chain.bronze)
    with failing_commits(monkeypatch):
        run_once(chain.silver)
    ask(Action.RESET_CHECKPOINT, chain.silver)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


@pytest.mark.parametrize(
    "files", [pytest.param(1, marks=only_in_full_runs), 2, pytest.param(3, marks=only_in_full_runs)]
)
def test_a_reset_in_the_middle_of_a_tables_version_goes_on_with_its_next_file(
    append, run_once, ask, name, spark, monkeypatch, files
):
    """files: how many of the four files of a version, or of the initial snapshot, the first run reads."""
    path = locations.table_path(f"bronze.{name}")
    for first in (0, 4):
        frame = spark.range(first, first + 4, numPartitions=4).toDF("a")
        frame.write.format("delta").mode("append").save(str(path))
        table = Flow(
            name=f"silver.{name}",
            comment="a copy",
            source=Delta(f"bronze.{name}", max_files=1),
            schema="a BIGINT",
        )
        with failing_commits(monkeypatch, after=files):
            run_once(table)
        ask(Action.RESET_CHECKPOINT, table)
        run_once(table)
        assert sorted(row["a"] for row in rows_of(table.name)) == list(range(first + 4))


DAMAGED_FILES = ("offsets/1", "commits/1", "metadata", "owner.json", "offsets/0")


@pytest.mark.parametrize("is_gone", [False, pytest.param(True, marks=only_in_full_runs)], ids=["empty", "gone"])
@pytest.mark.parametrize("file", DAMAGED_FILES)
def test_a_damaged_checkpoint_is_refused_and_begins_anew_where_the_table_ends(
    chain, topic, run_once, ask, file, is_gone
):
    topic.create(2)
    for start in (0, 60):
        topic.send(*range(start, start + 4))
        run_once(chain.bronze)
    damaged_file = directory(chain.bronze) / file
    # With its checksum file, Hadoop would detect the damage first.
    (damaged_file.parent / f".{damaged_file.name}.crc").unlink(missing_ok=True)
    damaged_file.unlink() if is_gone else damaged_file.write_bytes(b"")
    topic.send(*range(120, 124))
    if (file, is_gone) != ("commits/1", True):
        with pytest.raises(FlowBroken, match="restore it from its backup.*action reset checkpoint") as refusal:
            run_once(chain.bronze)
        assert refusal.value.error == "CHECKPOINT_DAMAGED"
        ask(Action.RESET_CHECKPOINT, chain.bronze)
    run_once(chain.bronze)
    chain.assert_bronze_holds(topic.messages())


@only_in_full_runs
@pytest.mark.parametrize("is_written", [False, True], ids=["unwritten", "written"])
def test_the_offsets_of_a_planned_batch_may_be_damaged_whether_it_was_written_or_not(
    chain, topic, run_once, ask, monkeypatch, is_written
):
    topic.create().send(1, "x")
    run_once(chain.bronze, chain.silver)
    topic.send(2, "y")
    run_once(chain.bronze)
    if is_written:
        run_once(chain.silver)
        delete_commit_log_entry(chain.silver, 1)
    else:
        with failing_commits(monkeypatch):
            run_once(chain.silver)
    (directory(chain.silver) / "offsets" / "1").write_bytes(b"")
    with pytest.raises(FlowBroken) as refusal:
        run_once(chain.silver)
    assert refusal.value.error == "CHECKPOINT_DAMAGED"
    ask(Action.RESET_CHECKPOINT, chain.silver)
    topic.send(3, "z")
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


@only_in_full_runs
def test_where_a_flow_began_to_read_its_topic_may_be_damaged_before_its_first_batch_is_written(
    chain, topic, run_once, ask, monkeypatch
):
    topic.create(2).send(*range(4))
    with failing_commits(monkeypatch):
        run_once(chain.bronze)
    initial_offsets = directory(chain.bronze) / "sources" / "0" / "0"
    initial_offsets.with_name(".0.crc").unlink(missing_ok=True)
    initial_offsets.write_bytes(b"")
    with pytest.raises(FlowBroken, match="action reset checkpoint") as refusal:
        run_once(chain.bronze)
    assert refusal.value.error == "CHECKPOINT_DAMAGED"
    ask(Action.RESET_CHECKPOINT, chain.bronze)
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


def test_the_checkpoint_of_another_flow_is_refused(chain, topic, run_once):
    topic.create().send(1)
    run_once(chain.bronze)
    other_table = replace(chain.bronze, name=f"{chain.bronze.name}_b")
    shutil.copytree(directory(chain.bronze), directory(other_table))
    with pytest.raises(FlowBroken, match=f"{other_table.name}: its checkpoint .*a name of its own") as refusal:
        run_once(other_table)
    assert refusal.value.error == "CHECKPOINT_OF_ANOTHER_DEFINITION"


def test_a_checkpoint_that_another_process_has_locked_is_left_alone(chain, topic, run_once):
    topic.create().send(1)
    home = locations.checkpoints(chain.bronze.name)
    home.mkdir(parents=True)
    with (home / "lock").open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        with pytest.raises(LeaseHeld, match=f"the checkpoint of {chain.bronze.name} is locked.*end it"):
            run_once(chain.bronze)
        assert list(home.iterdir()) == [home / "lock"]
    run_once(*chain.all)
    chain.assert_holds(topic.messages())


@pytest.fixture
def small_disk() -> Iterator:
    """`small_disk(path, "3m")` mounts a tmpfs of this size at a directory. A second call changes the size."""
    mount_points = []

    def mount(path: Path, size: str) -> None:
        path.mkdir(parents=True, exist_ok=True)
        options = f"size={size}" + (",remount" if path in mount_points else "")
        result = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, text=True
        )
        if result.returncode:
            pytest.skip(f"a disk that is full needs the right to mount one: {result.stderr.strip()}")
        mount_points.append(path)

    yield mount
    for path in set(mount_points):
        subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.parametrize("part", ["table", "checkpoint"])
def test_a_flow_whose_disk_is_full_goes_on_once_there_is_room(chain, topic, run_once, small_disk, part):
    home = locations.table_path(chain.bronze.name) if part == "table" else locations.checkpoints(chain.bronze.name)
    topic.create(2).send(*range(4))
    small_disk(home, "400k")
    run_once(chain.bronze)
    topic.send(*[os.urandom(50_000) for _ in range(20)])
    if part == "checkpoint":
        with (home / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(1024))
    for _ in range(2):
        with pytest.raises(FlowFailed) as failure:
            run_once(chain.bronze)
        assert not failure.value.needs_person, failure.value.error
    small_disk(home, "40m")
    run_once(chain.bronze)
    chain.assert_bronze_holds(topic.messages())
