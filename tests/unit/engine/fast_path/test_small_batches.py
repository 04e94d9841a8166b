"""What the fast path decides about a small batch without Spark: order, repetitions, files, outcomes, replacements."""

import json
import math
from dataclasses import replace
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import write_deltalake
from pyarrow import parquet

from include.engine.commit import CommitMetadata
from include.engine.fast_path import aggregate, append, collect, data_file, known_keys, merge, replaced_files, writer
from include.engine.fast_path.data_file import DataFile
from include.engine.fast_path.known_keys import KnownKeys, is_comparable
from include.engine.fast_path.replaced_files import Replacement, StoredFile
from include.engine.fast_path.table_layout import Layout
from include.engine.fast_path.writer import is_committed
from include.engine.rows import quality
from include.engine.rows.merge_changes import DELETED, TRUNCATES, KeyOutcomes
from include.engine.rows.micro_batch import Refusal
from include.engine.rows.quality import RowCounts
from include.errors import FlowBroken
from include.lake import locations
from include.rules import FAILED, Expect
from include.spec import Append, Bucket, Delta, Flow, Table, Upsert, Watermark

TIME = pa.timestamp("us", "UTC")
HOUR = 3_600_000_000
METADATA = CommitMetadata("silver.t", 2, 7, 1, {}, None, None)


def table_of(write: Append | Upsert, schema: str) -> Table:
    return Flow(name="silver.t", source=Delta("bronze.t"), comment="a test", schema=schema, write=write)


class Recorder:
    """A transaction on a folder, which records what is to be committed."""

    def __init__(self, folder: Path, schema: pa.Schema) -> None:
        self.layout = Layout(schema, None, 32, is_append_only=False)
        self.target = SimpleNamespace(path=folder)

    def replace(
        self, adds: list[dict], removes: list[dict], metadata: str, txn: tuple[str, int], metrics: dict[str, int]
    ) -> None:
        assert all(remove["size"] == len(remove["path"]) for remove in removes)
        self.removed = [remove["path"] for remove in removes]
        parts = [parquet.read_table(self.target.path / add["path"]).to_pylist() for add in adds]
        self.files = [[tuple(row.values()) for row in part] for part in parts]
        self.batch, self.txn, self.metrics = json.loads(metadata)["batch"], txn, metrics


# The order of rows of one identity, and which of them are new.


def ordered(rows: pa.Table, **options: Any) -> list[dict]:
    return append._in_order(rows, Append(unique=("id",), **options)).to_pylist()


def is_refused(answer: object, reason: str) -> bool:
    return isinstance(answer, Refusal) and reason in answer.reason


def test_rows_are_ordered_by_first_by_then_by_all_other_values_with_null_first():
    rows = pa.table({"text": ["a", "c", "b", "z"], "place": [2, 1, 1, None], "id": [4, 3, 2, 1]})
    assert [row["text"] for row in ordered(rows, first_by=("place",))] == ["z", "b", "c", "a"]
    assert [row["text"] for row in ordered(rows)] == ["z", "b", "c", "a"]
    same_id = rows.set_column(2, "id", pa.array([1, 1, 1, 1]))
    assert [row["text"] for row in ordered(same_id)] == ["a", "b", "c", "z"]


def test_floating_point_values_come_last_in_the_order_of_spark():
    values = [math.nan, math.inf, 0.0, -0.0, 1.0, None, -math.inf, -1.0]
    rows = pa.table({"id": [1] * 8, "value": values, "text": ["b"] * 7 + ["a"]})
    in_order = [row["value"] for row in ordered(rows)]
    assert [str(value) for value in in_order] == ["-1.0", "None", "-inf", "-0.0", "0.0", "1.0", "inf", "nan"]


def test_rows_that_differ_only_in_nested_values_are_left_to_spark_and_equal_ones_are_not():
    nested = pa.table({"id": [1, 2, 1], "list": [[1], [3], [2]]})
    assert is_refused(append._in_order(nested, Append(unique=("id",))), "differ only in values")
    assert len(ordered(nested.slice(0, 2))) == 2
    assert len(ordered(pa.table({"id": [0, 1, 1, 2], "list": [[3], [1], [1], [4]]}))) == 4


