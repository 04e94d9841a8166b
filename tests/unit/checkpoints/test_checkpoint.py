"""Files of checkpoints, in directories that the tests write in Spark's layout."""

import json
from pathlib import Path

import pytest

from include.checkpoints import checkpoint_files
from include.errors import FlowFailed

SETTINGS = '{"batchWatermarkMs":0,"batchTimestampMs":1772366400000,"conf":{}}'


def write(directory: Path, name: str, *lines: str) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text("\n".join(lines))


def test_the_newest_generation_is_the_highest_number(tmp_path: Path):
    for name in ("1", "2", "10", "lock", "3.bak", ".11.tmp"):
        (tmp_path / name).mkdir()
    assert checkpoint_files.newest_generation(tmp_path) == 10


def test_a_flow_that_never_ran_has_no_generation_and_no_batch(tmp_path: Path):
    assert checkpoint_files.newest_generation(tmp_path) is None
    assert checkpoint_files.newest_generation(tmp_path / "missing") is None
    assert checkpoint_files.last_planned(tmp_path) is None
    assert checkpoint_files.last_committed(tmp_path) is None


def test_a_planned_batch_is_not_a_committed_one(tmp_path: Path):
    for batch in (8, 9, 10, 11):
        write(tmp_path / "offsets", str(batch), "v1", SETTINGS, "{}")
    for batch in (8, 9, 10):
        write(tmp_path / "commits", str(batch), "v1", "{}")
    assert checkpoint_files.last_planned(tmp_path) == 11
    assert checkpoint_files.last_committed(tmp_path) == 10


def test_checksums_and_unfinished_files_are_no_batches(tmp_path: Path):
    for name in ("3", ".4.crc", ".5.2f3a.tmp", "6.compact", "7.tmp"):
        write(tmp_path / "commits", name, "v1", "{}")
    assert checkpoint_files.last_committed(tmp_path) == 3


def test_an_end_offset_is_the_line_of_the_source(tmp_path: Path):
    offset = {"events": {"0": 5, "1": 7}}
    write(tmp_path / "offsets", "0", "v1", SETTINGS, json.dumps(offset))
    assert checkpoint_files.end_offset(tmp_path, 0) == offset


def test_before_the_first_batch_and_for_a_source_without_rows_there_is_no_offset(tmp_path: Path):
    write(tmp_path / "offsets", "0", "v1", SETTINGS, "-")
    assert checkpoint_files.end_offset(tmp_path, -1) is None
    assert checkpoint_files.end_offset(tmp_path, 0) is None


@pytest.mark.parametrize(
    "content",
    [
        *([], ["v1"], ["v1", SETTINGS], ["v1", SETTINGS, '{"events":{"0"'], ["v1", SETTINGS, "null"]),
        *(["v1", SETTINGS[:20], "{}"], ["v1", "[]", "{}"], ["v2", SETTINGS], ["v2", SETTINGS, '0:{"events"']),
    ],
)
def test_a_file_that_was_cut_short_is_named_and_does_not_pass_for_an_empty_source(tmp_path: Path, content: list[str]):
    write(tmp_path / "offsets", "4", *content)
    with pytest.raises(FlowFailed) as refusal:
        checkpoint_files.end_offset(tmp_path, 4)
    sentence = f"{tmp_path}/offsets/4 does not say where its batch ends, it was cut short: restore it from its backup"
    assert str(refusal.value).startswith(sentence)


def test_a_format_it_does_not_know_is_refused_instead_of_misread(tmp_path: Path):
    write(tmp_path / "offsets", "0", "v3", SETTINGS, '{"0":{"events":{"0":5}}}')
    with pytest.raises(FlowFailed) as refusal:
        checkpoint_files.end_offset(tmp_path, 0)
    sentence = f"{tmp_path}/offsets/0 has the format 'v3', and Sluice reads v1 and v2: restore it from its backup"
    assert str(refusal.value).startswith(sentence)


def test_a_batch_of_several_sources_is_refused_wherever_its_end_is_read(tmp_path: Path):
    write(tmp_path / "offsets", "0", "v1", SETTINGS, "{}", "{}")
    for read in (checkpoint_files.end_offset, checkpoint_files.planned_batch):
        with pytest.raises(FlowFailed, match="offsets/0 is of 2 sources, and a flow has one: restore it"):
            read(tmp_path, 0)


@pytest.mark.parametrize("form", ["v1", "v2"])
def test_a_flow_goes_on_from_both_of_sparks_formats(tmp_path: Path, form: str):
    offset, prefix = {"events": {"0": 5}}, "" if form == "v1" else "0:"
    write(tmp_path, "metadata", '{"id":"x"}')
    write(tmp_path / "offsets", "0", form, "", f"{prefix}-")
    write(tmp_path / "offsets", "1", form, SETTINGS, f"{prefix}{json.dumps(offset)}")
    for batch in ("0", "1"):
        write(tmp_path / "commits", batch, form, '{"nextBatchWatermarkMs":0}')
    checkpoint_files.check(tmp_path)
    assert [checkpoint_files.end_offset(tmp_path, batch) for batch in (0, 1)] == [None, offset]
    assert checkpoint_files.planned_batch(tmp_path, 1).at == 1_772_366_400


@pytest.mark.parametrize("content", [[""], ["v1", '{"nextBatchWa'], ["v3", "{}"], ["v1", "[]"]])
def test_a_start_refuses_the_commit_that_the_inspection_refuses(tmp_path: Path, content: list[str]):
    write(tmp_path, "metadata", '{"id":"x"}')
    write(tmp_path / "offsets", "0", "v1", SETTINGS, "{}")
    write(tmp_path / "commits", "0", *content)
    for read in (checkpoint_files.check, lambda checkpoint: checkpoint_files.check_commit(checkpoint, 0)):
        with pytest.raises(FlowFailed, match="commits/0 does not say what was committed, it was cut short"):
            read(tmp_path)


@pytest.mark.parametrize(
    ("version", "index", "reached"),
    [(7, 0, 7), (7, 4, 7), (7, -1, 6), (7, -100, 6), (7, -20, 6), (0, 0, 0)],
)
def test_a_delta_offset_reaches_into_a_version_only_past_its_beginning(version: int, index: int, reached: int):
    offset = {"sourceVersion": 1, "reservoirId": "x", "reservoirVersion": version, "index": index}
    assert checkpoint_files.read_version({**offset, "isStartingVersion": False}) == reached
