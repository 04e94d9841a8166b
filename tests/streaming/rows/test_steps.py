"""A table file can declare its transform as SQL, or spread it over temporary steps."""

import threading
from collections import Counter

from include.catalog import Catalog
from include.engine.rows.transform import apply
from include.lake import locations
from include.project.sources import inline_steps
from include.spec import Bucket, Delta, Expect, Flow, Table, Upsert
from tests.support.flows import rows_of

ROWS = [
    ("a", "2026-03-01 12:00:01", 60),
    ("a", "2026-03-01 12:00:02", 400),
    ("b", "2026-03-01 12:10:00", 80),
    ("b", None, 90),
]


def arrive(spark, name: str, *rows: tuple) -> None:
    frame = spark.createDataFrame(rows, "device STRING, time STRING, bpm INT")
    frame = frame.selectExpr("device", "CAST(time AS TIMESTAMP) AS time", "bpm")
    frame.coalesce(1).write.format("delta").mode("append").save(str(locations.table_path(f"bronze.{name}")))


def catalog_of(*tables: Table) -> Catalog:
    return Catalog(*inline_steps({table.name: table for table in tables}))


def double_bpm(rows):
    return rows.selectExpr("device", "time", "bpm * 2 AS twice")


def test_a_python_table_feeds_a_sql_table_and_that_a_python_table(spark, run_once, name):
    python_table = Flow(
        name=f"silver.{name}",
        comment="",
        source=Delta(f"bronze.{name}"),
        schema="device STRING, time TIMESTAMP, twice INT",
        transform=double_bpm,
        expect=(Expect("plausible", "twice < 500"),),
    )
    sql_table = Flow(
        name=f"silver.{name}_sql",
        comment="",
        source=Delta(python_table.name),
        schema="device STRING, label STRING, twice INT",
        transform="""
            -- A query like any other: {braces}, 'quotes' and a comment at its end.
            WITH named AS (SELECT device, concat(device, '; {', twice, '}') AS label, twice FROM SOURCE)
            SELECT * FROM named WHERE twice IS NOT NULL  -- the end
        """,
    )
    second_python_table = Flow(
        name=f"gold.{name}",
        comment="",
        source=Delta(sql_table.name),
        schema="device STRING, half INT",
        transform=lambda rows: rows.selectExpr("device", "CAST(twice / 2 AS INT) AS half"),
    )
    arrive(spark, name, *ROWS)
    run_once(python_table, sql_table, second_python_table)
    arrive(spark, name, ("c", "2026-03-01 12:00:00", 1))
    run_once(python_table, sql_table, second_python_table)
    labels = sorted(row["label"] for row in rows_of(sql_table.name))
    assert labels == ["a; {120}", "b; {160}", "b; {180}", "c; {2}"]
    assert sorted((row["device"], row["half"]) for row in rows_of(second_python_table.name)) == [
        ("a", 60),
        ("b", 80),
        ("b", 90),
        ("c", 1),
    ]


def test_sql_aggregates_what_is_recomputed(spark, run_once, name):
    table = Flow(
        name=f"gold.{name}",
        comment="",
        source=Delta(f"bronze.{name}"),
        schema="device STRING, hour TIMESTAMP, n BIGINT",
        transform="SELECT device, hour, count(*) AS n FROM source GROUP BY device, hour",
        write=Upsert(("device", "hour"), recompute=Bucket("hour", of="time", unit="hour")),
    )
    arrive(spark, name, *ROWS)
    run_once(table)
    arrive(spark, name, ("a", "2026-03-01 12:59:59", 70))
    run_once(table)
    counts = {(row["device"], row["hour"] and row["hour"].hour): row["n"] for row in rows_of(table.name)}
    assert counts == {("a", 12): 3, ("b", 12): 1, ("b", None): 1}


def test_queries_that_run_at_once_in_one_process_see_their_own_source(spark):
    results: dict[int, set] = {}

    def run(number: int) -> None:
        session = spark.newSession()
        rows = session.range(number, number + 1)
        values = [apply(rows, "SELECT id * 10 AS id FROM source").collect()[0].id for _ in range(10)]
        results[number] = {*values, len(session.catalog.listTables())}

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    # The query must not leave a temporary view either.
    assert results == {number: {10 * number, 0} for number in range(1, 5)}


def test_temporary_steps_are_done_by_their_readers_and_stored_nowhere(spark, run_once, name):
    first_step = Flow(
        name=f"silver.{name}_step",
        comment="",
        source=Delta(f"bronze.{name}"),
        schema="device STRING, time TIMESTAMP, twice INT",
        transform=double_bpm,
        temporary=True,
    )
    second_step = Flow(
        name=f"silver.{name}_further",
        comment="",
        source=Delta(first_step.name),
        schema="device STRING, time TIMESTAMP, four INT",
        transform="SELECT device, time, twice * 2 AS four FROM source WHERE twice < 500",
        temporary=True,
    )
    copy = Flow(name=f"silver.{name}", comment="", source=Delta(second_step.name), schema="device STRING, four INT")
    aggregate = Flow(
        name=f"gold.{name}",
        comment="",
        source=Delta(second_step.name),
        schema="hour TIMESTAMP, four BIGINT",
        transform="SELECT hour, sum(four) AS four FROM source GROUP BY hour",
        write=Upsert(("hour",), recompute=Bucket("hour", of="time", unit="hour")),
    )
    catalog = catalog_of(first_step, second_step, copy, aggregate)
    arrive(spark, name, *ROWS)
    run_once(*catalog.tables.values())
    arrive(spark, name, ("a", "2026-03-01 12:30:00", 1))
    run_once(*catalog.tables.values())
    assert Counter((row["device"], row["four"]) for row in rows_of(copy.name)) == Counter(
        [("a", 240), ("b", 320), ("b", 360), ("a", 4)]
    )
    sums = {row["hour"] and row["hour"].hour: row["four"] for row in rows_of(aggregate.name)}
    assert sums == {12: 240 + 320 + 4, None: 360}
    for temporary_table in (first_step, second_step):
        assert not locations.table_path(temporary_table.name).exists()
        assert not locations.checkpoints(temporary_table.name).exists()