def test_of_each_identity_the_first_row_is_new_unless_the_table_holds_it():
    known = KnownKeys("silver.t", Append(unique=("id",)), "at")
    known.add(pa.table({"id": [3], "at": pa.array([0], TIME)}))
    keys, times = [(1,), (1,), (2,), (3,), (None,), (None,), (2,)], [0, 0, None, 5, 0, 0, 0]
    assert append._are_new(keys, times, known) == [True, False, True, False, True, True, True]
    known = KnownKeys("silver.t", Append(unique=("id",), watermark=Watermark("at", 1)), "at")
    known.add(pa.table({"id": [1, 2], "at": pa.array([0, 0], TIME)}))
    assert append._are_new([(1,), (2,)], [60_000_000, 60_000_001], known) == [False, True]


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (Append(), None),
        (Append(unique=("id",), first_by=("place",), watermark=Watermark("at", 5)), None),
        (Append(unique=("id", "value"), watermark=Watermark("at", 5)), "its column value is"),
        (Append(unique=("id",), first_by=("value",), watermark=Watermark("at", 5)), "its column value is"),
    ],
)
def test_a_table_is_refused_whose_rows_are_ordered_by_what_python_compares_otherwise(write: Append, reason: str | None):
    schema = pa.schema([("id", pa.int64()), ("place", pa.int64()), ("value", pa.float64()), ("at", TIME)])
    refusal = append.refusal(table_of(write, "id BIGINT, place BIGINT, value DOUBLE, at TIMESTAMP"), write, schema)
    assert refusal is None if reason is None else is_refused(refusal, reason)


@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        *((type_, True) for type_ in (pa.string(), pa.binary(), pa.int8(), pa.int64(), pa.bool_(), pa.date32(), TIME)),
        (pa.decimal128(9, 2), True),
        *((type_, False) for type_ in (pa.float32(), pa.float64(), pa.list_(pa.int32()), pa.struct([("a", TIME)]))),
    ],
)
def test_floating_point_and_nested_values_are_not_compared_by_python(type_: pa.DataType, expected: bool):
    assert is_comparable(type_) is expected


# Which identities are known of a table.


def known_at(version: int, minutes: float | None = 2) -> tuple[KnownKeys, list[set[int]]]:
    watermark = Watermark("at", minutes) if minutes is not None else None
    known, reads = KnownKeys("silver.t", Append(unique=("id",), watermark=watermark), "at"), []
    known._read = reads.append
    known.at(version)
    return known, reads


def test_each_minute_near_a_row_is_read_once_for_a_version():
    known, reads = known_at(3)
    known.load([600_000_000])
    known.load([600_000_000, 719_999_999])
    assert reads == [{8, 9, 10, 11, 12}, {13}]
    known.at(3)
    known.load([660_000_000])
    assert len(reads) == 2
    known.at(4)
    known.load([600_000_000])
    assert reads[2] == {8, 9, 10, 11, 12}


def test_a_part_of_a_minute_counts_as_one_and_without_a_watermark_only_the_own_minute_does():
    known, reads = known_at(3, 0.5)
    known.load([600_000_000])
    assert reads == [{9, 10, 11}]
    known, reads = known_at(3, None)
    known.load([-1])
    assert reads == [{-1}]


def test_identities_are_read_from_the_stored_rows_of_the_minutes(home, monkeypatch):
    known, noon = (
        KnownKeys("silver.t", Append(unique=("id",), watermark=Watermark("at", 1)), "at"),
        1_772_366_400_000_000,
    )

    def store(*seconds: int) -> None:
        times = pa.array([noon + 1_000_000 * second for second in seconds], TIME)
        write_deltalake(str(locations.table_path("silver.t")), pa.table({"id": seconds, "at": times}), mode="append")

    store(0, 60, 150, 900)
    known.at(0)
    known.load([noon + 70_000_000])
    assert sorted(known._times) == [(0,), (60,), (150,)]
    store(7)
    for version, is_stored in ((0, False), (1, True), (0, False)):
        known.at(version)
        known.load([noon])
        assert known.repeats((7,), noon) is is_stored
    monkeypatch.setattr(known_keys, "MOST_KEYS", 2)
    known.forget()
    known.at(0)
    assert is_refused(known.load([noon + 70_000_000]), "2 stored rows")


def test_what_was_committed_is_known_at_its_version_and_forgotten_at_another():
    known, reads = known_at(3, None)
    rows = pa.table({"id": [1, 1, None, 2, 3], "at": pa.array([5, 9, 5, None, 5], TIME)})
    known.committed(4, rows)
    known.at(4)
    assert known.repeats((1,), 0)
    assert not known.repeats((None,), 5)
    assert not known.repeats((2,), 5)
    assert known._count == 2
    known.at(5)
    assert not known.repeats((1,), 5)
    assert known._count == 0


