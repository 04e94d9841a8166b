"""Delta logs of tables that the deltalake library wrote, and of commits that the tests write as Spark does."""

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow
import pyarrow.parquet as parquet
import pytest
from deltalake import DeltaTable

from include.delta import commit_history
from include.delta.delta_log import Commit, DeltaLog
from include.errors import FlowBroken, Unreachable
from tests.support.delta_log import added, append, commit, commit_info, removed


def test_live_files_have_their_size_rows_and_time(tmp_path: Path):
    begin_seconds = time.time()
    append(tmp_path, rows=3)
    append(tmp_path, rows=5)
    live = DeltaLog(tmp_path).state.live
    assert [file.rows for file in live] == [3, 5]
    assert [file.bytes for file in live] == [(tmp_path / file.path).stat().st_size for file in live]
    assert all(begin_seconds - 1 < file.modified_at < time.time() + 1 for file in live)


def test_what_compaction_took_out_is_a_tombstone_with_its_version_and_size(tmp_path: Path):
    for _ in range(3):
        append(tmp_path)
    sizes = {file.path: file.bytes for file in DeltaLog(tmp_path).state.live}
    DeltaTable(tmp_path).optimize.compact()
    state = DeltaLog(tmp_path).state
    assert {tombstone.path: tombstone.bytes for tombstone in state.tombstones} == sizes
    assert {tombstone.version for tombstone in state.tombstones} == {3}
    assert [file.rows for file in state.live] == [9]


def test_a_state_from_a_checkpoint_is_the_state_from_all_commits(tmp_path: Path):
    for _ in range(3):
        append(tmp_path)
    DeltaTable(tmp_path).alter.set_table_properties({"delta.deletedFileRetentionDuration": "interval 3 days"})
    DeltaTable(tmp_path).optimize.compact()
    state_before = DeltaLog(tmp_path).state
    DeltaTable(tmp_path).create_checkpoint()
    append(tmp_path, rows=7)
    for version in range(3):
        (tmp_path / "_delta_log" / f"{version:020}.json").unlink()
    log = DeltaLog(tmp_path)
    assert list(log.checkpoints) == [4]
    assert log.versions == [3, 4, 5]
    assert log.state.live[:1] == state_before.live
    assert log.state.live[1].rows == 7
    assert {tombstone.path: tombstone.deleted_at for tombstone in log.state.tombstones} == {
        tombstone.path: tombstone.deleted_at for tombstone in state_before.tombstones
    }
    assert {tombstone.version for tombstone in log.state.tombstones} == {None}
    assert log.state.properties == state_before.properties == {"delta.deletedFileRetentionDuration": "interval 3 days"}


def test_a_file_that_was_added_again_is_live_and_no_tombstone(tmp_path: Path):
    commit(tmp_path, 0, added("a"), added("b"))
    commit(tmp_path, 1, removed("a"), removed("b"))
    commit(tmp_path, 2, added("a", size=20))
    state = DeltaLog(tmp_path).state
    assert [(file.path, file.bytes) for file in state.live] == [("a", 20)]
    assert [tombstone.path for tombstone in state.tombstones] == ["b"]


def test_a_file_that_gets_a_deletion_vector_stays(tmp_path: Path):
    commit(tmp_path, 0, added("a"))
    commit(tmp_path, 1, added("a", deletionVector={"storageType": "u", "pathOrInlineDv": "x"}), removed("a"))
    state = DeltaLog(tmp_path).state
    assert [file.path for file in state.live] == ["a"]
    assert state.tombstones == ()


def test_rows_and_sizes_nobody_wrote_down_are_unknown(tmp_path: Path):
    commit(tmp_path, 0, added("a"), added("b", stats='{"numRecords":'), added("c", stats='{"numRecords":4}'))
    commit(tmp_path, 1, removed("a"))
    state = DeltaLog(tmp_path).state
    assert [file.rows for file in state.live] == [None, 4]
    assert [tombstone.bytes for tombstone in state.tombstones] == [None]


def test_a_path_is_the_one_on_disk(tmp_path: Path):
    commit(tmp_path, 0, added("day=a%20b/file.parquet"))
    assert DeltaLog(tmp_path).state.live[0].path == "day=a b/file.parquet"


def test_a_mark_inside_a_text_ends_no_line(tmp_path: Path):
    file = commit(tmp_path, 0, added("a"))
    file.write_text('{"add":{"path":"a\u2028b","size":1,"modificationTime":1}}\n', encoding="utf-8")
    assert DeltaLog(tmp_path).state.live[0].path == "a\u2028b"


