"""The metadata of a commit is its own, whatever other flows of the driver commit at the same time."""

import json
import random
import threading
import time
from dataclasses import asdict

import pyarrow as pa
import pytest
from delta.tables import DeltaTable

from include.delta.delta_log import DeltaLog
from include.engine import commit
from include.engine.commit import CommitMetadata
from include.engine.fast_path import data_file
from include.engine.fast_path.transaction import Target
from include.engine.session import jvm_of
from include.engine.tables import maintain
from include.lake import locations
from include.spec import Append, Delta, Flow, Table, Upsert
from tests.support.flows import FULL

SCHEMA = "id BIGINT, batch BIGINT"
COMMITS = 1_000 if FULL else 12
METRICS = {
    "operationNumSourceRows": 1,
    "numTargetRowsInserted": 1,
    "numTargetRowsUpdated": 0,
    "numTargetRowsDeleted": 0,
}


@pytest.fixture
def table(spark, name) -> Table:
    """A stored table without rows, by the Spark path's writers."""
    return stored_table(spark, name, Upsert(("id",)))


def stored_table(spark, name: str, write: Append | Upsert) -> Table:
    table = Flow(name=f"silver.{name}", comment="x", source=Delta(f"bronze.{name}"), schema=SCHEMA, write=write)
    builder = (
        DeltaTable.create(spark)
        .location(str(locations.table_path(table.name)))
        .addColumns(spark.createDataFrame([], SCHEMA).schema)
    )
    builder.execute()
    return table


def metadata_of(table: Table, batch: int) -> CommitMetadata:
    return CommitMetadata(table.flow, 1, batch, 1, {}, None, {"batch": batch})


def commit_fast(spark, target: Target, table: Table, batch: int, kind: str) -> None:
    """Commit one row with the fast path's transaction."""
    metadata = metadata_of(table, batch)
    transaction = target.begin()
    rows = pa.table({"id": [batch], "batch": [batch]})
    file = data_file.write([rows], target.path, transaction.layout)
    txn, text = (metadata.txn_app_id, batch), json.dumps(asdict(metadata))
    if kind == "append":
        transaction.append([file.added()], text, txn, 1, reads=False)
    elif kind == "replace":
        transaction.replace([file.added()], [], text, txn, METRICS)
    else:
        transaction.compact([file.added(changes_data=False)], [], text, {})


def commit_with_spark(spark, table: Table, batch: int) -> None:
    rows = spark.createDataFrame([(batch % 3, batch)], SCHEMA)
    commit.commit(rows, table, metadata_of(table, batch))


def commits_of(table: Table) -> list[tuple[str, dict]]:
    """Operation and metadata of each commit after the creation, oldest first."""
    log = DeltaLog(locations.table_path(table.name))
    return [(found.operation, found.metadata) for found in map(log.commit, log.versions[1:])]


def test_no_commit_takes_its_metadata_from_the_session_that_is_active_in_its_thread(spark, table):
    """Delta reads a missing `userMetadata` from that session, and any code of the driver may activate another one."""
    own, other = spark.newSession(), spark.newSession()
    other.conf.set(commit.USER_METADATA, '{"flow": "another"}')
    path = locations.table_path(table.name)
    target = Target(own, table.name)
    jvm = jvm_of(spark)
    before = jvm.SparkSession.active()

    def with_metadata(metadata: dict, statement: str) -> None:
        with commit.user_metadata(own, metadata, {}):
            own.sql(statement)

    steps = {
        "append": lambda: commit_fast(own, target, table, 1, "append"),
        "replace": lambda: commit_fast(own, target, table, 2, "replace"),
        "compact": lambda: commit_fast(own, target, table, 3, "compact"),
        "files": lambda: maintain.compact_files(own, table.name, 2**20, 2**23, {"number": 4}),
        "merge": lambda: commit_with_spark(own, table, 5),
        "statement": lambda: with_metadata({"number": 6}, f"DELETE FROM delta.`{path}` WHERE id = 1"),
    }
    try:
        for step in steps.values():
            jvm.SparkSession.setActiveSession(other._jsparkSession)
            step()
    finally:
        jvm.SparkSession.setActiveSession(before)
    stamped = [metadata and metadata.get("number", metadata.get("batch")) for _, metadata in commits_of(table)]
    assert stamped == [1, 2, 3, 4, 5, 6], commits_of(table)


def test_two_flows_of_one_driver_that_commit_at_the_same_time_each_keep_their_metadata(spark, name):
    seed = time.time_ns()
    print(f"seed {seed}")
    tables = [stored_table(spark, f"{name}_{number}", Upsert(("id",))) for number in range(2)]
    barrier, errors = threading.Barrier(2), []

    def run(number: int) -> None:
        random_ = random.Random(seed + number)
        try:
            session, table = spark.newSession(), tables[number]
            target = Target(session, table.name)
            for batch in range(COMMITS):
                kind = random_.choice(("append", "replace", "replace", "compact", "spark"))
                barrier.wait(60)
                commit_with_spark(session, table, batch) if kind == "spark" else commit_fast(
                    session, target, table, batch, kind
                )
        except BaseException as error:
            errors.append(error)
            barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for table in tables:
        expected = [(table.flow, batch) for batch in range(COMMITS)]
        assert [(metadata.get("flow"), metadata.get("batch")) for _, metadata in commits_of(table)] == expected