def test_with_a_watermark_all_times_of_an_identity_count_towards_the_bound():
    known, _ = known_at(3)
    known.add(pa.table({"id": [1, 1, 2], "at": pa.array([5, 1, 5], TIME)}))
    known.add(pa.table({"id": [1], "at": pa.array([3], TIME)}))
    assert known._count == 4
    assert known._times == {(1,): [1, 3, 5], (2,): [5]}


# Which stored files may hold rows.


def actions(**columns: list) -> pa.Table:
    sizes = list(range(10, 10 + len(next(iter(columns.values())))))
    return pa.table({"path": [f"f{size}" for size in sizes], "size_bytes": sizes, **columns})


def test_only_files_are_read_whose_first_key_may_be_one_of_the_batch():
    changes = pa.table({"id": [7, 3, 7]})
    stored = actions(**{"min.id": [1, 4, 3, 7, 8, None, 1], "max.id": [2, 6, 3, 9, 9, 1, None]})
    assert merge._files_near(stored, "id", changes) == [("f12", 12), ("f13", 13), ("f15", 15), ("f16", 16)]


def test_all_files_are_read_without_statistics_and_for_times_which_statistics_round():
    for columns in ({"min.id": [1]}, {"max.id": [1]}, {"other": [1]}):
        assert merge._files_near(actions(**columns), "id", pa.table({"id": [7]})) == [("f10", 10)]
    bounds = pa.array([0], TIME)
    stored = actions(other=[1]).append_column("min.id", bounds).append_column("max.id", bounds)
    assert merge._files_near(stored, "id", pa.table({"id": pa.array([7], TIME)})) == [("f10", 10)]
    far = pa.table({"id": pa.array([2**31 - 1], pa.int32()).cast(pa.date32())})
    stored = actions(**{"min.id": [date(2026, 1, 1)], "max.id": [date(2026, 1, 2)]})
    assert merge._files_near(stored, "id", far) == [("f10", 10)]


@pytest.mark.parametrize(
    ("values", "least", "greatest", "expected"),
    [([3], 3, 5, True), ([5], 3, 5, True), ([2, 6], 3, 5, False), ([1], 3, 5, False), ([9], 3, 5, False)],
)
def test_a_value_at_a_bound_is_within_it(values: list, least: int, greatest: int, expected: bool):
    assert merge._overlaps(values, least, greatest) is expected


def files_near(starts: set, bounds: list[tuple[int | None, int | None]], nulls: list | None = None) -> list[str]:
    stored = actions(other=[0] * len(bounds))
    for name, values in zip(("min.hour", "max.hour"), zip(*bounds, strict=True), strict=True):
        stored = stored.append_column(name, pa.array(values, TIME))
    if nulls:
        stored = stored.append_column("null_count.hour", pa.array(nulls))
    return [path for path, _ in aggregate._files_near(stored, starts, Bucket("hour", "at", "hour"))]


def test_only_files_of_the_buckets_are_read_and_a_greatest_time_may_be_truncated():
    bounds = [
        (0, HOUR - 1_001),
        (0, HOUR - 1_000),
        (2 * HOUR - 1, 9 * HOUR),
        (2 * HOUR, 9 * HOUR),
        (None, 0),
        (0, None),
    ]
    assert files_near({3_600}, bounds) == ["f11", "f12", "f14", "f15"]


def test_files_that_may_hold_null_are_read_if_a_time_is_null():
    bounds = [(9 * HOUR, 9 * HOUR)] * 3
    assert files_near({None}, bounds, [0, 1, None]) == ["f11", "f12"]
    assert files_near({None}, bounds) == ["f10", "f11", "f12"]
    assert files_near({0}, bounds, [0, 1, None]) == []
    no_statistics = actions(other=[0, 0])
    assert len(aggregate._files_near(no_statistics, {0}, Bucket("hour", "at", "hour"))) == 2


def test_buckets_begin_at_the_width_before_and_after_1970():
    times = [None, 0, 59_999_999, 60_000_000, -1, -60_000_001]
    assert aggregate._starts(times, 60) == {None, 0, 60, -60, -120}
    assert aggregate._spans({None, 0, 60, 600}, "minute") == [(0, 120_000_000), (600_000_000, 660_000_000)]