def test_a_checkpoint_counts_only_with_all_its_parts_and_whole(tmp_path: Path):
    for version in range(5):
        commit(tmp_path, version, added(f"{version}"))
    actions = pyarrow.table({"add": [{"path": "a", "size": 1, "modificationTime": 0}]})
    for name in (
        "00000000000000000001.checkpoint.0000000001.0000000002.parquet",
        "00000000000000000001.checkpoint.0000000002.0000000002.parquet",
        "00000000000000000002.checkpoint.0000000001.0000000002.parquet",
        "00000000000000000003.checkpoint.parquet",
        "00000000000000000004.checkpoint.parquet",
        ".00000000000000000004.checkpoint.parquet.crc",
    ):
        parquet.write_table(actions, tmp_path / "_delta_log" / name)
    os.truncate(tmp_path / "_delta_log" / "00000000000000000003.checkpoint.parquet", 50)
    os.truncate(tmp_path / "_delta_log" / "00000000000000000004.checkpoint.parquet", 0)
    log = DeltaLog(tmp_path)
    assert {version: len(files) for version, files in log.checkpoints.items()} == {1: 2}
    assert [file.path for file in log.state.live] == ["a", "2", "3", "4"]


@pytest.mark.parametrize("name", ["checkpoint.7d17ac10-5cc3-401b-bd1a-9c82dd2ea032.parquet", "checkpoint.parquet"])
def test_a_checkpoint_of_the_new_format_is_refused_by_name(tmp_path: Path, name: str):
    for version in range(3):
        commit(tmp_path, version, added(f"{version}"))
    file = tmp_path / "_delta_log" / f"{1:020}.{name}"
    parquet.write_table(pyarrow.table({"checkpointMetadata": [{"version": 1}]}), file)
    with pytest.raises(FlowBroken) as refusal:
        _ = DeltaLog(tmp_path).state
    assert str(refusal.value).startswith(f"{file} is a checkpoint of format v2, and Sluice reads the classic one: set ")


def test_a_log_with_a_hole_is_refused_instead_of_misread(tmp_path: Path):
    for version in (0, 1, 3):
        commit(tmp_path, version, added(f"{version}"))
    with pytest.raises(
        FlowBroken, match=r"lacks commits between version 0 and 3 of its log, .* restore .*_delta_log from"
    ):
        _ = DeltaLog(tmp_path).state


def test_a_commit_that_was_cut_short_is_named(tmp_path: Path):
    file = commit(tmp_path, 0, added("a"), added("b"))
    file.write_text(file.read_text()[:-5])
    with pytest.raises(FlowBroken) as refusal:
        _ = DeltaLog(tmp_path).state
    assert str(refusal.value).startswith(f"{file} is missing or damaged, ")


def test_a_table_that_is_not_stored_yet_is_named(tmp_path: Path):
    with pytest.raises(Unreachable) as refusal:
        DeltaLog(tmp_path / "silver")
    assert str(refusal.value) == f"{tmp_path}/silver holds no Delta log: start the flow that writes the table first"


def test_a_commit_says_what_it_did_and_whose_it_is(tmp_path: Path):
    metrics = {"numFiles": "2", "numOutputRows": "30", "numOutputBytes": "400"}
    commit(tmp_path, 0, added("a"), commit_info(9.5, userMetadata='{"flow":"x"}', operationMetrics=metrics))
    assert DeltaLog(tmp_path).commit(0) == Commit(0, 9.5, "WRITE", {"flow": "x"}, rows=30, files=2, bytes=400)


@pytest.mark.parametrize("text", ["by hand", "[1]", '{"flow"', ""])
def test_what_somebody_else_wrote_into_a_commit_is_passed_over(tmp_path: Path, text: str):
    commit(tmp_path, 0, commit_info(userMetadata=text))
    assert DeltaLog(tmp_path).commit(0).metadata == {}


def test_the_time_of_a_commit_is_the_one_the_table_vouches_for(tmp_path: Path):
    commit(tmp_path, 0, commit_info(8, inCommitTimestamp=9_000))
    commit(tmp_path, 1, commit_info(8))
    os.utime(commit(tmp_path, 2, added("a")), (10, 10))
    assert [entry.timestamp for entry in DeltaLog(tmp_path).commits()] == [10, 8, 9]


def test_commits_of_the_library_tell_their_operation_and_stamp(tmp_path: Path):
    append(tmp_path, user_metadata='{"flow":"silver.x"}')
    append(tmp_path)
    DeltaTable(tmp_path).optimize.compact()
    commits = list(DeltaLog(tmp_path).commits())
    assert [(entry.version, entry.operation) for entry in commits] == [(2, "OPTIMIZE"), (1, "WRITE"), (0, "WRITE")]
    assert commits[2].metadata == {"flow": "silver.x"}


