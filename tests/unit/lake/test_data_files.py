"""Data files of a table in an object store are asked for once, and their rows are those of the table."""

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from include.delta import stored_table
from include.engine.fast_path import known_keys
from include.lake import clients, data_files, locations
from tests.conftest import S3_PORT
from tests.support.s3 import object_lake

SECOND = 1_000_000
COLUMNS = ["number", "name"]


@pytest.fixture(scope="module")
def access_log():
    with object_lake.running(S3_PORT) as log:
        yield log


@pytest.fixture
def table(access_log, own_settings):
    """A table of ten files, each with the row of a second. The later ones have one more column."""
    own_settings(SLUICE_LAKE=object_lake.new())
    uri, options = clients.delta_rs(locations.table_path("silver.t"))
    for number in range(10):
        columns = {"at": pa.array([number * SECOND], pa.timestamp("us", "UTC")), "number": [number]}
        if number >= 5:
            columns["name"] = [f"n{number}"]
        write_deltalake(uri, pa.table(columns), mode="append", schema_mode="merge", storage_options=options)
    return stored_table.open_table("silver.t")


def read(table, begin: int, end: int) -> list[tuple[int, str | None]]:
    """Returns the rows of these seconds."""
    span = (begin * SECOND, end * SECOND)
    rows = known_keys.read("silver.t", table, "at", [span], False, COLUMNS, 1_000)
    return sorted((row["number"], row["name"]) for row in rows.to_pylist())


def rows(begin: int, end: int) -> list[tuple[int, str | None]]:
    return [(number, f"n{number}" if number >= 5 else None) for number in range(begin, end)]


def test_each_file_is_asked_for_once_and_those_of_other_times_never(table, access_log):
    before = object_lake.requests(access_log)
    for begin, end in ((2, 6), (3, 6), (2, 8)):
        assert read(table, begin, end) == rows(begin, end)
    # A bound of a file's statistics may be a millisecond off, so the file of second 1 or 8 may be asked for, too.
    assert dict(object_lake.requests(access_log) - before) in ({"GET": 6}, {"GET": 7}, {"GET": 8})


def test_large_files_are_read_by_arrow_and_the_oldest_content_makes_room(table, monkeypatch):
    monkeypatch.setattr(data_files, "LARGEST_BYTES", 0)
    assert read(table, 0, 10) == rows(0, 10)
    monkeypatch.setattr(data_files, "LARGEST_BYTES", 10**6)
    monkeypatch.setattr(data_files, "MOST_BYTES", 3_000)
    assert read(table, 0, 10) == rows(0, 10), "they do not fit"
    for _ in range(2):
        assert [read(table, number, number + 1) for number in range(10)] == [rows(n, n + 1) for n in range(10)]
    assert sum(content.size for content in data_files._cached.values()) == data_files._bytes <= 3_000
