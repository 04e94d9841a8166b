"""A Delta source reads the appends or the changes of a table, file by file, from a version or time on."""

import os
import time
from dataclasses import replace

import pytest

from include.catalog import Catalog
from include.checkpoints import checkpoint_files
from include.control import commands
from include.control.commands import Action, Command
from include.control.store import database
from include.delta.delta_log import DeltaLog
from include.engine.tables import create_table, maintain
from include.errors import FlowBroken, FlowFailed, Unreachable
from include.flows.batch_files import AppendedFiles
from include.flows.batches import BatchHistory
from include.lake import locations
from include.ledger import verify
from include.maintenance import table_survey
from include.project.sources import inline_steps
from include.settings import settings
from include.spec import Bucket, Delta, Flow, Maintenance, Table, Upsert
from tests.support.commits import intercept_commits
from tests.support.flows import only_in_full_runs, rows_of

CHANGES_SCHEMA = "id BIGINT, n INT, _change_type STRING, _commit_version BIGINT"


@pytest.fixture
def source(spark, name):
    """Runs SQL on the bronze table of the test, which is `{t}` in the text: `source("DELETE FROM {t}")`."""
    path = locations.table_path(f"bronze.{name}")
    return lambda text: spark.sql(text.replace("{t}", f"delta.`{path}`"))


def reader(name: str, layer: str = "silver", schema: str = "id BIGINT, n INT", **source) -> Table:
    return Flow(name=f"{layer}.{name}", comment="", source=Delta(f"bronze.{name}", **source), schema=schema)


def offsets(table: str) -> list[tuple[int, int, bool]]:
    """The end of each batch of a flow: version, file index, and whether it lies in the initial snapshot."""
    checkpoint_path = locations.checkpoints(table) / "1"
    end_offsets = [
        checkpoint_files.end_offset(checkpoint_path, batch)
        for batch in range((checkpoint_files.last_planned(checkpoint_path) or 0) + 1)
    ]
    return [(end["reservoirVersion"], end["index"], end["isStartingVersion"]) for end in end_offsets]


def ledger_batches(table: Table) -> list[tuple[int, int | None, list[tuple[int, int, int | None]]]]:
    """The batches in the ledger: number, rows, and the version, index and rows of each file that the batch read."""
    appends = AppendedFiles(DeltaLog(locations.table_path(table.source.table)), table.source)
    history = list(BatchHistory(table).batches())[::-1]
    assert {batch.state for batch in history} == {"committed"}
    return [
        (batch.batch, batch.rows, [(file.version, file.index, file.rows) for file in appends.of(batch)])
        for batch in history
    ]


def batch_row_counts(table: str) -> list[int]:
    """The number of rows that each batch of a flow wrote."""
    log = DeltaLog(locations.table_path(table))
    commits = [log.commit(version) for version in log.versions]
    return [commit.rows or 0 for commit in commits if "batch" in commit.metadata]


def test_a_table_of_eight_files_is_read_five_files_a_batch_and_the_offsets_say_so(spark, run_once, name):
    path = str(locations.table_path(f"bronze.{name}"))
    spark.range(0, 16_384, 1, 8).write.format("delta").save(path)
    table = reader(name, schema="id BIGINT", max_files=5)
    run_once(table)
    assert batch_row_counts(table.name) == [10_240, 6_144]
    assert offsets(table.name) == [(0, 4, True), (1, -1, False)]
    assert ledger_batches(table) == [
        (0, 10_240, [(0, index, 2_048) for index in range(5)]),
        (1, 6_144, [(0, index, 2_048) for index in range(5, 8)]),
    ]
    for files in (3, 7):
        spark.range(0, 10 * files, 1, files).write.format("delta").mode("append").save(path)
    run_once(table)
    assert batch_row_counts(table.name) == [10_240, 6_144, 50, 50]
    assert offsets(table.name)[2:] == [(2, 1, False), (3, -1, False)]
    assert len(rows_of(table.name)) == 16_384 + 100
    # Two versions have ten files of ten rows. A batch has five files, so batch 2 reads from both versions.
    assert ledger_batches(table)[2:] == [
        (2, 50, [(1, index, 10) for index in range(3)] + [(2, index, rows) for index, rows in ((0, 10), (1, 10))]),
        (3, 50, [(2, index, 10) for index in range(2, 7)]),
    ]
    assert verify.verify(table).notes == []


@only_in_full_runs
def test_max_bytes_ends_a_batch_and_a_batch_has_at_least_one_file(spark, run_once, name):
    spark.range(0, 40, 1, 4).write.format("delta").save(str(locations.table_path(f"bronze.{name}")))
    table = reader(name, schema="id BIGINT", max_bytes=1)
    run_once(table)
    assert batch_row_counts(table.name) == [10, 10, 10, 10]


