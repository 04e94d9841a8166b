"""The commit that replaced a backfill's range, found in the table's log."""

import uuid
from pathlib import Path

import pytest
from deltalake import DeltaTable

from include.control.jobs import backfills
from include.control.jobs.backfills import Backfill
from include.control.store import database
from include.errors import FlowBroken
from include.flows.batches import BACKFILL
from include.lake import locations
from include.project.ranges import Slice
from include.recovery.backfill import replacing_commit, txn_app_id
from tests.support import lake


@pytest.fixture
def job(tmp_path: Path, home: Path) -> Backfill:
    """A backfill of a table with one commit."""
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    table = f"silver.t{uuid.uuid4().hex[:10]}"
    lake.rows(table, 0.1, 1)
    return backfills.begin(engine, table, Slice(), "a test")


def replace_range(job: Backfill) -> int:
    transaction = {"txn": {"appId": txn_app_id(job), "version": 1, "lastUpdated": 1}}
    return lake.write(job.table, 1, transaction, **{BACKFILL: {"number": job.number, "key": job.key}})


def test_before_its_range_is_replaced_a_backfill_has_no_commit(job):
    assert replacing_commit(job.table, job) is None


def test_the_commit_that_replaced_the_range_is_found_behind_later_commits(job):
    version = replace_range(job)
    lake.rows(job.table, 2, 1)
    commit = replacing_commit(job.table, job)
    assert commit and commit.version == version


def test_a_range_whose_commit_was_cleaned_from_the_log_is_not_taken_for_one_that_was_never_replaced(job):
    version = replace_range(job)
    lake.rows(job.table, 2, 1)
    path = locations.table_path(job.table)
    DeltaTable(str(path)).create_checkpoint()
    for cleaned in range(version + 1):
        (path / "_delta_log" / f"{cleaned:020}.json").unlink()
    with pytest.raises(FlowBroken, match=f"backfill {job.number} replaced its range.* restore .* from its backup"):
        replacing_commit(job.table, job)
