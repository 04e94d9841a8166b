"""All of a table is made anew from its source beside the old one, which serves until the new one is whole."""

from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from deltalake import DeltaTable

from include.catalog import Catalog
from include.control.jobs import backfills, stale_tables
from include.engine.jobs import backfill as engine_backfill
from include.engine.jobs import shadow_swap, shadow_table
from include.errors import FlowBroken, FlowFailed, LeaseHeld, Unreachable, UsageError
from include.ledger import verify
from include.readers import position
from include.recovery.backfills import preview
from include.settings import settings
from include.spec import Bucket, Delta, Expect, Table, Upsert
from include.validation.slices import Slice
from tests.support.backfills import Backfills, Killed
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.landing import Landing

SOURCE = "number INT, place BIGINT"


@pytest.fixture
def landing(name) -> Landing:
    return Landing(name)


@pytest.fixture
def files(landing) -> Table:
    return landing.table("parquet")


@pytest.fixture
def reader(name) -> Table:
    return Table(
        name=f"silver.{name}",
        comment="the same",
        source=Delta(f"bronze.{name}"),
        schema="number BIGINT, _filename STRING, _index BIGINT",
    )


def numbers(*found: int) -> bytes:
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"number": pa.array(found, pa.int64())}), sink)
    return sink.getvalue().to_pybytes()


def held(table: Table | str) -> list[int]:
    return sorted(row["number"] for row in rows_of(table if isinstance(table, str) else table.name))


def is_append_only(table: Table) -> bool:
    stored = DeltaTable(str(settings().table_path(table.name)))
    return stored.metadata().configuration.get("delta.appendOnly") == "true"


def leaves_nothing_behind(table: Table) -> bool:
    return not any(place.exists() for place in shadow_table.places(table))


def test_a_table_of_files_is_made_anew_from_its_folder_and_each_new_file_still_comes_once(
    files, reader, landing, run_once, spark
):
    landing.drop("a.parquet", numbers(1, 2))
    landing.drop("b.parquet", numbers(3))
    landing.drop("bad.parquet", b"no parquet")
    run_once(files, reader)
    # Not read by its stream, but by a refresh.
    landing.drop("b.parquet", numbers(30, 31))
    landing.drop("bad.parquet", numbers(5))
    landing.drop("c.parquet", b"no parquet either")
    run_once(files)
    assert held(files) == [1, 2, 3]
    done = Backfills(spark, (files, reader)).run(files, as_a_whole=True)
    assert [(one.table, one.rows_before, one.rows_after) for one in done] == [(reader.name, 3, 5), (files.name, 3, 5)]
    assert held(files) == held(reader) == [1, 2, 5, 30, 31]
    assert landing.troubles() == [("c.parquet", "unreadable")]
    assert is_append_only(files) and leaves_nothing_behind(files)
    landing.drop("d.parquet", numbers(6))
    landing.drop("e.parquet", b"nor this")
    run_once(files, reader)
    assert held(files) == held(reader) == [1, 2, 5, 6, 30, 31]
    assert landing.troubles() == [("c.parquet", "unreadable"), ("e.parquet", "unreadable")]
    assert position.position_of(files.flow).generation == 2
    for table in (files, reader):
        verify.verify(table)


def test_rows_of_files_that_are_gone_are_kept_unless_the_table_file_says_otherwise(files, landing, run_once, spark):
    for number in (1, 2):
        landing.drop(f"{number}.parquet", numbers(number))
    run_once(files)
    (landing.folder / "1.parquet").unlink()
    tables = Catalog({files.name: files})
    with pytest.raises(UsageError) as refused:
        list(preview(files, tables, Slice()))
    assert str(refused.value) == (
        f"{files.name} cannot be refreshed: file '1.parquet' that it holds cannot be read in {landing.folder} any "
        f"more, and those rows would be gone; new data still flows: put back what is missing, or declare "
        f"reset_allowed=True to do without it"
    )
    with pytest.raises(UsageError, match="file '1.parquet' that it holds cannot be read"):
        Backfills(spark, (files,)).run(files, as_a_whole=True)
    assert held(files) == [1, 2] and is_append_only(files) and leaves_nothing_behind(files)
    landing.drop("3.parquet", numbers(3))
    run_once(files)
    assert held(files) == [1, 2, 3], "new data still flows"
    allowed = replace(files, reset_allowed=True)
    assert "will be gone" in "\n".join(preview(allowed, tables, Slice()))
    Backfills(spark, (allowed,)).run(allowed, as_a_whole=True)
    assert held(files) == [2, 3]
    verify.verify(allowed)


@pytest.fixture
def silver(name) -> Table:
    return Table(
        name=f"silver.{name}",
        comment="numbers",
        source=Delta(f"bronze.{name}"),
        schema="number INT, time TIMESTAMP, place BIGINT",
        transform="SELECT number, timestamp_seconds(number) AS time, place FROM source",
        expect=(Expect("is_small", "number < 1000"),),
    )


