"""The ledger balances after an erasure: what was taken out is accounted for, and nothing else is."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake

from include.checkpoints.offset_ranges import OffsetRange
from include.delta.commit_history import ERASED
from include.delta.delta_log import DeltaLog
from include.flows.batches import COMMITTED, BatchRecord
from include.ledger import erasures, verify_sources
from include.ledger.erasures import Erasures


@pytest.fixture
def log(tmp_path):
    rows = pa.table({"n": [1, 2, 3]})
    path = str(tmp_path / "t")
    write_deltalake(path, rows)
    for number, stamp in enumerate(
        (
            {ERASED: {"rows": 2, "offsets": {"orders/0": [7, 5]}, "batches": {"silver.t/1/3": 2}}},
            {"window": 3},
            {ERASED: {"rows": 1, "offsets": {"orders/0": [9]}, "files": {"a.json": 1}}},
        )
    ):
        properties = CommitProperties(custom_metadata={"userMetadata": json.dumps(stamp)})
        write_deltalake(path, rows.slice(number, 1), mode="append", commit_properties=properties)
    return DeltaLog(tmp_path / "t")


def test_all_erasures_of_a_table_count(log):
    found = Erasures.of_log(log)
    assert found.rows == 3
    assert found.batches == {"silver.t/1/3": 2}
    assert found.files == {"a.json": 1}
    assert found.within(OffsetRange("orders", 0, 6, 10)) == {7, 9}
    assert found.within(OffsetRange("orders", 1, 0, 10)) == set()


def test_a_restore_before_an_erasure_undoes_its_account(log):
    DeltaTable(str(log.table)).restore(1)
    assert Erasures.of_log(DeltaLog(log.table)).rows == 2


def test_an_erased_or_suppressed_offset_is_not_missing(log, monkeypatch):
    batch = BatchRecord("bronze.t", 1, 0, COMMITTED, suppressed={"orders/0": [6]})
    range_ = OffsetRange("orders", 0, 5, 8)
    elsewhere = Erasures.of_log(log).within(range_) | erasures.suppressed_within(batch, range_)
    assert verify_sources.check_range(None, batch.name, range_, [], elsewhere) == 0
    other = erasures.suppressed_within(replace(batch, suppressed={}), range_)
    assert other == set()
