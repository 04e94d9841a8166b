"""A flow of files that has lost its checkpoint resumes behind the files of which its tables hold rows."""

import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, Transaction, write_deltalake

from include.checkpoints.landing_folder import PlannedFile
from include.errors import FlowBroken
from include.flows import files_source, resume_position
from include.flows.source import StartPosition
from include.lake import locations
from include.spec import Files, Flow, Table


def table_of(folder: Path) -> Table:
    source = Files(path=str(folder), format="text")
    return Flow(name="bronze.t", source=source, comment="a test", schema="value STRING")


def commit(table: Table, names: list[str], batch: int, folder: str, flow: str = "bronze.t") -> None:
    document = {"flow": flow, "generation": 2, "batch": batch, "source": {"folder": folder}, "source_to": None}
    write_deltalake(
        str(locations.table_path(table.name)),
        pa.table({"value": names, "_filename": names}, pa.schema({"value": pa.string(), "_filename": pa.string()})),
        mode="append",
        commit_properties=CommitProperties(
            custom_metadata={"userMetadata": json.dumps(document)}, app_transactions=[Transaction(flow, batch)]
        ),
    )


def quarantine(table: Table, *rows: tuple[int, int, str]) -> None:
    generations, batches, names = zip(*rows, strict=True)
    columns = {"_generation": generations, "_batch": batches, "_filename": names}
    write_deltalake(str(locations.table_path(table.quarantine)), pa.table({n: list(v) for n, v in columns.items()}))


@pytest.fixture
def table(home: Path, tmp_path: Path) -> Table:
    folder = tmp_path / "landing"
    (folder / "sub").mkdir(parents=True)
    for name in ("a b.txt", "sub/c.txt", "d.txt"):
        (folder / name).write_text("x")
        os.utime(folder / name, ns=(0, 5_000_000_000))
    return table_of(folder)


def test_files_with_rows_in_the_table_or_committed_ones_in_its_quarantine_are_held(table: Table, tmp_path: Path):
    folder = f"{tmp_path}/landing"
    commit(table, ["a b.txt", "sub/c.txt", "a b.txt"], 7, folder)
    quarantine(table, (1, 9, "d.txt"), (2, 7, "gone.txt"), (2, 8, "later.txt"), (3, 0, "of the next.txt"))
    start = resume_position.after_last_commit(table, accepts_loss=False)
    assert (start.offset, start.after, start.lost) == ({"logOffset": 0}, (2, 7), ())
    assert list(start.files) == [
        PlannedFile(f"file://{folder}/a%20b.txt", 5_000, 0),
        PlannedFile(f"file://{folder}/d.txt", 5_000, 0),
        PlannedFile(f"file://{folder}/gone.txt", 0, 0),
        PlannedFile(f"file://{folder}/sub/c.txt", 5_000, 0),
    ]


def test_the_beginning_of_the_source_follows_no_commit_and_another_folder_is_refused(table: Table, tmp_path: Path):
    commit(table, [], 0, "", flow="bronze.other")
    assert resume_position.after_last_commit(table, accepts_loss=False) == StartPosition()
    assert resume_position.after_last_commit(table, accepts_loss=True) == StartPosition()
    commit(table, ["a b.txt"], 3, f"{tmp_path}/elsewhere")
    with pytest.raises(FlowBroken, match="elsewhere"):
        resume_position.after_last_commit(table, accepts_loss=False)


@pytest.mark.parametrize(
    ("folder", "name", "uri"),
    [
        ("/in", "a+b&c=d,é.txt", "file:///in/a+b&c=d,é.txt"),
        ("/in x", "100%\x7f#?.txt", "file:///in%20x/100%25%7F%23%3F.txt"),
        ("/in", "a\u00a0b\u2028c\u3000d\x85e", "file:///in/a%C2%A0b%E2%80%A8c%E3%80%80d%C2%85e"),
        ("/in", '<">[]{}|\\^`', "file:///in/%3C%22%3E%5B%5D%7B%7D%7C%5C%5E%60"),
        ("s3a://bucket/in x", "a b.txt", "s3a://bucket/in x/a%20b.txt"),
    ],
)
def test_a_uri_is_written_as_java_writes_it(folder: str, name: str, uri: str):
    assert files_source._java_uri(folder, name) == uri
