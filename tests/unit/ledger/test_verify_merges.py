"""Verdicts of `verify` on a table that merges changes: outcomes of a batch, rows of the table, and tombstones."""

import json
import uuid
from typing import Any

import pyarrow
import pytest
from deltalake import ColumnProperties, WriterProperties, write_deltalake

from include.errors import LedgerMismatch
from include.flows.batches import BACKFILL
from include.lake import locations
from include.ledger.verify import verify
from include.spec import Debezium, Delta, Flow, Upsert
from tests.support import lake
from tests.support.delta_log import commit, commit_info, removed

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

# Ten changes of seven keys, which leave eleven of ten rows.
CHANGES = {"keys": 7, "inserted": 2, "updated": 3, "deleted": 1, "stale": 1, "truncates": 0, "tombstones": 2}
MERGED = {"inserted": 2, "updated": 3, "deleted": 1}
LEFT_TO_DELTA = {"inserted": None, "updated": None, "deleted": None}


class Merge:
    """A table whose first batch inserts ten rows, and whose second one merges ten changes."""

    def __init__(self, parse: Debezium | None = None, **declared: Any) -> None:
        name = uuid.uuid4().hex[:12]
        self.source = f"bronze.t{name}"
        write = Upsert(("id",), sequence_by="place", deletes="gone", **declared)
        self.table = Flow(
            name=f"silver.t{name}",
            comment="",
            source=Delta(self.source),
            schema="id BIGINT, place BIGINT",
            write=write,
            parse=parse,
        )

    def commit(self, metadata: dict, merged: dict[str, int], rows: int | None, **metrics: int) -> None:
        """Commit a file of so many rows in place of the one before."""
        path = locations.table_path(self.table.name)
        version = lake.next_version(path)
        metrics |= {f"numTargetRows{name.capitalize()}": count for name, count in merged.items()}
        info = {"userMetadata": json.dumps(metadata), "operationMetrics": {k: str(v) for k, v in metrics.items()}}
        file = lake.data(f"file-{version}", rows or 0, version)
        if rows is None:
            del file["add"]["stats"]
        last = [removed(f"file-{version - 1}")] if version else lake.INITIAL_ACTIONS
        commit(path, version, commit_info(version, **info), *last, file)

    def batch(self, number: int, changes: dict | None, merged: dict, rows: int | None, kept: int) -> None:
        tally = {"read": 10, "kept": kept, "quarantined": 10 - kept, "dropped": 0, "broke": {}}
        tally |= {"changes": changes} if changes else {}
        offsets = [lake.delta_offset(version) for version in range(1, number + 2)]
        metadata = {"flow": self.table.flow, "generation": 1, "batch": number, "source": {"table": self.source}}
        metadata |= {"source_from": offsets[-2] if number else None, "source_to": offsets[-1], "rows": tally}
        self.commit(metadata, merged, rows)
        lake.checkpoint(self.table.flow, *offsets)

    def verdict(
        self,
        changes: dict | None = CHANGES,
        merged: dict = MERGED,
        rows: int | None = 11,
        kept: int = 10,
        has_source: bool = False,
    ) -> list[str]:
        """The notes of `verify` on both batches, or its difference."""
        for _ in () if has_source else range(2):
            lake.rows(self.source, 1, 10)
        first = {name: 10 if name in ("keys", "inserted") else 0 for name in CHANGES}
        self.batch(0, first, {"inserted": 10}, 10, 10)
        self.batch(1, changes, merged, rows, kept)
        return self.check()

    def check(self) -> list[str]:
        try:
            return verify(self.table).notes
        except LedgerMismatch as difference:
            return [str(difference)]


