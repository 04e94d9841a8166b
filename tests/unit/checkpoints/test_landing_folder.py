"""The files of a landing folder, and those that batches have taken, read without a JVM."""

import json
import os
from pathlib import Path

import pytest

from include.checkpoints import landing_folder
from include.errors import FlowBroken, Unreachable
from include.settings import from_environment
from include.spec import Files


def write(checkpoint: Path, **entries: list[int]) -> None:
    """Writes a log, one file per entry, such as `_3=[3]` and `_9_compact=[0, ..., 9]`."""
    log = checkpoint / "sources" / "0"
    log.mkdir(parents=True)
    for name, numbers in entries.items():
        lines = [
            json.dumps({"path": f"file:///in/{number}%20.csv", "timestamp": number + 1, "batchId": number})
            for number in numbers
        ]
        (log / name[1:].replace("_", ".")).write_text("\n".join(["v1", *lines]))


def test_the_log_of_files_is_read_across_its_compactions(tmp_path):
    write(tmp_path, _8=[8], _9_compact=list(range(10)), _10=[10], _11=[11])
    assert [file.path for file in landing_folder.planned_files(tmp_path, {"logOffset": 10})] == [
        f"/in/{number} .csv" for number in range(11)
    ]
    assert [file.entry for file in landing_folder.files_of_batch(tmp_path, {"logOffset": 8}, {"logOffset": 10})] == [
        9,
        10,
    ]
    assert [file.entry for file in landing_folder.files_of_batch(tmp_path, None, {"logOffset": 1})] == [0, 1]
    assert landing_folder.planned_files(tmp_path, None) == []


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ({"_0": [0], "_2": [2]}, "sources/0 has a hole"),
        ({"_0": [0], "_1": [1]}, "sources/0 ends before what the batches have read"),
        ({}, "sources/0 ends before what the batches have read"),
    ],
)
def test_a_log_that_lost_entries_is_refused_instead_of_reading_their_files_again(tmp_path, entries, sentence):
    write(tmp_path, **entries)
    with pytest.raises(FlowBroken, match=f"{sentence}: restore it from its backup"):
        landing_folder.planned_files(tmp_path, {"logOffset": 2})


@pytest.mark.parametrize("text", ["", "v2\n", 'v1\n{"path":"file:///a.csv","time', "v1\n{}"])
def test_a_log_file_that_was_cut_short_is_refused(tmp_path, text):
    write(tmp_path, _0=[0])
    (tmp_path / "sources" / "0" / "0").write_text(text)
    with pytest.raises(FlowBroken, match="does not say which files were found, it was cut short"):
        landing_folder.planned_files(tmp_path, {"logOffset": 0})


def test_only_files_that_spark_would_take_are_waiting(tmp_path):
    for name in ("a.csv", ".b.csv", "_c.csv", "d.txt", "e.csv._COPYING_", "f/g.csv", "_h/i.csv", "_k=1/l.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    source = Files(str(tmp_path), format="csv", pattern="*.csv")
    assert {str(Path(path).relative_to(tmp_path)) for path in landing_folder.files_in_folder(source)} == {
        "a.csv",
        "f/g.csv",
        "_k=1/l.csv",
    }


def test_a_folder_that_is_not_there_cannot_be_looked_at():
    with pytest.raises(Unreachable, match="/nowhere/at/all cannot be listed .*: mount it, or create it"):
        landing_folder.files_in_folder(Files("/nowhere/at/all", format="csv"))


def test_a_file_that_has_another_date_than_when_it_was_found_has_changed(tmp_path):
    (tmp_path / "a.csv").touch()
    os.utime(tmp_path / "a.csv", (5, 5))
    files = landing_folder.files_in_folder(Files(str(tmp_path), format="csv"))
    uri = (tmp_path / "a.csv").as_uri()
    changed_files = {
        found_ms: landing_folder.changed([landing_folder.PlannedFile(uri, found_ms, 0)], files)
        for found_ms in (0, 5000, 5001)
    }
    assert {found_ms: bool(changed) for found_ms, changed in changed_files.items()} == {
        0: False,
        5000: False,
        5001: True,
    }


def test_a_folder_lies_below_the_landing_folder_unless_it_is_absolute_or_a_url():
    settings = from_environment({"SLUICE_HOME": "/home/x", "SLUICE_LANDING": "s3a://bucket/in/"})
    assert settings.folder("bills") == "s3a://bucket/in/bills"
    assert settings.folder("/mnt/bills/") == "/mnt/bills"
    assert from_environment({"SLUICE_HOME": "/home/x"}).folder("bills") == "/home/x/landing/bills"