def test_the_keys_of_a_bucket_are_those_of_its_stored_rows_and_of_no_other_bucket():
    aggregator = object.__new__(aggregate.Aggregator)
    aggregator._bucket, aggregator._write = Bucket("hour", "at", "hour"), Upsert(("id",))
    noon = 1_772_366_400
    hours = [noon, noon + 3_600, None, noon - 3_600]
    rows = pa.table({"id": [1, 2, 3, 4], "hour": pa.array([hour and hour * 1_000_000 for hour in hours], TIME)})
    assert list(aggregator._keys_in(rows, {noon, None})) == [(1,), (3,)]
    assert list(aggregator._keys_in(rows, set())) == []


# What became of the keys.

A, B, OLD = {"a": True}, {"b": True}, {"old": False}


def test_each_changed_key_is_inserted_updated_or_deleted_by_its_current_row():
    changed = [({}, A), (A, {}), (A, B), (OLD, A | OLD), (A | OLD, OLD), ({}, OLD), (OLD, {}), (OLD, {"x": False})]
    assert merge._outcomes(changed, keys=9, kept=14, tombstones=2) == KeyOutcomes(
        keys=9, stale=3, truncates=0, inserted=2, updated=4, deleted=2, tombstones=2
    )


def test_the_metrics_of_a_merge_count_rows_and_a_row_that_replaces_one_as_updated():
    changed = [({}, A), (A, {}), (A, B), (A, A | OLD), (A | B, OLD)]
    assert merge._merge_metrics(changed) == {
        "operationNumSourceRows": 6,
        "numTargetRowsInserted": 2,
        "numTargetRowsUpdated": 2,
        "numTargetRowsDeleted": 2,
    }


def test_rows_of_a_key_are_told_apart_by_every_value_and_are_current_unless_a_history_says_otherwise():
    far = pa.array([2**62, 2**62], pa.int64()).cast(TIME)
    first = pa.table({"id": [1, 2], "at": far, "is_current": [False, True]})
    second = pa.table({"id": [1], "at": far.slice(0, 1), "is_current": [True]})
    rows = merge._rows_by_key([first, second], ("id",))
    assert {key: sorted(found.values()) for key, found in rows.items()} == {(1,): [False, True], (2,): [True]}
    rows = merge._rows_by_key([pa.table({"id": [1], "value": [value]}) for value in (0.0, -0.0, 0.0)], ("id",))
    assert list(rows[(1,)].values()) == [True, True]


def test_values_that_python_does_not_know_are_compared_as_numbers_and_bytes_at_any_depth():
    struct = pa.struct([("day", pa.date32()), ("texts", pa.list_(pa.string()))])
    type_ = pa.map_(pa.string(), struct)
    plain = pa.map_(pa.binary(), pa.struct([("day", pa.int32()), ("texts", pa.list_(pa.binary()))]))
    assert merge._plain_type(type_) == plain
    assert merge._plain_type(pa.struct([("at", TIME)])) == pa.struct([("at", pa.int64())])
    assert merge._plain_type(pa.decimal128(9, 2)) == pa.decimal128(9, 2)
    [row] = merge._plain(pa.table({"at": pa.array([2**62], TIME), "text": ["é"]})).to_pylist()
    assert row == {"at": 2**62, "text": "é".encode()}


def test_a_flag_is_the_same_in_all_rows():
    rows = merge._with_flags(pa.table({"id": [1, 2]}), ("a", "b"), False)
    assert rows.to_pylist() == [{"id": 1, "a": False, "b": False}, {"id": 2, "a": False, "b": False}]
    assert merge._with_flags(rows.select(["id"]), ("a",), True).column("a").to_pylist() == [True, True]
    assert merge._with_flags(rows.slice(0, 0).select(["id"]), ("a",), True).schema.field("a").type == pa.bool_()


def test_keys_are_unchanged_whose_rows_are_stored_with_all_values():
    rows = pa.table({"id": [1, 2, 3], "value": [1, 2, None]})
    stored = [pa.table({"id": [1, 2], "value": [1, 3]}), pa.table({"id": [3, 4], "value": [None, 4]})]
    assert aggregate._unchanged_keys(rows, stored, ("id",)) == {(1,), (3,)}
    floats = rows.set_column(1, "value", pa.array([1.0, 2.0, 3.0]))
    assert aggregate._unchanged_keys(floats, [floats], ("id",)) == set()


# What is replaced.

ROWS = pa.table({"id": [1, 2, 3], "value": ["a", "b", "c"]})


