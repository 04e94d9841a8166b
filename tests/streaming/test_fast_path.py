"""Small batches take the fast path, and leave what Spark's own writers would have left."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from delta.exceptions import ConcurrentTransactionException
from deltalake import DeltaTable
from pyspark import TaskContext
from pyspark.sql import functions as F

from include.engine.batch import tuning
from include.engine.fast_path import aggregate, internals, path, source
from include.engine.fast_path.features import NotSupported
from include.engine.fast_path.transaction import Target
from include.engine.tables import create_table
from include.ledger import verify
from include.readers.delta_log import DeltaLog
from include.settings import settings
from include.spec import Append, Bucket, Delta, Expect, Table, Upsert, Watermark
from tests.support.commits import switch_fast_path
from tests.support.flows import only_in_full_runs, rows_of

SOURCE = "device STRING, time TIMESTAMP, bpm INT, weight DECIMAL(12,3), place BIGINT, tags ARRAY<STRING>"
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture(autouse=True)
def switched_on(monkeypatch) -> None:
    switch_fast_path(monkeypatch, True)


def readings(name: str, **changed) -> Table:
    declared = {
        "name": f"silver.{name}",
        "comment": "readings of a test",
        # A commit is a batch.
        "source": Delta(f"bronze.{name}", max_files=1),
        "schema": SOURCE,
        "write": Append(unique=("device", "time"), first_by=("place",)),
        "expect": (Expect("plausible", "bpm BETWEEN 20 AND 250"),),
    }
    return Table(**{**declared, **changed})


def per_minute(name: str) -> Table:
    def transform(rows):
        return rows.groupBy("device", "minute").agg(F.count("*").alias("readings"), F.sum("weight").alias("weight"))

    return Table(
        name=f"gold.{name}",
        comment="readings by minute",
        source=Delta(f"silver.{name}", max_files=1),
        schema="device STRING, minute TIMESTAMP, readings BIGINT, weight DECIMAL(22,3)",
        transform=transform,
        write=Upsert(keys=("device", "minute"), recompute=Bucket("minute", of="time", unit="minute")),
    )


@pytest.fixture
def arrive(append, name) -> Callable[..., None]:
    """Rows as (device, seconds after noon, bpm) that reach bronze in one commit, in this order."""
    places = iter(range(1_000_000))

    def add(*rows: tuple) -> None:
        made = [
            {
                "device": device,
                "time": None if seconds is None else NOON + timedelta(seconds=seconds),
                "bpm": bpm,
                "weight": Decimal("70.125"),
                "place": next(places),
                "tags": ["x", None],
            }
            for device, seconds, bpm in rows
        ]
        append(f"bronze.{name}", made, SOURCE)

    return add


def batches(table: str) -> list[bool]:
    """Of each batch of a table, oldest first, whether it took the fast path."""
    said = [commit.metadata for commit in DeltaLog(settings().table_path(table)).commits()]
    return [one["fast_path"] for one in reversed(said) if "batch" in one]


AWKWARD = [
    [("a", 1, 60), ("a", 1, 61), ("b", 1.5, 62), ("a", 2, 400), (None, 3, 63), ("c", None, 64)],
    [("a", 1, 99), ("a", 61, 65), ("b", 1.5, 66), ("ü", -1, 67), (None, 3, 68), ("c", None, 69)],
    [("d", 5, None), ("d", 6, 0)],
    [("a", 7200, 70), ("a", 30, 71), ("ü", -1, 72)],
    [("a", 59.999999, 73), ("a", 60, 74)],
]


@pytest.mark.parametrize(
    "write",
    [
        Append(unique=("device", "time"), first_by=("place",)),
        pytest.param(
            Append(unique=("device",), first_by=("place",), watermark=Watermark("time", minutes=1)),
            marks=only_in_full_runs,
        ),
        Append(unique=("device",), first_by=("place",), watermark=Watermark("time", minutes=1, late="drop")),
        pytest.param(Append(), marks=only_in_full_runs),
    ],
    ids=["identity with a time", "within a watermark", "late rows dropped", "no identity"],
)
def test_both_paths_leave_the_same_rows_and_the_same_stamps(arrive, run_once, spark, name, append, monkeypatch, write):
    for rows in AWKWARD:
        arrive(*rows)
    found, said = [], []
    for ours in (readings(name, write=write), readings(f"{name}w", source=Delta(f"bronze.{name}", max_files=1))):
        ours = replace(ours, write=write)
        gold = per_minute(ours.name.removeprefix("silver."))
        with monkeypatch.context() as patched:
            if found:
                patched.setattr(path, "of", lambda spark, table: None)
            run_once(ours, gold)
        assert set(batches(ours.name)) | set(batches(gold.name)) == {not found}
        columns = ("device", "time", "bpm", "weight", "place", "tags")
        rows = [tuple(map(str, (row[column] for column in columns))) for row in rows_of(ours.name)]
        broken = [
            (*map(str, (row[c] for c in columns)), *row["_rules"], row["_batch"]) for row in rows_of(ours.quarantine)
        ]
        made = [tuple(map(str, row.values())) for row in rows_of(gold.name)]
        found.append((Counter(rows), Counter(broken), Counter(made)))
        commits = [commit.metadata for commit in DeltaLog(settings().table_path(ours.name)).commits()]
        said.append([(one["rows"], one["newest"], one["source_to"]) for one in commits if "batch" in one])
    assert found[0] == found[1]
    assert found[0][0].total() > 3
    assert said[0] == said[1]


def running(name: str) -> Table:
    """Readings of each device, and of all devices up to it: a new one changes the rows behind it."""

    def transform(rows):
        devices = rows.groupBy("device").agg(F.count("*").alias("readings"), F.sum("weight").alias("weight"))
        return devices.selectExpr("*", "sum(readings) OVER (ORDER BY device NULLS FIRST) AS so_far")

    return Table(
        name=f"gold.{name}",
        comment="readings so far",
        source=Delta(f"silver.{name}", max_files=1),
        schema="device STRING, readings BIGINT, weight DECIMAL(22,3), so_far BIGINT",
        transform=transform,
        write=Upsert(keys=("device",)),
    )


def test_an_aggregate_without_buckets_is_the_same_by_both_paths_and_rewrites_only_what_changed(
    arrive, run_once, name, monkeypatch
):
    silver = readings(name, write=Append(), expect=())
    by_spark = replace(running(name), name=f"gold.{name}w")
    for rows in (AWKWARD[0], AWKWARD[1], AWKWARD[3]):
        arrive(*rows)
        run_once(silver, running(name))
        with monkeypatch.context() as patched:
            patched.setattr(path, "of", lambda spark, table: None)
            run_once(by_spark)
        ours, theirs = (
            Counter(tuple(map(str, row.values())) for row in rows_of(table.name)) for table in (running(name), by_spark)
        )
        assert ours == theirs
    assert (set(batches(f"gold.{name}")), set(batches(by_spark.name))) == ({True}, {False})
    before = {file.path for file in DeltaLog(settings().table_path(f"gold.{name}")).state.live}
    # Behind all others, so that no row before it changes.
    arrive(("ÿ", 9, 70))
    run_once(silver, running(name))
    assert before < {file.path for file in DeltaLog(settings().table_path(f"gold.{name}")).state.live}
    assert verify.verify(running(name)).batches == 4


def test_an_aggregate_without_buckets_of_a_large_source_is_left_to_spark(arrive, run_once, name, monkeypatch):
    monkeypatch.setattr(aggregate, "MOST_SOURCE_ROWS", 2)
    arrive(("a", 1, 60), ("b", 2, 61))
    run_once(readings(name), running(name))
    arrive(("a", 3, 62))
    run_once(readings(name), running(name))
    assert batches(f"gold.{name}") == [True, False]
    assert sorted((row["device"], row["so_far"]) for row in rows_of(f"gold.{name}")) == [("a", 2), ("b", 3)]


def test_a_bucket_is_whole_though_its_rows_lie_between_files_that_hold_none_of_it(arrive, run_once, name):
    for number in range(6):
        # By their statistics, which end at whole milliseconds, the files of the earlier bucket may hold its rows too.
        arrive(("a", 60 + number, 60))
        arrive(("a", 59.9999 + number / 1e5, 61))
    run_once(readings(name), per_minute(name))
    assert set(batches(f"gold.{name}")) == {True}
    assert sorted(row["readings"] for row in rows_of(f"gold.{name}")) == [6, 6]


def test_a_table_stays_plain_for_every_reader(arrive, run_once, spark, name):
    arrive(("a", 1, 60), ("b", 90.0005, 61))
    arrive(("a", 7200, 62))
    run_once(readings(name), per_minute(name))
    for table, column in ((f"silver.{name}", "time"), (f"gold.{name}", "minute")):
        where = settings().table_path(table)
        assert (where / "_delta_log" / f"{DeltaTable(str(where)).version():020}.crc").exists()
        stored = spark.read.format("delta").load(str(where))
        by_arrow = rows_of(table)
        assert stored.count() == len(by_arrow)
        # By its statistics a file is skipped, and none is that holds a row which is asked for.
        for row in by_arrow:
            asked = stored.filter(F.col(column) == F.lit(row[column]))
            assert asked.count() >= 1
        after = stored.filter(F.col(column) > F.lit(NOON + timedelta(hours=1)))
        assert len(after.inputFiles()) < len(stored.inputFiles()) or len(stored.inputFiles()) == 1


def test_a_table_that_gains_a_feature_is_written_by_spark_from_the_next_batch_on(arrive, run_once, spark, name):
    silver = readings(name)
    arrive(("a", 1, 60))
    run_once(silver)
    spark.sql(f"ALTER TABLE silver.{name} ADD CONSTRAINT sound CHECK (place >= 0)")
    arrive(("a", 1, 61), ("a", 2, 62), ("a", 3, 400))
    run_once(silver)
    assert batches(silver.name) == [True, False]
    spark.sql(f"ALTER TABLE silver.{name} DROP CONSTRAINT sound")
    arrive(("a", 2, 63), ("a", 4, 64))
    run_once(silver)
    assert batches(silver.name) == [True, False, True]
    assert sorted(row["bpm"] for row in rows_of(silver.name)) == [60, 62, 64]
    assert [row["bpm"] for row in rows_of(silver.quarantine)] == [400]


def test_a_flow_crosses_to_spark_and_back_with_the_size_of_its_batches(arrive, run_once, name, monkeypatch):
    monkeypatch.setattr(path, "MOST_ROWS", 3)
    monkeypatch.setattr(aggregate, "MOST_SOURCE_ROWS", 3)
    silver, gold = readings(name), per_minute(name)
    for rows in ([("a", 1, 60)], [("a", 1, 61), *[("a", n, 62) for n in range(2, 8)]], [("a", 2, 63), ("a", 69, 64)]):
        arrive(*rows)
    run_once(silver, gold)
    assert batches(silver.name) == [True, False, True]
    # It begins with a snapshot, in which the first minute is whole.
    assert batches(gold.name) == [False, False, True]
    assert sorted(row["bpm"] for row in rows_of(silver.name)) == [60, *[62] * 6, 64]
    assert sorted(row["readings"] for row in rows_of(gold.name)) == [1, 7]
    assert verify.verify(silver).batches == 3


def test_a_flow_whose_batches_are_large_from_the_first_on_finds_out_how_long_its_rows_are(
    arrive, run_once, name, monkeypatch
):
    monkeypatch.setattr(path, "MOST_BYTES", 10 * path.BYTES_PER_ROW)
    # Nor do the files of its source tell.
    monkeypatch.setattr(path, "BYTES_PER_STORED_BYTE", 10_000)
    silver = readings(name)
    for batch in range(4):
        arrive(*[("a", 40 * batch + n, 60) for n in range(30)])
    run_once(silver)
    assert batches(silver.name) == [False, False, True, True]
    assert len(rows_of(silver.name)) == 120
    assert verify.verify(silver).batches == 4


def test_a_large_batch_behind_small_ones_is_computed_by_generated_code(arrive, run_once, name, monkeypatch):
    monkeypatch.setattr(path, "MOST_ROWS", 3)
    silver, is_generated, tune = readings(name), [], tuning.tune
    # A task has the settings that its thread has, too, and those may be of the batch before.
    of_task = F.udf(lambda: TaskContext.get().getLocalProperty("spark.sql.codegen.factoryMode"))

    def note(session, expected_rows):
        tune(session, expected_rows)
        is_generated.append(session.range(1).select(of_task()).first()[0] != "NO_CODEGEN")

    monkeypatch.setattr(tuning, "tune", note)
    for rows in ([("a", 1, 60)], [("a", n, 62) for n in range(2, 8)], [("a", 9, 64)]):
        arrive(*rows)
    run_once(silver)
    assert batches(silver.name) == [True, False, True]
    assert is_generated == [False, True, False]


def test_an_optimize_and_a_restore_by_hand_between_two_batches_lose_and_double_nothing(
    arrive, run_once, spark, name, monkeypatch
):
    silver = readings(name)
    arrive(("a", 1, 60))
    arrive(("a", 2, 61))
    run_once(silver)
    spark.sql(f"OPTIMIZE silver.{name}")
    arrive(("a", 1, 62), ("a", 3, 63))
    run_once(silver)
    assert sorted(row["bpm"] for row in rows_of(silver.name)) == [60, 61, 63]


def test_what_is_known_of_a_table_is_forgotten_when_somebody_else_commits_to_it(
    arrive, run_once, spark, name, append, monkeypatch
):
    silver = readings(name)
    arrive(("a", 1, 60))
    run_once(silver)
    arrive(("a", 2, 61))
    arrive(("a", 3, 62))
    appended = path.Appender._commit

    def interfere(self, transaction_, file, stamp, reads):
        appended(self, transaction_, file, stamp, reads)
        if stamp.batch == 1:
            # The row of the next batch, by hand.
            row = {"device": "a", "time": NOON + timedelta(seconds=3), "bpm": 99, "weight": None, "place": 7}
            append(silver.name, [{**row, "tags": None}], SOURCE)

    monkeypatch.setattr(path.Appender, "_commit", interfere)
    run_once(silver)
    assert sorted(row["bpm"] for row in rows_of(silver.name)) == [60, 61, 99]


def test_a_batch_without_new_commits_reads_nothing(name):
    offset = {"reservoirVersion": 3, "index": -1, "isStartingVersion": False}
    assert source.Source(per_minute(name)).between(offset, offset) == source.PlannedRead(0)


def test_of_two_drivers_that_write_one_batch_the_second_is_refused(spark, name):
    table = readings(name)
    create_table.create(spark, table)
    one, other = Target(spark, table.name), Target(spark, table.name)
    first, second = one.begin(), other.begin()
    first.append([], "{}", ("flow/1", 0), 0, reads=False)
    with pytest.raises(ConcurrentTransactionException):
        second.append([], "{}", ("flow/1", 0), 0, reads=False)
    assert other.begin().last_batch("flow/1") == one.begin().last_batch("flow/1") == 0
    assert one.begin().last_batch("flow/2") == -1


def test_delta_s_internals_are_as_the_fast_path_expects_them(spark):
    assert internals.unexpected(spark) is None


def test_with_another_delta_all_batches_are_written_by_spark(arrive, run_once, name, monkeypatch, capsys):
    monkeypatch.setitem(internals.EXPECTED, "org.apache.spark.sql.delta.Snapshot", {"moved": ()})
    arrive(("a", 1, 60))
    run_once(readings(name))
    assert batches(f"silver.{name}") == [False]
    assert "Snapshot.moved() is missing" in capsys.readouterr().err


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')",
        "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableRowTracking' = 'true')",
        "ALTER TABLE {t} ADD CONSTRAINT sound CHECK (place >= 0)",
        "CREATE OR REPLACE TABLE {t} (device STRING, day DATE) USING delta PARTITIONED BY (day)",
        "CREATE OR REPLACE TABLE {t} (device STRING NOT NULL) USING delta",
        "CREATE OR REPLACE TABLE {t} (n INT, m INT GENERATED ALWAYS AS (n + 1)) USING delta",
    ],
)
def test_a_table_the_fast_path_does_not_know_is_refused(spark, name, statement):
    create_table.create(spark, readings(name))
    spark.sql(statement.format(t=f"silver.{name}"))
    with pytest.raises(NotSupported):
        Target(spark, f"silver.{name}").begin()