@pytest.fixture
def gold(name) -> Table:
    return Table(
        name=f"gold.{name}",
        comment="sums",
        source=Delta(f"silver.{name}"),
        schema="minute TIMESTAMP, total BIGINT",
        transform="SELECT minute, sum(number) AS total FROM source GROUP BY minute",
        write=Upsert(keys=("minute",), recompute=Bucket("minute", of="time", unit="minute")),
    )


def test_what_spark_cannot_go_on_from_is_made_anew_and_goes_on(silver, gold, name, append, run_once, spark):
    append(f"bronze.{name}", [{"number": number, "place": number} for number in (1, 2, 61, 5000)], SOURCE)
    run_once(silver, gold)
    today = replace(
        silver,
        schema="number BIGINT, time TIMESTAMP, day DATE",
        transform="SELECT 10L * number AS number, timestamp_seconds(number) time, DATE'2026-03-01' AS day FROM source",
        partition_by=("day",),
    )
    by_kind = replace(
        gold,
        schema="minute TIMESTAMP, is_even BOOLEAN, total BIGINT",
        transform="SELECT minute, number % 20 = 0 AS is_even, sum(number) AS total FROM source GROUP BY ALL",
        write=replace(gold.write, keys=("minute", "is_even")),
    )
    for table, error in ((today, "SCHEMA_CHANGED"), (by_kind, "CHECKPOINT_OF_ANOTHER_DEFINITION")):
        with pytest.raises(FlowBroken, match="--full") as refused:
            run_once(table)
        assert refused.value.error == error
    Backfills(spark, (today, by_kind)).run(today, as_a_whole=True)
    assert held(silver) == [10, 20, 610]
    assert held(silver.quarantine) == [50_000]
    append(f"bronze.{name}", [{"number": number, "place": number} for number in (3, 7000)], SOURCE)
    run_once(today, by_kind)
    assert held(silver) == [10, 20, 30, 610]
    assert held(silver.quarantine) == [50_000, 70_000]
    totals = {(row["minute"].minute, row["is_even"]): row["total"] for row in rows_of(gold.name)}
    assert totals == {(0, False): 40, (0, True): 20, (1, False): 610}
    assert DeltaTable(str(settings().table_path(silver.name))).metadata().partition_columns == ["day"]
    for table in (today, by_kind):
        verify.verify(table)
        assert leaves_nothing_behind(table)


@only_in_full_runs
def test_a_reader_of_its_changes_sees_all_of_it_go_and_come_and_keeps_other_columns_away(
    files, name, landing, run_once, spark
):
    files = replace(files, properties={"delta.enableChangeDataFeed": "true"})
    changes = Table(
        name=f"silver.{name}",
        comment="what happened",
        source=Delta(files.name, changes=True),
        schema="number BIGINT, _change_type STRING",
    )
    landing.drop("a.parquet", numbers(1))
    run_once(files, changes)
    landing.drop("a.parquet", numbers(10))
    Backfills(spark, (files, changes)).run(files, as_a_whole=True)
    landing.drop("b.parquet", numbers(2))
    run_once(files, changes)
    seen = sorted((row["number"], row["_change_type"]) for row in rows_of(changes.name))
    assert seen == [(1, "delete"), (1, "insert"), (2, "insert"), (10, "insert")]
    copy = Table(
        name=f"gold.{name}",
        comment="a copy",
        source=Delta(files.name),
        schema="number BIGINT",
        properties=files.properties,
    )
    feed = replace(changes, name=f"gold.{name}_feed", source=Delta(copy.name, changes=True))
    run_once(copy, feed)
    shorter = replace(copy, schema="_index BIGINT")
    with pytest.raises(UsageError, match=f"its columns are others now, and {feed.name} reads its changes"):
        Backfills(spark, (shorter, feed)).run(shorter, as_a_whole=True)
    run_once(copy, feed)
    for table in (files, changes, copy, feed):
        verify.verify(table)


@only_in_full_runs
def test_tables_below_stay_as_they_are_where_nobody_wants_them_to_follow(files, reader, landing, run_once, spark):
    landing.drop("a.parquet", numbers(1))
    run_once(files, reader)
    landing.drop("a.parquet", numbers(10))
    made = Backfills(spark, (files, reader))
    assert [one.table for one in made.run(files, as_a_whole=True, alone=True)] == [files.name]
    landing.drop("b.parquet", numbers(2))
    run_once(files, reader)
    assert (held(files), held(reader)) == ([2, 10], [1, 2])
    [found] = [one for one in stale_tables.list_all(made.engine) if one.table == reader.name]
    assert f"{files.name} was made again alone: backfill {reader.name}" in found.why
    made.run(reader, as_a_whole=True)
    assert held(reader) == [2, 10]
    assert [one for one in stale_tables.list_all(made.engine) if one.table == reader.name] == []