def test_rows_with_keys_or_without_them_are_taken():
    assert replaced_files.with_keys(ROWS, {(2,), (9,)}, ("id",), are_kept=True).to_pylist() == [{"id": 2, "value": "b"}]
    others = replaced_files.with_keys(ROWS, {(2,), (9,)}, ("id",), are_kept=False)
    assert others.column("id").to_pylist() == [1, 3]
    assert len(replaced_files.with_keys(ROWS.slice(0, 0), {(2,)}, ("id",), are_kept=True)) == 0


def replaced(folder: Path, files: list[StoredFile], rows: pa.Table, keys: set, **counts: int) -> Recorder:
    names = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    counts = dict.fromkeys(names, 0) | {f"numTargetRows{name}": count for name, count in counts.items()}
    recorder = Recorder(folder, ROWS.schema)
    replaced_files.commit_replacement(recorder, Replacement(files, rows, keys, ("id",), counts), METADATA)
    assert (recorder.txn, recorder.batch) == (("silver.t/2", 7), 7)
    return recorder


def test_only_files_that_hold_one_of_the_keys_are_replaced_and_their_other_rows_are_copied(tmp_path):
    other = pa.table({"id": [8], "value": ["h"]})
    new = pa.table({"id": [2, 4], "value": ["B", "D"]})
    stored = [StoredFile("one", 3, ROWS), StoredFile("two", 3, other)]
    recorder = replaced(tmp_path, stored, new, {(2,), (4,)}, Inserted=1, Updated=1)
    assert recorder.removed == ["one"]
    assert recorder.files == [[(1, "a"), (3, "c"), (2, "B"), (4, "D")]]
    assert recorder.metrics["numTargetRowsCopied"] == 2
    assert recorder.metrics["numOutputRows"] == 4


def test_a_row_that_is_written_as_it_was_counts_as_copied(tmp_path):
    recorder = replaced(tmp_path, [StoredFile("one", 3, ROWS)], ROWS, {(1,), (2,), (3,)}, Updated=1)
    assert recorder.files == [[(1, "a"), (2, "b"), (3, "c")]]
    assert recorder.metrics["numTargetRowsCopied"] == 2
    assert recorder.metrics["numOutputRows"] == 3


def test_a_batch_that_changes_no_key_replaces_nothing(tmp_path):
    recorder = replaced(tmp_path, [StoredFile("one", 3, ROWS)], ROWS.slice(0, 0), set())
    assert (recorder.removed, recorder.files) == ([], [])
    assert recorder.metrics["numOutputRows"] == 0


def test_a_file_whose_rows_are_all_deleted_is_removed_without_another(tmp_path):
    recorder = replaced(tmp_path, [StoredFile("one", 3, ROWS)], ROWS.slice(0, 0), {(1,), (2,), (3,)}, Deleted=3)
    assert (recorder.removed, recorder.files) == (["one"], [])


def test_many_other_rows_get_a_file_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(replaced_files, "MOST_OTHER_ROWS", 2)
    new = pa.table({"id": [3], "value": ["C"]})
    assert len(replaced(tmp_path, [StoredFile("one", 3, ROWS)], new, {(3,)}, Updated=1).files) == 1
    monkeypatch.setattr(replaced_files, "MOST_OTHER_ROWS", 1)
    recorder = replaced(tmp_path, [StoredFile("one", 3, ROWS)], new, {(3,)}, Updated=1)
    assert recorder.files == [[(1, "a"), (2, "b")], [(3, "C")]]


def stored_at(folder: Path, name: str, rows: pa.Table) -> tuple[str, int]:
    parquet.write_table(rows, folder / name)
    return name, (folder / name).stat().st_size


def test_of_large_files_the_other_rows_are_in_a_new_file_and_files_without_the_keys_stay(tmp_path, monkeypatch):
    files = [
        stored_at(tmp_path, "one", ROWS),
        stored_at(tmp_path, "two", pa.table({"id": [8, 9], "value": ["h", "i"]})),
    ]
    transaction = Recorder(tmp_path, ROWS.schema)
    assert [file.others for file in replaced_files.rewrite(transaction, files, {(2,)}, ("id",))] == [None, None]
    monkeypatch.setattr(replaced_files, "MOST_REPLACED_BYTES", 10)
    monkeypatch.setattr(replaced_files, "PART_ROWS", 2)
    [split] = replaced_files.rewrite(transaction, files, {(2,), (3,)}, ("id",))
    assert (split.path, split.size) == files[0]
    split = replace(split, size=3)
    assert split.rows.to_pylist() == ROWS.slice(1).to_pylist()
    new = pa.table({"id": [2], "value": ["B"]})
    recorder = replaced(tmp_path, [split], new, {(2,), (3,)}, Updated=1, Deleted=1)
    assert recorder.removed == ["one"]
    assert recorder.files == [[(1, "a")], [(2, "B")]]
    assert (recorder.metrics["numTargetRowsCopied"], recorder.metrics["numOutputRows"]) == (1, 2)
    assert split.others and split.others.path.exists()
    replaced_files.discard([split, StoredFile("two", 1, ROWS)])
    assert not split.others.path.exists()