def test_commits_before_the_checkpoint_are_not_read_for_the_state_nor_for_the_newest_commit(tmp_path: Path):
    for version in range(4):
        commit(tmp_path, version, commit_info())
    for version in (0, 1):
        (tmp_path / "_delta_log" / f"{version:020}.json").write_text("no JSON")
    actions = pyarrow.table({"add": [{"path": "a", "size": 1, "modificationTime": 0}]})
    parquet.write_table(actions, tmp_path / "_delta_log" / f"{1:020}.checkpoint.parquet")
    log = DeltaLog(tmp_path)
    assert [file.path for file in log.state.live] == ["a"]
    assert next(log.commits()).version == 3


def test_what_later_commits_removed_is_told_with_its_version(tmp_path: Path):
    commit(tmp_path, 0, added("a"), added("b"), added("c", tags={"remove": "x"}))
    commit(tmp_path, 1, removed("a"))
    commit(tmp_path, 2, removed("b", size=4))
    log = DeltaLog(tmp_path)
    assert [(tombstone.path, tombstone.version) for tombstone in log.removed_after(-1)] == [("a", 1), ("b", 2)]
    assert [(tombstone.path, tombstone.version, tombstone.bytes) for tombstone in log.removed_after(1)] == [("b", 2, 4)]


# Versions 2 and 3 are of one moment. The clock went back by 40 s before version 5.
COMMITTED_AT = (1_000, 1_100, 1_200, 1_200, 1_300, 1_260, 1_280, 1_400)


@pytest.mark.parametrize(
    ("moment", "version", "count_before"),
    [
        (999.999, None, 0),
        (1_000, 0, 0),
        (1_050, 0, 1),
        (1_200, 3, 2),
        (1_259, 3, 4),
        # Delta's time travel does not let a version after version 4 be older than it.
        (1_260, 3, 4),
        (1_280, 3, 4),
        (1_300, 6, 4),
        (1_399, 6, 7),
        (1_400, 7, 7),
        (9_999, 7, 8),
    ],
)
@pytest.mark.parametrize("oldest", [0, 2], ids=["a whole log", "a cleaned log"])
def test_a_moment_has_one_version_whoever_asks(tmp_path: Path, moment, version, count_before, oldest):
    for number, at in enumerate(COMMITTED_AT):
        commit(tmp_path, number, commit_info(at))
    log = DeltaLog(tmp_path, range(oldest, len(COMMITTED_AT)))
    assert log.version_at(moment) == (version if version is not None and version >= oldest else None)
    assert log.committed_by(moment, is_before=True) == max(0, count_before - oldest)


def test_few_commits_of_a_long_log_are_read_for_a_moment(tmp_path: Path, monkeypatch):
    for number in range(600):
        commit(tmp_path, number, commit_info(number * 30))
    log, read = DeltaLog(tmp_path), []
    original = DeltaLog.commit
    monkeypatch.setattr(DeltaLog, "commit", lambda self, number: read.append(number) or original(self, number))
    assert log.version_at(9_000) == 300
    assert len(read) < 15


def test_a_restore_to_a_moment_restored_what_time_travel_shows(tmp_path: Path):
    for number, at in enumerate(COMMITTED_AT):
        commit(tmp_path, number, commit_info(at))

    def restored_by(seconds: float, oldest: int = 0) -> int | None:
        moment = datetime.fromtimestamp(seconds, UTC).isoformat()
        info = commit_info(1_350, operation="RESTORE", operationParameters={"timestamp": moment})
        commit(tmp_path, 8, info)
        log = DeltaLog(tmp_path, range(oldest, 9))
        return commit_history.restored_to(log, log.commit(8))

    assert [restored_by(seconds) for seconds in (1_000, 1_200, 1_270, 1_399, 1_500)] == [0, 3, 3, 6, 7]
    # Nothing in the log is as old.
    assert (restored_by(999), restored_by(1_150, oldest=2), restored_by(1_500, oldest=8)) == (8, 8, 8)


def test_a_commit_bears_the_generation_and_batch_of_its_flow_or_none(tmp_path: Path):
    metadata = [{"flow": "a", "generation": 2, "batch": "7"}, {"flow": "a", "generation": 2}, {}]
    for number, fields in enumerate(metadata):
        commit(tmp_path, number, commit_info(number, userMetadata=json.dumps(fields)))
    assert [DeltaLog(tmp_path).commit(number).batch for number in range(3)] == [(2, 7), None, None]