@only_in_full_runs
def test_a_flow_begins_with_a_version_or_a_moment_and_goes_on_from_there(source, run_once, name):
    source("CREATE TABLE {t} (id BIGINT, n INT) USING delta")
    for number in (1, 2, 3):
        source(f"INSERT INTO {{t}} VALUES ({number}, {number})")
    seconds = DeltaLog(locations.table_path(f"bronze.{name}")).commit(2).timestamp
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{round(seconds * 1000) % 1000:03}Z"
    tables = [reader(name, "silver", since_version=3), reader(name, "gold", since=moment)]
    run_once(*tables)
    source("INSERT INTO {t} VALUES (4, 4)")
    # A changed start time has no effect on a flow that has a checkpoint.
    run_once(tables[0], replace(tables[1], source=Delta(f"bronze.{name}", since="2999-01-01T00:00:00Z")))
    assert sorted(row["id"] for row in rows_of(f"silver.{name}")) == [3, 4]
    assert sorted(row["id"] for row in rows_of(f"gold.{name}")) == [2, 3, 4]


def test_changes_begin_with_what_the_table_holds_also_where_the_feed_was_switched_on_late(source, run_once, name):
    source("CREATE TABLE {t} (id BIGINT, n INT) USING delta")
    source("INSERT INTO {t} VALUES (1, 10), (2, 20), (3, 30)")
    source("UPDATE {t} SET n = 11 WHERE id = 1")
    table = reader(name, schema=CHANGES_SCHEMA, changes=True)
    with pytest.raises(Unreachable, match=f"changes of bronze.{name}, which does not keep them yet: restart the flow"):
        run_once(table)
    source("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    run_once(table)
    source("UPDATE {t} SET n = 21 WHERE id = 2")
    source("DELETE FROM {t} WHERE id = 3")
    source("INSERT INTO {t} VALUES (4, 40)")
    run_once(table)
    change_rows = [(row["_commit_version"], row["id"], row["n"], row["_change_type"]) for row in rows_of(table.name)]
    assert sorted(change_rows) == [
        (3, 1, 11, "insert"),
        (3, 2, 20, "insert"),
        (3, 3, 30, "insert"),
        (4, 2, 20, "update_preimage"),
        (4, 2, 21, "update_postimage"),
        (5, 3, 30, "delete"),
        (6, 4, 40, "insert"),
    ]


def test_changes_of_versions_that_kept_none_are_refused_and_not_passed_over(source, run_once, name):
    source("CREATE TABLE {t} (id BIGINT, n INT) USING delta")
    source("INSERT INTO {t} VALUES (1, 10)")
    source("ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    source("INSERT INTO {t} VALUES (2, 20)")
    with pytest.raises(
        FlowBroken, match="begin where its source keeps changes: a later since_version, or none for all"
    ):
        run_once(reader(name, schema=CHANGES_SCHEMA, changes=True, since_version=1))
    run_once(reader(name, "gold", schema=CHANGES_SCHEMA, changes=True, since_version=3))
    assert [row["id"] for row in rows_of(f"gold.{name}")] == [2]


CHANGE_FEED_ON = "TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')"


def test_a_batch_of_changes_that_fails_is_written_once(source, run_once, name, monkeypatch):
    source(f"CREATE TABLE {{t}} (id BIGINT, n INT) USING delta {CHANGE_FEED_ON}")
    source("INSERT INTO {t} VALUES (1, 10), (2, 20)")
    table = reader(name, schema=CHANGES_SCHEMA, changes=True)
    run_once(table)
    source("UPDATE {t} SET n = n + 1")

    def die_before(flow, commit):
        raise OSError("killed before the commit")

    def die_after(flow, commit):
        commit()
        raise OSError("killed after the commit")

    for action in (die_before, die_after):
        with monkeypatch.context() as patched:
            intercept_commits(patched, action)
            with pytest.raises(FlowFailed, match="killed"):
                run_once(table)
    run_once(table)
    change_rows = sorted((row["id"], row["n"], row["_change_type"]) for row in rows_of(table.name))
    assert change_rows == [
        (1, 10, "insert"),
        (1, 10, "update_preimage"),
        (1, 11, "update_postimage"),
        (2, 20, "insert"),
        (2, 20, "update_preimage"),
        (2, 21, "update_postimage"),
    ]


def test_a_checkpoint_of_appends_is_none_of_changes(source, run_once, name):
    source(f"CREATE TABLE {{t}} (id BIGINT, n INT) USING delta {CHANGE_FEED_ON}")
    source("INSERT INTO {t} VALUES (1, 10)")
    run_once(reader(name))
    with pytest.raises(FlowBroken, match="Spark cannot go on from there"):
        run_once(reader(name, changes=True))


def readings_of(name: str) -> list[Table]:
    """Bronze, silver with the maximum of each minute, and gold with the sum of each hour, from silver's changes."""

    def max_by_minute(rows):
        from pyspark.sql import functions as F

        return rows.groupBy("id", "minute").agg(F.max("n").alias("n"))

    def sum_by_hour(rows):
        from pyspark.sql import functions as F

        return rows.groupBy("hour").agg(F.sum("n").alias("n"), F.count("*").alias("minutes"))

    bronze = Flow(
        name=f"bronze.{name}", comment="", source=Delta(f"bronze.{name}_0"), schema="id BIGINT, at TIMESTAMP, n INT"
    )
    silver = Flow(
        name=f"silver.{name}",
        comment="",
        source=Delta(f"bronze.{name}"),
        schema="id BIGINT, minute TIMESTAMP, n INT",
        transform=max_by_minute,
        write=Upsert(("id", "minute"), recompute=Bucket("minute", of="at", unit="minute")),
    )
    gold = Flow(
        name=f"gold.{name}",
        comment="",
        source=Delta(f"silver.{name}", changes=True),
        schema="hour TIMESTAMP, n BIGINT, minutes BIGINT",
        transform=sum_by_hour,
        write=Upsert(("hour",), recompute=Bucket("hour", of="minute", unit="hour")),
    )
    tables, _ = inline_steps({table.name: table for table in (bronze, silver, gold)})
    return list(tables.values())


def hours(name: str) -> list[tuple[str, int, int]]:
    return sorted((f"{row['hour']:%H}", row["n"], row["minutes"]) for row in rows_of(f"gold.{name}"))


@only_in_full_runs
def test_an_aggregate_of_an_upserted_table_follows_its_changes(spark, source, run_once, name):
    bronze, silver, gold = readings_of(name)
    create_table.create(spark, bronze)
    source("INSERT INTO {t} VALUES (1, TIMESTAMP'2026-03-01 12:00:01', 5), (2, TIMESTAMP'2026-03-01 13:00:01', 7)")
    run_once(silver, gold)
    assert hours(name) == [("12", 5, 1), ("13", 7, 1)]
    # A late reading, and a greater value for a minute that gold has counted.
    source("INSERT INTO {t} VALUES (1, TIMESTAMP'2026-03-01 12:00:59', 9), (1, TIMESTAMP'2026-03-01 12:30:00', 1)")
    run_once(silver, gold)
    assert hours(name) == [("12", 10, 2), ("13", 7, 1)]
    # A person erases an id from silver. An hour without remaining rows leaves gold.
    spark.sql(f"DELETE FROM delta.`{locations.table_path(silver.name)}` WHERE id = 2")
    run_once(gold)
    assert hours(name) == [("12", 10, 2)]


@only_in_full_runs
def test_a_reset_of_a_flow_of_changes_goes_on_where_its_table_ends(spark, source, run_once, name):
    source(f"CREATE TABLE {{t}} (id BIGINT, n INT) USING delta {CHANGE_FEED_ON}")
    source("INSERT INTO {t} VALUES (1, 10)")
    table = reader(name, schema=CHANGES_SCHEMA, changes=True)
    run_once(table)
    source("UPDATE {t} SET n = 11")
    engine = database.connect(settings().control_url)
    commands.execute(engine, Command(Action.RESET_CHECKPOINT, (table.name,), "test", "a test"))
    run_once(table)
    assert sorted(row["_change_type"] for row in rows_of(table.name)) == [
        "insert",
        "update_postimage",
        "update_preimage",
    ]


@only_in_full_runs
def test_vacuum_keeps_the_changes_that_a_stopped_reader_has_yet_to_read(spark, source, run_once, name):
    source(f"CREATE TABLE {{t}} (id BIGINT, n INT) USING delta {CHANGE_FEED_ON}")
    source("INSERT INTO {t} VALUES (1, 10), (2, 20)")
    table = reader(name, schema=CHANGES_SCHEMA, changes=True)
    run_once(table)
    source("UPDATE {t} SET n = 21 WHERE id = 2")
    path = locations.table_path(f"bronze.{name}")
    change_files = list((path / "_change_data").glob("*.parquet"))
    assert change_files
    for file in change_files:
        os.utime(file, (time.time() - 5 * 3_600,) * 2)
    bronze = Flow(
        name=f"bronze.{name}",
        comment="",
        source=Delta("bronze.other"),
        schema="id BIGINT, n INT",
        maintain=Maintenance(time_travel_hours=0.001),
    )
    survey = survey_of(bronze, table)
    maintain.vacuum(spark, bronze.name, survey.retention_seconds, {"a": "test"})
    run_once(table)
    assert sorted((row["n"], row["_change_type"]) for row in rows_of(table.name)) == [
        (10, "insert"),
        (20, "insert"),
        (20, "update_preimage"),
        (21, "update_postimage"),
    ]
    # VACUUM deletes the change files after the flow has read them.
    survey = survey_of(bronze, table)
    maintain.vacuum(spark, bronze.name, survey.retention_seconds, {"a": "test"})
    assert not any(file.exists() for file in change_files)


def survey_of(table: Table, *readers: Table) -> table_survey.TableSurvey:
    engine = database.connect(settings().control_url)
    return table_survey.survey(engine, table, Catalog({member.name: member for member in (table, *readers)}))[0]