def test_the_other_rows_of_each_large_file_stay(tmp_path):
    def split(name: str, number: int) -> StoredFile:
        others = data_file.write([ROWS.slice(0, number)], tmp_path, Layout(ROWS.schema, None, 32, False))
        return StoredFile(name, len(name), ROWS.slice(2), others)

    small = StoredFile("three", 5, ROWS.slice(1))
    new = pa.table({"id": [3], "value": ["C"]})
    recorder = replaced(tmp_path, [split("one", 1), split("two", 2), small], new, {(3,)}, Updated=1)
    assert recorder.removed == ["one", "two", "three"]
    assert recorder.files == [[(1, "a")], [(1, "a"), (2, "b")], [(2, "b"), (3, "C")]]
    assert recorder.metrics["numTargetRowsCopied"] == 4
    recorder = replaced(tmp_path, [split("one", 1)], new.slice(0, 0), set())
    assert (recorder.removed, recorder.files) == ([], [])


def test_a_large_file_of_nothing_but_the_keys_leaves_no_empty_file(tmp_path, monkeypatch):
    monkeypatch.setattr(replaced_files, "MOST_REPLACED_BYTES", 10)
    transaction, keys = Recorder(tmp_path, ROWS.schema), {(1,), (2,), (3,)}
    [split] = replaced_files.rewrite(transaction, [stored_at(tmp_path, "one", ROWS)], keys, ("id",))
    recorder = replaced(tmp_path, [replace(split, size=3)], ROWS.slice(0, 0), keys, Deleted=3)
    assert (recorder.removed, recorder.files) == (["one"], [])


def test_files_above_the_limits_are_left_to_spark_and_a_failed_try_leaves_no_new_file(tmp_path, monkeypatch):
    monkeypatch.setattr(replaced_files, "MOST_REPLACED_BYTES", 10)
    monkeypatch.setattr(replaced_files, "MOST_REWRITTEN_BYTES", 100)
    transaction = Recorder(tmp_path, ROWS.schema)
    assert replaced_files.read(transaction, []) == []
    small = stored_at(tmp_path, "small", ROWS.slice(0, 0))
    monkeypatch.setattr(replaced_files, "MOST_REPLACED_BYTES", small[1])
    for of_small in (
        replaced_files.read(transaction, [small]),
        replaced_files.rewrite(transaction, [small], {(1,)}, ("id",)),
    ):
        assert of_small == [StoredFile(*small, ROWS.slice(0, 0))]
    (tmp_path / "small").unlink()
    monkeypatch.setattr(replaced_files, "MOST_REPLACED_BYTES", 10)
    assert replaced_files.read(transaction, [("x", 11)]) == Refusal("its rows lie in large files")
    too_large = replaced_files.rewrite(transaction, [("x", 101)], {(1,)}, ("id",))
    assert too_large == Refusal("its rows lie in too many large files")
    one, _ = stored_at(tmp_path, "one", ROWS)
    with pytest.raises(FileNotFoundError):
        replaced_files.rewrite(transaction, [(one, 50), ("gone", 50)], {(1,)}, ("id",))
    assert [file.name for file in tmp_path.iterdir()] == ["one"]


def test_a_column_that_a_file_lacks_is_null_in_its_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(replaced_files, "MOST_REPLACED_BYTES", 10)
    file = stored_at(tmp_path, "one", ROWS.select(["id"]))
    [split] = replaced_files.rewrite(Recorder(tmp_path, ROWS.schema), [file], {(2,)}, ("id",))
    assert split.rows.to_pylist() == [{"id": 2, "value": None}]
    assert isinstance(split.others, DataFile)
    assert split.others.rows == 2


# Retained changes.


