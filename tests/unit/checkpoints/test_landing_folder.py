"""The files of a landing folder, and those that batches have taken, read without a JVM."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

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


@pytest.fixture
def folder_of_nobody() -> Iterator[Path]:
    """A folder, which this process then sees as a user who may not do everything."""
    # Others may not enter those of pytest.
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o777)
        is_root = os.geteuid() == 0
        if is_root:
            os.seteuid(65534)
        try:
            yield folder
        finally:
            if is_root:
                os.seteuid(0)
            for path in folder.rglob("*"):
                path.chmod(0o777)


def test_a_hidden_folder_that_nobody_may_list_is_passed_over_as_spark_does(folder_of_nobody):
    for name in (".snapshot", ".Trash-0", "_temporary"):
        (folder_of_nobody / name).mkdir(mode=0)
    (folder_of_nobody / "a.csv").touch()
    source = Files(str(folder_of_nobody), format="csv")
    assert list(landing_folder.files_in_folder(source)) == [str(folder_of_nobody / "a.csv")]
    landing_folder.require_listable(str(folder_of_nobody))


@pytest.mark.parametrize("mode", [0, 0o100, 0o400])
def test_a_folder_that_nobody_may_list_is_named_with_what_to_do(folder_of_nobody, mode):
    below = folder_of_nobody / "caf\udce9" / "lost+found"
    below.mkdir(parents=True)
    (below / "a.csv").touch()
    below.chmod(mode)
    remedy = "let the user of the flows list it, move it away, or let its name begin with a dot"
    for look in (landing_folder.require_listable, lambda name: landing_folder.files_in_folder(Files(name, "csv"))):
        with pytest.raises(Unreachable, match=rf"caf\\xe9/lost\+found cannot be listed .*: {remedy}") as caught:
            look(str(folder_of_nobody))
        str(caught.value).encode()
    with pytest.raises(Unreachable, match="lost.found cannot be listed .*: let the user of the flows list it$"):
        landing_folder.require_listable(str(below))


def test_a_date_beyond_the_years_of_tables_is_none():
    assert landing_folder.date(1_500).isoformat() == "1970-01-01T00:00:01.500000+00:00"
    beyond = (300_000_000_000_000, -70_000_000_000_000, 2**63, -(2**63))
    assert [landing_folder.date(milliseconds) for milliseconds in beyond] == [None] * 4


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