@pytest.mark.parametrize(
    "balanced",
    [
        {},
        {"changes": CHANGES | LEFT_TO_DELTA},
        {"merged": {}},
        {"changes": CHANGES | {"truncates": 1, "stale": 0}},
        {"changes": CHANGES | {"truncates": 1, "stale": 0}, "merged": MERGED | {"deleted": 9}, "rows": 3},
        {"changes": CHANGES | {"keys": 10, "stale": 0, "tombstones": 0}},
    ],
)
def test_changes_that_all_have_an_outcome_are_balanced(balanced: dict):
    rows = 10 if balanced.get("merged") == {} else 11
    assert Merge().verdict(**({"rows": rows} | balanced)) == []


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"kept": 9}, "/1 kept 9 changes, and accounts for others: 2 inserted, 3 updated, 1 deleted, 1 unchanged"),
        ({"changes": CHANGES | {"stale": 0}}, "/1 kept 10 changes, and accounts for others"),
        ({"changes": CHANGES | {"keys": 5, "stale": 3}}, "-1 unchanged, 3 stale"),
        ({"changes": CHANGES | LEFT_TO_DELTA, "merged": MERGED | {"updated": 5}}, "-1 unchanged, 1 stale"),
        ({"merged": MERGED | {"inserted": 3}}, "/1 says that it inserted 2 rows, and version 1 says 3"),
        ({"merged": MERGED | {"updated": 2}}, "/1 says that it updated 3 rows, and version 1 says 2"),
        ({"merged": MERGED | {"deleted": 2}}, "/1 says that it deleted 1 rows, and version 1 says 2"),
        (
            {"changes": CHANGES | {"truncates": 1, "stale": 0}, "merged": MERGED | {"deleted": 0}},
            "/1 says that it deleted 1 rows, and version 1 says 0",
        ),
        (
            {"changes": CHANGES | {"truncates": 1, "stale": 0}, "merged": MERGED | {"updated": 4}},
            "/1 says that it updated 3 rows, and version 1 says 4",
        ),
        ({"rows": 12}, " holds 12 rows, and its commits inserted 11 more than they deleted"),
    ],
)
def test_changes_without_an_outcome_and_outcomes_that_delta_does_not_count_are_named(wrong: dict, says: str):
    [difference] = [line for line in "\n".join(Merge().verdict(**wrong)).splitlines() if says in line]
    assert difference


def test_a_change_of_a_history_may_change_several_rows():
    assert Merge(scd=2).verdict(merged=MERGED | {"updated": 9}) == []


def test_a_table_is_not_compared_whose_batches_or_files_do_not_count():
    [note] = Merge().verdict(changes=None)
    assert "its total was not compared with its batches, as 1 of them do not count outcomes" in note
    [note] = Merge().verdict(rows=None)
    assert "its total was not compared with its batches, as a file does not say its rows" in note


@pytest.mark.parametrize("rows", [14, 13])
def test_rows_that_a_backfill_adds_count_in_the_total(rows: int):
    merge = Merge()
    merge.verdict()
    merge.commit({BACKFILL: {"number": 1, "rows_before": 2}}, {}, rows, numOutputRows=5)
    differences = [f"{merge.table.name} holds {rows} rows, and its commits inserted 14 more than they deleted"]
    assert merge.check() == (differences if rows != 14 else [])


PARSE = Debezium("value", into=("id",))


def merge_of_tombstones(nulls: int, changes: dict = CHANGES, **options: Any) -> tuple[Merge, list[str]]:
    """A merge whose second batch counts two tombstones, and reads so many records without a value."""
    merge = Merge(PARSE)
    for empty in (0, nulls):
        values = pyarrow.array([None] * empty + ["{}"] * (10 - empty), pyarrow.string())
        rows = pyarrow.table({"other": pyarrow.nulls(10, pyarrow.string()), "value": values})
        write_deltalake(str(locations.table_path(merge.source)), rows, mode="append", **options)
    return merge, merge.verdict(changes, has_source=True)


def test_no_batch_has_more_tombstones_than_its_source_has_records_without_a_value():
    assert merge_of_tombstones(2)[1] == merge_of_tombstones(3)[1] == []
    merge, [difference] = merge_of_tombstones(1)
    assert f"/1 counts 2 tombstones, and {merge.source} holds 1 records without a value of that batch" in difference
    assert "/1 counts 2 tombstones, and" in merge_of_tombstones(0)[1][0]
    # Where a transform makes the rows, a record may become several.
    object.__setattr__(merge.table, "transform", lambda frame: frame)
    assert merge.check() == []
    # Older releases counted them as stale.
    stale = {name: 3 if name == "stale" else count for name, count in CHANGES.items() if name != "tombstones"}
    assert merge_of_tombstones(0, stale)[1] == []


def test_tombstones_are_not_compared_where_files_are_gone_or_do_not_count_them():
    uncounted = WriterProperties(default_column_properties=ColumnProperties(statistics_enabled="NONE"))
    assert merge_of_tombstones(1, writer_properties=uncounted)[1] == []
    merge, _ = merge_of_tombstones(1)
    for file in locations.table_path(merge.source).glob("*.parquet"):
        file.unlink()
    assert merge.check() == []
