"""Stored rows are found by their time, whatever the statistics of their files contain."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from include.engine.fast_path import known_keys
from include.engine.rows.micro_batch import Refusal
from include.lake import locations

pytestmark = pytest.mark.usefixtures("home")

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAME = "silver.readings"
SECOND = 1_000_000
# One list per file: seconds after noon, to the microsecond.
FILES = ([1.0], [59.9996], [60.0], [60.0005, 119.999999], [120.0], [None], [None, 61.0], [-1.5, 7200.0])


def store(**properties: str) -> DeltaTable:
    path = str(locations.table_path(NAME))
    for seconds in FILES:
        times = [
            None if second is None else NOON + timedelta(microseconds=round(second * SECOND)) for second in seconds
        ]
        rows = pa.table({"bpm": range(len(times)), 'the "time"': pa.array(times, pa.timestamp("us", "UTC"))})
        write_deltalake(str(path), rows, mode="append", configuration=properties)
    return DeltaTable(path)


def rows_of(
    table: DeltaTable, *spans: tuple[float, float], or_null: bool = False, limit: int = 100
) -> pa.Table | Refusal:
    noon = int(NOON.timestamp()) * SECOND
    micros = [(noon + round(begin * SECOND), noon + round(end * SECOND)) for begin, end in spans]
    return known_keys.read(NAME, table, 'the "time"', micros, or_null, ['the "time"'], limit)


def read(table: DeltaTable, *spans: tuple[float, float], **options) -> list:
    rows = rows_of(table, *spans, **options)
    times = rows.column(0).to_pylist()
    seconds = [None if time is None else (time - NOON).total_seconds() for time in times]
    return sorted(seconds, key=lambda second: (second is not None, second))


@pytest.mark.parametrize("indexed", ["32", "0"], ids=["with statistics", "without"])
def test_rows_of_the_spans_are_found_and_no_others(indexed):
    table = store(**{"delta.dataSkippingNumIndexedCols": indexed})
    assert read(table, (60, 120)) == [60.0, 60.0005, 61.0, 119.999999]
    assert read(table, (0, 60), (7200, 7260)) == [1.0, 59.9996, 7200.0]
    assert read(table, (-60, 0), or_null=True) == [None, None, -1.5]
    assert read(table, or_null=True) == [None, None]
    assert read(table, (300, 360)) == []


def test_no_more_are_read_than_are_asked_for():
    assert len(read(store(), (-60, 7260), limit=3)) == 3


def test_only_files_that_may_hold_such_rows_are_opened():
    table = store()
    near_files = known_keys.stored_table.dataset(NAME, table, '"the ""time""" >= \'2026-03-01T12:02:00+00:00\'')
    assert len(list(near_files.get_fragments())) == 2


def test_files_are_chosen_by_the_spans_and_those_with_null_only_if_null_is_asked_for(monkeypatch):
    chosen, dataset = [], known_keys.stored_table.dataset

    def noted(*arguments):
        files = dataset(*arguments)
        chosen.append(len(list(files.get_fragments())))
        return files

    monkeypatch.setattr(known_keys, "stored_table", SimpleNamespace(dataset=noted))
    table = store()
    # The last file reaches from before noon to two hours after it; a bound may be truncated to milliseconds.
    assert read(table, (120, 180)) == [120.0]
    assert read(table, (120, 180), or_null=True) == [None, None, 120.0]
    assert chosen == [3, 5]


class InStore:
    """A folder in place of an object store; notes which objects are read."""

    def __init__(self, path: Path, were_read: list[str]) -> None:
        self._path, self._were_read = path, were_read

    def __truediv__(self, name: str) -> "InStore":
        return InStore(self._path / name, self._were_read)

    def __str__(self) -> str:
        return str(self._path)

    def read_bytes(self) -> bytes:
        self._were_read.append(self._path.name)
        return self._path.read_bytes()


def test_small_files_in_an_object_store_are_read_as_a_whole_and_give_the_same_rows(monkeypatch):
    table, were_read = store(), list[str]()
    folder = InStore(locations.table_path(NAME), were_read)
    assert read(table, (60, 120)) == [60.0, 60.0005, 61.0, 119.999999]
    assert were_read == []
    monkeypatch.setattr(known_keys, "locations", SimpleNamespace(table_path=lambda name: {NAME: folder}[name]))
    for _ in range(2):
        assert read(table, (60, 120)) == [60.0, 60.0005, 61.0, 119.999999]
    assert 4 <= len(were_read) < len(FILES)
    # A file beyond the limit is left to Arrow.
    monkeypatch.setattr(known_keys.data_files, "LARGEST_BYTES", 1)
    monkeypatch.setattr(known_keys.data_files, "_cached", {})
    were_read.clear()
    assert read(table, (60, 120)) == [60.0, 60.0005, 61.0, 119.999999]
    assert were_read == []


def test_spans_that_reach_beyond_what_python_can_name_leave_nothing_out():
    far_seconds = 10_000 * 366 * 86_400.0
    assert len(read(store(), (-far_seconds, far_seconds))) == 9


@pytest.mark.parametrize("years", [[2026, 9999], [9999]])
def test_a_file_whose_bounds_cannot_be_read_is_left_to_spark_and_not_skipped(years):
    table = store()
    # Hours behind the last time that Python can name.
    micros = [2**47 if year == 2026 else 253_402_318_799_000_000 for year in years]
    rows = pa.table({"bpm": years, 'the "time"': pa.array(micros, pa.timestamp("us", "UTC"))})
    write_deltalake(str(locations.table_path(NAME)), rows, mode="append")
    table.update_incremental()
    refusal = rows_of(table, (60, 120))
    assert isinstance(refusal, Refusal) and "beyond the year 9999" in refusal.reason