def committed(last_commit: tuple[int, int] | None) -> list[tuple[int, int]]:
    rows = pa.table({"_generation": [0, 0, 1, 2, 2, 2, 3], "_batch": [0, 1, 0, 4, 5, 6, 0]})
    found = ds.dataset(rows).to_table(filter=is_committed(last_commit)).to_pylist()
    return [(row["_generation"], row["_batch"]) for row in found]


def test_retained_changes_count_up_to_the_newest_commit_and_those_of_earlier_generations_all_do():
    assert committed((2, 5)) == [(0, 0), (0, 1), (1, 0), (2, 4), (2, 5)]
    assert committed(None) == [(0, 0)]


def retained_of(rows: pa.Table, **options: Any) -> tuple[merge.Retained, SimpleNamespace]:
    write = Upsert(keys=("id",), sequence_by="place", deletes="gone", **options)
    companion = SimpleNamespace(version=3, committed=4, appended=[], begin=lambda rows: Refusal(f"{len(rows)} rows"))
    companion.append = lambda *appended: companion.appended.append(appended)
    known = merge.Retained(table_of(write, "id INT, place INT"), write, companion)
    known._rows, known._version = rows, 3
    return known, companion


DELETES = pa.table({"id": [1, 2, None], "place": [5, 6, 7], "_deleted": [True] * 3, "_truncates": [False, None, True]})


def test_of_retained_changes_those_of_the_keys_and_every_truncate_are_found():
    known, _ = retained_of(DELETES, truncates="all_gone")
    assert known.of_keys({(1,)}, None).column("place").to_pylist() == [5, 7]
    # Rows of older releases do not say whether they truncate.
    assert known.of_keys({(2,)}, None).column("place").to_pylist() == [6, 7]
    known, _ = retained_of(DELETES.drop_columns(["_truncates"]))
    assert known.of_keys({(1,), (9,)}, None).column("place").to_pylist() == [5]


def test_a_batch_begins_to_retain_changes_if_the_table_of_retained_changes_takes_them():
    known, _ = retained_of(DELETES)
    assert known.begin(DELETES) == Refusal("3 rows")


def names_of_retained(table: Table) -> list[str]:
    return {"silver.t": DELETES.column_names}[table.name]


def stored_batch(batch: int) -> pa.Table:
    places = pa.array([100 * batch + place for place in DELETES.column("place").to_pylist()], pa.int32())
    rows = DELETES.set_column(1, "place", places).append_column("_batch", pa.array([batch] * 3))
    return rows.append_column("_generation", pa.array([2] * 3))


# 100 bytes are less than three batches have, and more than one has.
@pytest.mark.parametrize("most_bytes", [merge.MOST_BYTES, 100, 1])
def test_retained_changes_are_read_at_the_newest_version_be_they_few_or_many(home, monkeypatch, most_bytes):
    monkeypatch.setattr(merge, "MOST_BYTES", most_bytes)
    # It asks Spark for the columns of the schema.
    monkeypatch.setattr(merge.transform, "names_of_retained", names_of_retained)
    known, companion = retained_of(None, truncates="all_gone")
    known.forget()
    path = locations.table_path(known._table.retained)
    for batch in (4, 5, 6):
        write_deltalake(str(path), stored_batch(batch), mode="append")

    def places(version: int, keys: set, last_commit: tuple[int, int]) -> list[int]:
        companion.version = version
        found = known.of_keys(keys, last_commit)
        assert found.column_names == DELETES.column_names
        return sorted(found.column("place").to_pylist())

    assert places(0, {(1,)}, (2, 6)) == [405, 407]
    # The rows of batch 5 are not committed.
    assert places(1, {(1,)}, (2, 4)) == [405, 407]
    assert places(2, {(1,)}, (2, 6)) == [405, 407, 505, 507, 605, 607]
    assert places(2, {(2,)}, (2, 6)) == [406, 407, 506, 507, 606, 607]
    assert (known._rows is None) == (most_bytes <= 100)
    # What it knows of a version, it does not read again.
    monkeypatch.setattr(merge.known_keys, "at_version", None)
    assert places(2, {(1,)}, (2, 6)) == [405, 407, 505, 507, 605, 607]


def test_of_an_empty_table_of_retained_changes_nothing_is_found(home, monkeypatch):
    monkeypatch.setattr(merge.transform, "names_of_retained", names_of_retained)
    known, companion = retained_of(None, truncates="all_gone")
    known.forget()
    write_deltalake(str(locations.table_path(known._table.retained)), stored_batch(4).slice(0, 0))
    companion.version = 0
    found = known.of_keys({(1,)}, (2, 4))
    assert (len(found), found.column_names) == (0, DELETES.column_names)


