"""Two drivers append to one table on S3 while windows compact it: nobody waits, and nothing is lost or doubled."""

import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from include.control.jobs import store
from include.control.jobs.windows import Window
from include.control.store import database
from include.delta.delta_log import DeltaLog
from include.lake import locations
from include.ledger import verify
from include.local.object_store import ObjectStore
from include.settings import settings
from tests.conftest import ROOT, free_port
from tests.support.flows import has_rows, only_in_full_runs, rows_of
from tests.support.jobs.online import table_of
from tests.support.s3.bucket import Bucket, skip_without_store
from tests.support.waiting import wait_until

pytestmark = only_in_full_runs
BATCHES = 30


@pytest.fixture
def bucket(name, monkeypatch) -> Iterator[Bucket]:
    """A bucket of its own, in which the lake of this process lies."""
    skip_without_store()
    with tempfile.TemporaryDirectory() as directory, ObjectStore(Path(directory), free_port()).running() as store:
        bucket = Bucket(store, name.replace("_", "-"))
        for variable, value in {**store.client_variables(), "SLUICE_LAKE": bucket.url("lake")}.items():
            monkeypatch.setenv(variable, value)
        settings.cache_clear()
        yield bucket
        monkeypatch.undo()
        settings.cache_clear()


@pytest.fixture
def start(bucket, monkeypatch, name):
    """`start("eu")` starts a process, tests/support/jobs/online.py, and returns it when it is ready."""
    processes = []

    def start_process(role: str, fast_path: str = "on") -> subprocess.Popen:
        monkeypatch.setenv("SLUICE_FAST_PATH", fast_path)
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.jobs.online", name, role],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start_process
    for process in processes:
        process.kill()
        with process:
            pass


def go(process: subprocess.Popen) -> None:
    process.stdin.write("go\n")
    process.stdin.flush()


def test_two_drivers_append_to_a_table_while_windows_compact_it_and_nobody_waits(bucket, start, name):
    table = table_of(name)
    for branch, first in (("eu", 0), ("us", BATCHES)):
        for number in range(first, first + BATCHES):
            rows = pa.table({"id": pa.array([number], pa.int32())})
            url = str(locations.table_path(f"bronze.{name}_{branch}")).replace("s3a:", "s3:")
            write_deltalake(url, rows, mode="append", storage_options=bucket.options)
    # One driver commits by the fast path, the other by Spark's writers.
    writers = [start("eu"), start("us", fast_path="off")]
    compaction = start("windows")
    for process in (*writers, compaction):
        assert process.stdout.readline() == "ready\n"
    go(writers[0])
    # A flow creates its table when it starts, so the second one starts after that, as in one driver.
    wait_until(lambda: has_rows(table), 120)
    go(writers[1])
    go(compaction)
    for process in writers:
        process.stdout.read()
        assert process.wait(60) == 0
    compaction.communicate(timeout=300)
    assert compaction.returncode == 0

    assert Counter(row["id"] for row in rows_of(table.name)) == Counter(range(2 * BATCHES))
    verify.verify(table)
    log = DeltaLog(locations.table_path(table.name))
    commits = list(log.commits())
    paths = {
        (commit.metadata["flow"], commit.metadata["fast_path"]) for commit in commits if "batch" in commit.metadata
    }
    eu, us = (flow.flow for flow in table.flows)
    assert paths == {(eu, True), (us, False)}
    operations = [commit.operation for commit in sorted(commits, key=lambda commit: commit.version)]
    compactions = operations[: len(operations) - operations[::-1].index("WRITE")].count("OPTIMIZE")
    calendar = store.newest(database.connect(settings().control_url), Window, table.name, limit=10_000)
    files = len(log.state.live)
    print(f"{len(calendar)} windows, {compactions} compactions before the last append, {files} files are left")
    assert {window.state for window in calendar} == {"done"}
    assert [pause for window in calendar for pause in window.pauses] == []
    assert compactions >= 3
    assert files < BATCHES / 2