@only_in_full_runs
def test_one_job_at_a_time_makes_a_table_anew(files, landing, run_once, spark, monkeypatch):
    landing.drop("a.parquet", numbers(1))
    run_once(files)
    made = Backfills(spark, (files,))
    fill = shadow_table.fill

    def meanwhile(*given) -> None:
        monkeypatch.undo()
        with pytest.raises(LeaseHeld):
            made.run(files, as_a_whole=True)
        fill(*given)

    monkeypatch.setattr(shadow_table, "fill", meanwhile)
    made.run(files, as_a_whole=True)
    assert held(files) == [1]
    made.run(files, as_a_whole=True)
    verify.verify(files)


POINTS = {
    "it is filled": (shadow_table, "fill", "behind"),
    "its flows are stopped": (engine_backfill.backfills, "stop_readers", "behind"),
    "it has read on": (shadow_table, "read_to_end", "behind"),
    "a generation is begun": (shadow_swap, "_begin_generation", "behind"),
    "rows stand in the quarantine": (shadow_swap, "_add_to_quarantine", "behind"),
    "the table is to be replaced": (shadow_swap.table_rows, "coalesce_small", "before"),
    "the table is replaced": (shadow_swap, "finish_swap", "before"),
    "the quarantine is shortened": (shadow_swap, "_commit_seed", "before"),
    "its flow has its commit": (shadow_swap, "_commit_seed", "behind"),
    "it is settled": (shadow_swap, "finish_swap", "behind"),
    "its twin is gone": (engine_backfill.backfills, "finish", "before"),
}


@pytest.fixture
def kill(monkeypatch) -> Callable[[str], None]:
    """Whoever refreshes next dies there."""

    def at(point: str) -> None:
        module, name, when = POINTS[point]
        work = getattr(module, name)
        is_first = name != "read_to_end"

        def die(*given, **named):
            nonlocal is_first
            if when == "behind":
                made = work(*given, **named)
                if not is_first:
                    is_first = True
                    return made
            raise Killed

        monkeypatch.setattr(module, name, die)

    return at


@only_in_full_runs
@pytest.mark.parametrize("point", POINTS)
def test_whoever_is_killed_leaves_the_old_table_or_the_new_one_and_is_ended_by_the_next_try(
    files, reader, landing, run_once, spark, kill, monkeypatch, point
):
    landing.drop("a.parquet", numbers(1))
    landing.drop("bad.parquet", b"no parquet")
    run_once(files, reader)
    landing.drop("a.parquet", numbers(10))
    made = Backfills(spark, (files, reader))
    kill(point)
    with pytest.raises(Killed):
        made.run(files, as_a_whole=True)
    monkeypatch.undo()
    is_replaced = list(POINTS).index(point) >= list(POINTS).index("the table is replaced")
    assert held(files) == ([10] if is_replaced else [1]), "no reader sees a half"
    landing.drop("b.parquet", numbers(2))
    if point in ("the table is replaced", "the quarantine is shortened"):
        with pytest.raises(FlowFailed, match="a full refresh of its table is not done"):
            run_once(files)
    made.run(files, as_a_whole=True)
    run_once(files, reader)
    assert held(files) == held(reader) == [2, 10]
    assert landing.troubles() == [("bad.parquet", "unreadable")]
    assert is_append_only(files) and leaves_nothing_behind(files)
    for table in (files, reader):
        verify.verify(table)
    left = [one for one in backfills.newest(made.engine) if one.table in (files.name, reader.name)]
    assert all(one.phase == "done" and not one.readers for one in left)


@only_in_full_runs
def test_a_refresh_that_fails_leaves_everything_as_it_was_and_its_flow_goes_on(
    files, reader, landing, run_once, spark, monkeypatch
):
    landing.drop("a.parquet", numbers(1))
    run_once(files, reader)
    made = Backfills(spark, (files, reader))

    def fail(*_):
        raise Unreachable("the disk is away")

    for point in ("_begin_generation", "_stored"):
        with monkeypatch.context() as patched, pytest.raises(Unreachable, match="the disk is away"):
            patched.setattr(shadow_swap, point, fail)
            made.run(files, as_a_whole=True)
        landing.drop(f"after{point}.parquet", numbers(2))
        run_once(files, reader)
        assert position.position_of(files.flow).generation == 1
    assert held(files) == held(reader) == [1, 2, 2]
    for table in (files, reader):
        verify.verify(table)


@only_in_full_runs
def test_a_range_that_is_made_again_lets_the_flow_of_a_dead_refresh_go_on(
    silver, name, append, run_once, spark, kill, monkeypatch
):
    append(f"bronze.{name}", [{"number": 1, "place": 1}], SOURCE)
    run_once(silver)
    shorter = "SELECT number, timestamp_seconds(number) AS time FROM source"
    today = replace(silver, schema="number INT, time TIMESTAMP", transform=shorter, expect=())
    kill("a generation is begun")
    with pytest.raises(Killed):
        Backfills(spark, (today,)).run(today, as_a_whole=True)
    monkeypatch.undo()
    back = replace(silver, time_column="time")
    Backfills(spark, (back,)).run(back, 0, 60)
    append(f"bronze.{name}", [{"number": 2, "place": 2}], SOURCE)
    run_once(back)
    assert held(silver) == [1, 2]
    verify.verify(back)