def test_what_is_retained_is_known_if_no_other_commit_came_in_between(monkeypatch):
    rows = DELETES.drop_columns(["_truncates"])
    added = pa.table({"more": [0], "_deleted": [True], "place": [8], "id": [4]})
    known, companion = retained_of(rows)
    known.append(added.slice(0, 0), METADATA)
    assert (companion.appended, known._version) == ([], 3)
    known.append(added, METADATA)
    companion.version = 4
    assert known.of_keys({(4,)}, None).column("place").to_pylist() == [8]
    # Many additions are put together.
    monkeypatch.setattr(merge, "MOST_PARTS", 2)
    companion.committed = 5
    known.append(added, METADATA)
    companion.version = 5
    assert known.of_keys({(4,), (1,)}, None).column("place").to_pylist() == [5, 8, 8]
    known, companion = retained_of(rows)
    companion.committed = 5
    known.append(added, METADATA)
    assert companion.appended == [(added, METADATA)]
    assert known._version is None


def test_rows_of_an_earlier_try_are_those_of_the_flow_behind_the_last_batch_that_was_committed(home):
    left = {"_flow": ["silver.t", "other"], "_generation": pa.array([2, 3], pa.int32()), "_batch": [7, 9]}
    write_deltalake(str(locations.table_path("quarantine.t")), pa.table(left))

    def holds_later(generation: int, batch: int) -> bool:
        return writer._holds_later("quarantine.t", "silver.t", (generation, batch))

    assert [holds_later(1, 9), holds_later(2, 6), holds_later(2, 7), holds_later(3, 0)] == [True, True, False, False]


def test_neither_a_delete_nor_a_truncate_is_late_unless_nothing_says_when_it_was():
    write = Upsert(("id",), sequence_by="seq", truncates="op = 't'", watermark=Watermark("at", minutes=1))
    rows = pa.table(
        {
            "seq": [1, 2, 3, None, 5],
            DELETED: [False, True, False, False, None],
            TRUNCATES: [False, False, True, True, None],
        }
    )
    assert collect._may_be_late(rows, write) == [True, False, False, True, False]
    assert collect._may_be_late(rows, replace(write, truncates=None)) == [True, False, True, True, False]
    assert collect._may_be_late(rows, Append()) == [True] * 5


# How many rows went where.

RULES = tuple(
    Expect(name, "true", action) for name, action in zip("abcd", ("fail", "quarantine", "drop", "warn"), strict=True)
)


@pytest.mark.parametrize(
    ("broken", "action"),
    [("", "warn"), ("d", "warn"), ("dc", "drop"), ("bc", "quarantine"), ("abcd", "fail"), ("x", "warn")],
)
def test_of_the_rules_that_a_row_breaks_the_strictest_decides(broken: str, action: str):
    assert quality.strictest(tuple(broken), RULES) == action


def test_counts_are_added_and_rows_that_could_not_be_made_are_quarantined():
    counts = RowCounts.of([((), 5), (("b",), 2), (("c", "d"), 1)], RULES)
    assert counts == RowCounts(8, 5, 2, 1, {"a": 0, "b": 2, "c": 1, "d": 1})
    assert counts + counts == RowCounts(16, 10, 4, 2, {"a": 0, "b": 4, "c": 2, "d": 2})
    assert counts.with_failed(3) == RowCounts(11, 5, 5, 1, counts.broke | {FAILED: 3})
    assert counts.with_failed(0) == counts
    implied = (Expect("implied", "true", implied=True),)
    assert RowCounts.of([((), 5)], implied).broke == {}
    assert RowCounts.of([(("implied",), 5)], implied).broke == {"implied": 5}


def test_rows_that_break_a_rule_of_action_fail_end_the_flow_with_the_rule_and_their_number():
    counts = RowCounts.of([(("a", "b"), 1_200), (("b",), 2)], RULES)
    assert counts.failing(RULES) == "'a' (1,200 rows)"
    with pytest.raises(FlowBroken, match=r"silver\.t: batch 7 of generation 2 breaks 'a' \(1,200 rows\)") as caught:
        quality.require_none_fails(counts, RULES, METADATA)
    assert caught.value.error == "EXPECTATION_FAILED"
    quality.require_none_fails(RowCounts.of([(("b",), 2)], RULES), RULES, METADATA)
