"""A full refresh recomputes a table beside the old one, which serves readers until the new one is complete."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from deltalake import DeltaTable
from pyspark.sql import functions as F

from include.catalog import Catalog
from include.checkpoints import checkpoint_files
from include.control.jobs import backfills, stale_rows, store
from include.control.jobs.backfills import Backfill
from include.engine.jobs import backfill_commits, shadow_table
from include.engine.rows import transform
from include.errors import FlowBroken, FlowFailed, LeaseHeld, Unreachable, UsageError
from include.lake import locations
from include.ledger import verify
from include.monitoring import stale_rows as notes
from include.project.ranges import Slice
from include.recovery.backfill import preview
from include.spec import Bucket, Delta, Expect, Flow, Table, Upsert
from tests.support.backfills import Backfills, Killed
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.landing import Landing

SOURCE_SCHEMA = "number INT, place BIGINT"


@pytest.fixture
def landing(name) -> Landing:
    return Landing(name)


@pytest.fixture
def files(landing) -> Table:
    return landing.table("parquet")


@pytest.fixture
def reader(name) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="the same",
        source=Delta(f"bronze.{name}"),
        schema="number BIGINT, _filename STRING, _index BIGINT",
    )


def parquet_file(*values: int) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"number": pa.array(values, pa.int64())}), sink)
    return sink.getvalue().to_pybytes()


def contents(table: Table | str) -> list[int]:
    return sorted(row["number"] for row in rows_of(table if isinstance(table, str) else table.name))


def is_append_only(table: Table) -> bool:
    delta_table = DeltaTable(str(locations.table_path(table.name)))
    return delta_table.metadata().configuration.get("delta.appendOnly") == "true"


def has_no_leftovers(table: Table) -> bool:
    return not any(path.exists() for path in shadow_table.places(table))


def test_a_table_of_files_is_made_anew_from_its_folder_and_each_new_file_still_comes_once(
    files, reader, landing, run_once, spark
):
    landing.drop("a.parquet", parquet_file(1, 2))
    landing.drop("b.parquet", parquet_file(3))
    landing.drop("bad.parquet", b"no parquet")
    run_once(files, reader)
    # The stream does not read changed files, but a full refresh does.
    landing.drop("b.parquet", parquet_file(30, 31))
    landing.drop("bad.parquet", parquet_file(5))
    landing.drop("c.parquet", b"no parquet either")
    run_once(files)
    assert contents(files) == [1, 2, 3]
    completed_backfills = Backfills(spark, (files, reader)).run(files, as_a_whole=True)
    assert [
        (backfill.table, backfill.outcome["rows_before"], backfill.outcome["rows_after"])
        for backfill in completed_backfills
    ] == [
        (reader.name, 3, 5),
        (files.name, 3, 5),
    ]
    assert contents(files) == contents(reader) == [1, 2, 5, 30, 31]
    assert landing.quarantined() == [("c.parquet", "unreadable")]
    assert is_append_only(files) and has_no_leftovers(files)
    landing.drop("d.parquet", parquet_file(6))
    landing.drop("e.parquet", b"nor this")
    run_once(files, reader)
    assert contents(files) == contents(reader) == [1, 2, 5, 6, 30, 31]
    assert landing.quarantined() == [("c.parquet", "unreadable"), ("e.parquet", "unreadable")]
    assert checkpoint_files.position_of(files.flow).generation == 2
    for table in (files, reader):
        verify.verify(table)


def test_rows_of_files_that_are_gone_are_kept_unless_the_table_file_says_otherwise(files, landing, run_once, spark):
    for number in (1, 2):
        landing.drop(f"{number}.parquet", parquet_file(number))
    run_once(files)
    (landing.folder / "1.parquet").unlink()
    tables = Catalog({files.name: files})
    with pytest.raises(UsageError) as exception:
        list(preview(files, tables, Slice()))
    assert str(exception.value) == (
        f"{files.name} cannot be refreshed: file '1.parquet' that it holds cannot be read in {landing.folder} any "
        f"more, and those rows would be gone; new data still flows: restore what is missing, or declare "
        f"reset_allowed=True to do without it"
    )
    with pytest.raises(UsageError, match="file '1.parquet' that it holds cannot be read"):
        Backfills(spark, (files,)).run(files, as_a_whole=True)
    assert contents(files) == [1, 2] and is_append_only(files) and has_no_leftovers(files)
    landing.drop("3.parquet", parquet_file(3))
    run_once(files)
    assert contents(files) == [1, 2, 3], "new data still flows"
    files_with_reset = replace(files, reset_allowed=True)
    assert "will be gone" in "\n".join(preview(files_with_reset, tables, Slice()))
    Backfills(spark, (files_with_reset,)).run(files_with_reset, as_a_whole=True)
    assert contents(files) == [2, 3]
    verify.verify(files_with_reset)


@pytest.fixture
def silver(name) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="numbers",
        source=Delta(f"bronze.{name}"),
        schema="number INT, time TIMESTAMP, place BIGINT",
        transform="SELECT number, timestamp_seconds(number) AS time, place FROM source",
        expect=(Expect("is_small", "number < 1000"),),
    )


@pytest.fixture
def gold(name) -> Table:
    return Flow(
        name=f"gold.{name}",
        comment="sums",
        source=Delta(f"silver.{name}"),
        schema="minute TIMESTAMP, total BIGINT",
        transform="SELECT minute, sum(number) AS total FROM source GROUP BY minute",
        write=Upsert(keys=("minute",), recompute=Bucket("minute", of="time", unit="minute")),
    )


def test_what_spark_cannot_go_on_from_is_made_anew_and_goes_on(silver, gold, name, append, run_once, spark):
    append(f"bronze.{name}", [{"number": number, "place": number} for number in (1, 2, 61, 5000)], SOURCE_SCHEMA)
    run_once(silver, gold)
    new_silver = replace(
        silver,
        schema="number BIGINT, time TIMESTAMP, day DATE",
        transform="SELECT 10L * number AS number, timestamp_seconds(number) time, DATE'2026-03-01' AS day FROM source",
        partition_by=("day",),
    )
    new_gold = replace(
        gold,
        schema="minute TIMESTAMP, is_even BOOLEAN, total BIGINT",
        transform="SELECT minute, number % 20 = 0 AS is_even, sum(number) AS total FROM source GROUP BY ALL",
        write=replace(gold.write, keys=("minute", "is_even")),
    )
    for table, error in ((new_silver, "SCHEMA_CHANGED"), (new_gold, "CHECKPOINT_OF_ANOTHER_DEFINITION")):
        with pytest.raises(FlowBroken, match="--full") as exception:
            run_once(table)
        assert exception.value.error == error
    Backfills(spark, (new_silver, new_gold)).run(new_silver, as_a_whole=True)
    assert contents(silver) == [10, 20, 610]
    assert contents(silver.quarantine) == [50_000]
    append(f"bronze.{name}", [{"number": number, "place": number} for number in (3, 7000)], SOURCE_SCHEMA)
    changed_silver = replace(new_silver, expect=(Expect("is_small", "number < 1001"),))
    run_once(changed_silver, new_gold)
    # What the refresh has made is older than the change that came behind it, and of gold nothing is.
    assert len(notes.by_table(Catalog({silver.name: changed_silver}))[silver.name]) == 1
    assert notes.by_table(Catalog({gold.name: new_gold})) == {}
    assert contents(silver) == [10, 20, 30, 610]
    assert contents(silver.quarantine) == [50_000, 70_000]
    totals = {(row["minute"].minute, row["is_even"]): row["total"] for row in rows_of(gold.name)}
    assert totals == {(0, False): 40, (0, True): 20, (1, False): 610}
    assert DeltaTable(str(locations.table_path(silver.name))).metadata().partition_columns == ["day"]
    for table in (new_silver, new_gold):
        verify.verify(table)
        assert has_no_leftovers(table)


def test_a_restored_quarantine_with_columns_of_other_types_is_replaced_too(silver, name, append, run_once, spark):
    append(f"bronze.{name}", [{"number": number, "place": number} for number in (1, 5000)], SOURCE_SCHEMA)
    run_once(silver)
    older = spark.read.format("delta").load(str(locations.table_path(silver.quarantine)))
    older = older.withColumn("number", F.col("number").cast("string"))
    older.write.format("delta").mode("overwrite").option("overwriteSchema", "true").save(
        str(locations.table_path(silver.quarantine))
    )
    with pytest.raises(FlowBroken, match="--full"):
        run_once(silver)
    Backfills(spark, (silver,)).run(silver, as_a_whole=True)
    run_once(silver)
    assert (contents(silver), contents(silver.quarantine)) == ([1], [5000])
    verify.verify(silver)


@only_in_full_runs
def test_a_reader_of_its_changes_sees_all_of_it_go_and_come_and_keeps_other_columns_away(
    files, name, landing, run_once, spark
):
    files = replace(files, properties={"delta.enableChangeDataFeed": "true"})
    changes = Flow(
        name=f"silver.{name}",
        comment="what happened",
        source=Delta(files.name, changes=True),
        schema="number BIGINT, _change_type STRING",
    )
    landing.drop("a.parquet", parquet_file(1))
    run_once(files, changes)
    landing.drop("a.parquet", parquet_file(10))
    Backfills(spark, (files, changes)).run(files, as_a_whole=True)
    landing.drop("b.parquet", parquet_file(2))
    run_once(files, changes)
    change_rows = sorted((row["number"], row["_change_type"]) for row in rows_of(changes.name))
    assert change_rows == [(1, "delete"), (1, "insert"), (2, "insert"), (10, "insert")]
    copy = Flow(
        name=f"gold.{name}",
        comment="a copy",
        source=Delta(files.name),
        schema="number BIGINT",
        properties=files.properties,
    )
    feed = replace(changes, name=f"gold.{name}_feed", source=Delta(copy.name, changes=True))
    run_once(copy, feed)
    new_copy = replace(copy, schema="_index BIGINT")
    with pytest.raises(UsageError, match=f"its columns are others now, and {feed.name} reads its changes"):
        Backfills(spark, (new_copy, feed)).run(new_copy, as_a_whole=True)
    run_once(copy, feed)
    for table in (files, changes, copy, feed):
        verify.verify(table)


@only_in_full_runs
def test_tables_below_stay_as_they_are_where_nobody_wants_them_to_follow(files, reader, landing, run_once, spark):
    landing.drop("a.parquet", parquet_file(1))
    run_once(files, reader)
    landing.drop("a.parquet", parquet_file(10))
    runner = Backfills(spark, (files, reader))
    assert [backfill.table for backfill in runner.run(files, as_a_whole=True, alone=True)] == [files.name]
    landing.drop("b.parquet", parquet_file(2))
    run_once(files, reader)
    assert (contents(files), contents(reader)) == ([2, 10], [1, 2])
    [stale_entry] = [entry for entry in stale_rows.stale_ranges(runner.engine) if entry.table == reader.name]
    assert f"{files.name} was recomputed alone: backfill {reader.name}" in stale_entry.why
    runner.run(reader, as_a_whole=True)
    assert contents(reader) == [2, 10]
    assert [entry for entry in stale_rows.stale_ranges(runner.engine) if entry.table == reader.name] == []


@only_in_full_runs
def test_one_job_at_a_time_makes_a_table_anew(files, landing, run_once, spark, monkeypatch):
    landing.drop("a.parquet", parquet_file(1))
    run_once(files)
    runner = Backfills(spark, (files,))
    original_fill = shadow_table.fill

    def refresh_and_fill(*arguments) -> None:
        monkeypatch.undo()
        with pytest.raises(LeaseHeld):
            runner.run(files, as_a_whole=True)
        original_fill(*arguments)

    monkeypatch.setattr(shadow_table, "fill", refresh_and_fill)
    runner.run(files, as_a_whole=True)
    assert contents(files) == [1]
    runner.run(files, as_a_whole=True)
    verify.verify(files)


POINTS: dict[str, tuple[Callable, str]] = {
    "it is filled": (shadow_table.fill, "behind"),
    "its flows are stopped": (backfills.stop_readers, "behind"),
    "it has read on": (shadow_table.read_to_end, "behind"),
    "a generation is begun": (shadow_table._begin_generation, "behind"),
    "rows stand in the quarantine": (shadow_table._add_to_companion, "behind"),
    "the table is to be replaced": (transform.coalesce_small, "before"),
    "the table is replaced": (shadow_table.finish_swap, "before"),
    "the quarantine is shortened": (shadow_table._commit_seed, "before"),
    "its flow has its commit": (shadow_table._commit_seed, "behind"),
    "it is settled": (shadow_table.finish_swap, "behind"),
    "its twin is gone": (backfills.finish, "before"),
}


@pytest.fixture
def kill(monkeypatch) -> Callable[[str], None]:
    """Lets the next full refresh die at this point."""

    def kill_at(point: str) -> None:
        function, when = POINTS[point]
        is_first = function is not shadow_table.read_to_end

        def die(*arguments, **options):
            nonlocal is_first
            if when == "behind":
                result = function(*arguments, **options)
                if not is_first:
                    is_first = True
                    return result
            raise Killed

        monkeypatch.setattr(f"{function.__module__}.{function.__name__}", die)

    return kill_at


@only_in_full_runs
@pytest.mark.parametrize("point", POINTS)
def test_whoever_is_killed_leaves_the_old_table_or_the_new_one_and_is_ended_by_the_next_try(
    files, reader, landing, run_once, spark, kill, monkeypatch, point
):
    landing.drop("a.parquet", parquet_file(1))
    landing.drop("bad.parquet", b"no parquet")
    run_once(files, reader)
    landing.drop("a.parquet", parquet_file(10))
    runner = Backfills(spark, (files, reader))
    kill(point)
    with pytest.raises(Killed):
        runner.run(files, as_a_whole=True)
    monkeypatch.undo()
    is_replaced = list(POINTS).index(point) >= list(POINTS).index("the table is replaced")
    assert contents(files) == ([10] if is_replaced else [1]), "no reader sees a half"
    landing.drop("b.parquet", parquet_file(2))
    if point in ("the table is replaced", "the quarantine is shortened"):
        with pytest.raises(FlowFailed, match="a full refresh of its table is not done"):
            run_once(files)
    runner.run(files, as_a_whole=True)
    run_once(files, reader)
    assert contents(files) == contents(reader) == [2, 10]
    assert landing.quarantined() == [("bad.parquet", "unreadable")]
    assert is_append_only(files) and has_no_leftovers(files)
    for table in (files, reader):
        verify.verify(table)
    table_backfills = [
        backfill for backfill in store.newest(runner.engine, Backfill) if backfill.table in (files.name, reader.name)
    ]
    assert all(backfill.state == "done" and not backfill.stopped for backfill in table_backfills)


@only_in_full_runs
def test_a_refresh_that_fails_leaves_everything_as_it_was_and_its_flow_goes_on(
    files, reader, landing, run_once, spark, monkeypatch
):
    landing.drop("a.parquet", parquet_file(1))
    run_once(files, reader)
    runner = Backfills(spark, (files, reader))

    def fail(*_):
        raise Unreachable("the disk is away")

    for module, point in ((shadow_table, "_begin_generation"), (backfill_commits, "commit_metadata")):
        with monkeypatch.context() as patched, pytest.raises(Unreachable, match="the disk is away"):
            patched.setattr(module, point, fail)
            runner.run(files, as_a_whole=True)
        landing.drop(f"after{point}.parquet", parquet_file(2))
        run_once(files, reader)
        assert checkpoint_files.position_of(files.flow).generation == 1
    assert contents(files) == contents(reader) == [1, 2, 2]
    for table in (files, reader):
        verify.verify(table)


@only_in_full_runs
def test_a_range_that_is_made_again_lets_the_flow_of_a_dead_refresh_go_on(
    silver, name, append, run_once, spark, kill, monkeypatch
):
    append(f"bronze.{name}", [{"number": 1, "place": 1}], SOURCE_SCHEMA)
    run_once(silver)
    transform = "SELECT number, timestamp_seconds(number) AS time FROM source"
    new_silver = replace(silver, schema="number INT, time TIMESTAMP", transform=transform, expect=())
    kill("a generation is begun")
    with pytest.raises(Killed):
        Backfills(spark, (new_silver,)).run(new_silver, as_a_whole=True)
    monkeypatch.undo()
    restored_silver = replace(silver, time_column="time")
    Backfills(spark, (restored_silver,)).run(restored_silver, 0, 60)
    append(f"bronze.{name}", [{"number": 2, "place": 2}], SOURCE_SCHEMA)
    run_once(restored_silver)
    assert contents(silver) == [1, 2]
    verify.verify(restored_silver)
