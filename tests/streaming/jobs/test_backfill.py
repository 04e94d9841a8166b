"""A backfill recomputes a range by today's code from what the flow has read, and all downstream tables with it."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from include.checkpoints import checkpoint_files
from include.checkpoints.offset_ranges import delta_position
from include.control.flows import orders
from include.control.jobs import stale_rows, store
from include.control.jobs.backfills import Backfill
from include.control.jobs.store import StoredJob
from include.control.store import database
from include.delta.delta_log import DeltaLog
from include.engine.batch import batch
from include.engine.checkpoints import definition
from include.engine.jobs import backfill as engine_backfill
from include.engine.jobs import backfill_rows, job_progress, replacement
from include.engine.stream.host import Host
from include.errors import FlowBroken, FlowFailed
from include.lake import locations
from include.ledger import verify
from include.progress import reported
from include.project.sources import CHANGE_FEED_PROPERTY
from include.rules import Expect, unique
from include.settings import settings
from include.spec import Append, Bucket, Delta, Flow, Table, Upsert
from tests.support.backfills import Backfills, Killed
from tests.support.commits import fail_commits
from tests.support.flows import declared, only_in_full_runs, rows_of
from tests.support.waiting import wait_until

SOURCE_SCHEMA = "number INT, place BIGINT"


def numbers(rows):
    return rows.selectExpr("number", "timestamp_seconds(number) AS time", "place")


def times_ten(rows):
    return rows.selectExpr("number * 10 AS number", "timestamp_seconds(number) AS time", "place")


def sums(rows):
    from pyspark.sql import functions as F

    return rows.groupBy("minute").agg(F.sum("number").alias("total"), F.count("*").alias("rows"))


@pytest.fixture
def silver(name: str) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="numbers",
        source=Delta(f"bronze.{name}"),
        schema="number INT, time TIMESTAMP, place BIGINT",
        transform=numbers,
        expect=(Expect("is_small", "number < 1000"),),
        time_column="time",
    )


@pytest.fixture
def gold(name: str) -> Table:
    return Flow(
        name=f"gold.{name}",
        comment="sums",
        source=Delta(f"silver.{name}"),
        schema="minute TIMESTAMP, total BIGINT, rows BIGINT",
        transform=sums,
        write=Upsert(keys=("minute",), recompute=Bucket("minute", of="time", unit="minute")),
    )


@pytest.fixture
def bring(append, name) -> Callable[..., None]:
    """Appends one commit to bronze: `bring(1, 2, 61)`."""
    counter = Counter()

    def write(*values: int | None) -> None:
        rows = [{"number": number, "place": counter.total() + index} for index, number in enumerate(values)]
        counter.update(rows=len(rows))
        append(f"bronze.{name}", rows, SOURCE_SCHEMA)

    return write


def contents(table: Table | str) -> list[tuple[int, int]]:
    """The place and number of each row, sorted."""
    name = table if isinstance(table, str) else table.name
    return sorted((row["place"], row["number"]) for row in rows_of(name))


def totals(table: Table) -> dict[int, tuple[int, int]]:
    """The total and the row count of each minute."""
    return {int(row["minute"].timestamp()) // 60: (row["total"], row["rows"]) for row in rows_of(table.name)}


def backfill_metadata(table: Table) -> dict:
    """The metadata of the newest backfill in the table's log."""
    log = DeltaLog(locations.table_path(table.name))
    return next(commit.metadata["backfill"] for commit in log.commits() if "backfill" in commit.metadata)


def is_stale(table: Table) -> bool:
    return any(entry.table == table.name for entry in stale_rows.stale_ranges(database.connect(settings().control_url)))


def desired_state(flow: Table) -> str:
    with database.transaction(database.connect(settings().control_url)) as connection:
        return orders.order(connection, flow.flow).state


def test_a_range_is_what_todays_code_makes_of_its_source_and_nothing_else_changes(silver, bring, run_once, spark):
    bring(1, 61, 119, 120, 1700, None)
    run_once(silver)
    # The silver flow has not read this commit yet.
    bring(2, 62)
    new_silver = replace(silver, transform=times_ten)
    [backfill] = Backfills(spark, (new_silver,)).run(new_silver, 60, 120)
    # 1190 is not small. A row without a time is in no range.
    assert contents(silver) == [(0, 1), (1, 610), (3, 120)]
    assert {row["place"] for row in rows_of(silver.quarantine)} == {2, 4, 5}
    assert (backfill.state, backfill.outcome["rows_before"], backfill.outcome["rows_after"]) == ("done", 2, 1)
    assert backfill_metadata(silver) == {
        "number": backfill.number,
        "key": backfill.key,
        "from": "1970-01-01T00:01:00.000000Z",
        "to": "1970-01-01T00:02:00.000000Z",
        "alone": False,
        "rows_before": 2,
        "position": {silver.flow: checkpoint_files.position_of(silver.flow).offset},
        "definitions": {silver.flow: definition.rows_fingerprint(new_silver)},
    }
    verify.verify(new_silver)
    run_once(new_silver)
    assert contents(silver) == [(0, 1), (1, 610), (3, 120), (6, 20), (7, 620)]
    verify.verify(new_silver)


def test_a_table_that_is_backfilled_twice_in_a_row_leaves_its_readers_in_balance(silver, gold, bring, run_once, spark):
    bring(1, 61, 121)
    run_once(silver, gold)
    runner = Backfills(spark, (silver, gold))
    runner.run(silver, 60, 120)
    runner.run(silver, 120, 180)
    verify.verify(gold)
    bring(62)
    run_once(silver, gold)
    assert totals(gold) == {0: (1, 1), 1: (123, 2), 2: (121, 1)}
    for table in (silver, gold):
        verify.verify(table)


@only_in_full_runs
def test_a_full_refresh_makes_all_rows_again_and_all_that_reads_them(silver, gold, bring, run_once, spark):
    # Neither table has a time column, so a range of it cannot be backfilled.
    plain = replace(silver, time_column=None)
    copy = replace(plain, name=f"{gold.name}_copy", source=Delta(silver.name), transform=None, expect=())
    bring(1, 61, 1700, None)
    bring(62)
    run_once(plain, gold, copy)
    new_silver = replace(plain, transform=times_ten)
    completed_backfills = Backfills(spark, (new_silver, gold, copy)).run(new_silver, as_a_whole=True)
    assert {backfill.table for backfill in completed_backfills} == {silver.name, gold.name, copy.name}
    assert contents(silver) == contents(copy) == [(0, 10), (1, 610), (4, 620)]
    assert {row["place"] for row in rows_of(silver.quarantine)} == {2, 3}
    assert totals(gold) == {0: (10, 1), 1: (1230, 2)}
    bring(3)
    run_once(new_silver, gold, copy)
    assert contents(silver) == contents(copy) == [(0, 10), (1, 610), (4, 620), (5, 30)]
    assert totals(gold) == {0: (40, 2), 1: (1230, 2)}
    for table in (new_silver, gold, copy):
        verify.verify(table)


def test_a_full_refresh_that_dies_half_way_leaves_the_old_table_in_service(silver, bring, run_once, spark, monkeypatch):
    bring(1, 61, 1700)
    run_once(silver)
    new_silver = replace(silver, transform=times_ten)

    def die(*_) -> None:
        raise Killed

    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(replacement, "replace_table", die)
        Backfills(spark, (new_silver,)).run(new_silver, as_a_whole=True)
    assert contents(silver) == [(0, 1), (1, 61)]
    Backfills(spark, (new_silver,)).run(new_silver, as_a_whole=True)
    assert contents(silver) == [(0, 10), (1, 610)]
    verify.verify(new_silver)


@only_in_full_runs
def test_a_range_that_is_made_again_twice_is_the_same(silver, bring, run_once, spark):
    bring(1, 61, 62, 120)
    bring(59, 63, 1900)
    run_once(silver)
    # The flow has not restarted since its definition got another column.
    new_silver = replace(silver, schema=f"{silver.schema}, half INT", transform=with_half)
    runner = Backfills(spark, (new_silver,))
    contents_before = contents(silver), contents(silver.quarantine)
    for _ in range(2):
        [backfill] = runner.run(new_silver, 0, 120)
        assert (backfill.outcome["rows_before"], backfill.outcome["rows_after"]) == (5, 5)
        assert (contents(silver), contents(silver.quarantine)) == contents_before
        assert Counter(row["half"] for row in rows_of(silver.name)) == Counter([0, 29, 30, 31, 31, None])
    verify.verify(new_silver)


def with_half(rows):
    return numbers(rows).selectExpr("*", "CAST(number / 2 AS INT) AS half")


class InjectedError(Exception):
    pass


def fail(*_arguments, **_options) -> None:
    raise InjectedError


@pytest.fixture
def stop_after(monkeypatch) -> Callable[[int], None]:
    """Lets `count` batches succeed, and lets the next one fail."""

    def allow(count: int) -> None:
        write, remaining_batches = batch.write, iter(range(count))

        def write_limited(*arguments):
            if next(remaining_batches, None) is None:
                raise InjectedError
            write(*arguments)

        monkeypatch.setattr(batch, "write", write_limited)

    return allow


@pytest.mark.parametrize("is_first", [True, False], ids=["in the snapshot", "in a version"])
def test_a_flow_that_stands_in_the_middle_of_a_version_loses_and_doubles_nothing(
    silver, bring, run_once, spark, stop_after, monkeypatch, is_first
):
    silver = replace(silver, source=replace(silver.source, max_files=1))
    if not is_first:
        bring(1)
        run_once(silver)
    path = str(locations.table_path(silver.source.table))
    rows = spark.createDataFrame([(60 + n, 100 + n) for n in range(8)], SOURCE_SCHEMA).repartition(4)
    rows.write.format("delta").mode("append").save(path)
    files = len(DeltaLog(locations.table_path(silver.source.table)).state.live)
    assert files >= 4
    stop_after(2)
    with pytest.raises(FlowFailed):
        run_once(silver)
    monkeypatch.undo()
    offset = checkpoint_files.position_of(silver.flow).offset
    assert offset["isStartingVersion"] is is_first and delta_position(offset)[1] >= 0
    contents_before = contents(silver)
    assert 0 < len(contents_before) < 8
    # The flow itself reads the other files of this version later.
    Backfills(spark, (silver,)).run(silver, 0, 600)
    assert contents(silver) == contents_before
    run_once(silver)
    assert Counter(contents(silver)) == Counter(
        [*([] if is_first else [(0, 1)]), *((100 + n, 60 + n) for n in range(8))]
    )
    verify.verify(silver)


def test_what_is_taken_between_the_making_and_the_window_is_in_the_range(
    silver, name, bring, append, run_once, spark, monkeypatch
):
    silver = declared(silver, source={"a": silver.source, "b": Delta(f"bronze.{name}_b")})
    first_flow, second_flow = silver.flows
    bring(1, 61)
    run_once(first_flow)
    compute_rows = replacement.compute_rows

    def compute_rows_slowly(*arguments):
        rows = compute_rows(*arguments)
        assert store.newest(database.connect(settings().control_url), Backfill, silver.name)[0].is_held
        for number in (62, 63):
            bring(number, 2, 1700)
            run_once(first_flow)
        # The second flow begins only now.
        append(f"bronze.{name}_b", [{"number": 64, "place": 10}], SOURCE_SCHEMA)
        run_once(second_flow)
        return rows

    monkeypatch.setattr(replacement, "compute_rows", compute_rows_slowly)
    new_silver = replace(silver, transform=times_ten)
    [backfill] = Backfills(spark, (new_silver,)).run(new_silver, 60, 120)
    assert contents(silver) == [(0, 1), (1, 610), (2, 620), (3, 2), (5, 630), (6, 2), (10, 640)]
    assert (backfill.outcome["rows_before"], backfill.outcome["rows_after"]) == (4, 4)
    verify.verify(new_silver)


@only_in_full_runs
def test_where_its_source_is_replaced_between_the_making_and_the_window_all_is_made_again(
    silver, gold, bring, run_once, spark, monkeypatch
):
    copy = replace(silver, name=gold.name, source=Delta(silver.name), transform=None, expect=())
    bring(1, 61)
    run_once(silver, copy)
    new_silver = replace(silver, transform=times_ten)
    runner, compute_rows = Backfills(spark, (new_silver, copy)), replacement.compute_rows

    def compute_rows_slowly(*arguments):
        monkeypatch.undo()
        rows = compute_rows(*arguments)
        runner.run(new_silver, 60, 120)
        return rows

    monkeypatch.setattr(replacement, "compute_rows", compute_rows_slowly)
    runner.run(copy, 0, 120)
    assert contents(copy) == contents(silver) == [(0, 1), (1, 610)]
    verify.verify(copy)


def test_rows_of_a_batch_that_has_not_happened_are_left_to_its_next_try(silver, bring, run_once, spark, monkeypatch):
    silver = replace(silver, expect=(Expect("is_even", "number % 2 = 0"),))
    bring(60, 61)
    run_once(silver)
    bring(62, 63)
    with monkeypatch.context() as patched, pytest.raises(FlowFailed):
        fail_commits(patched)
        run_once(silver)
    assert {row["place"] for row in rows_of(silver.quarantine)} == {1, 3}
    Backfills(spark, (silver,)).run(silver, 60, 120)
    run_once(silver)
    assert contents(silver) == [(0, 60), (2, 62)]
    assert contents(silver.quarantine) == [(1, 61), (3, 63)]
    verify.verify(silver)


def test_rows_that_broke_a_rule_that_is_gone_leave_the_quarantine_for_the_table(silver, bring, run_once, spark):
    silver = replace(silver, expect=(Expect("is_even", "number % 2 = 0"),))
    bring(60, 61, 121)
    run_once(silver)
    new_silver = replace(silver, expect=())
    Backfills(spark, (new_silver,)).run(new_silver, 60, 120)
    assert contents(new_silver) == [(0, 60), (1, 61)]
    assert contents(new_silver.quarantine) == [(2, 121)]
    verify.verify(new_silver)


def test_a_rule_that_fails_in_the_range_leaves_all_as_it_was(silver, bring, run_once, spark):
    bring(1, 61)
    run_once(silver)
    new_silver = replace(silver, transform=times_ten, expect=(Expect("is_tiny", "number < 60", otherwise="fail"),))
    with pytest.raises(FlowBroken, match=r"break 'is_tiny' \(1 rows\), and nothing of it was replaced"):
        Backfills(spark, (new_silver,)).run(new_silver, 60, 120)
    assert contents(silver) == [(0, 1), (1, 61)]


def test_of_rows_with_one_identity_the_range_keeps_one_that_is_stored_nowhere_else(silver, bring, run_once, spark):
    unique_write = Append(unique=("number",), first_by=("place",))
    silver = replace(silver, write=unique_write, expect=(*silver.expect, unique("place")))
    bring(61, 61, 62, 119)
    bring(61, 119, 180)
    run_once(silver)
    assert contents(silver) == [(0, 61), (2, 62), (3, 119), (6, 180)]
    runner = Backfills(spark, (silver,))
    runner.run(silver, 60, 120)
    assert contents(silver) == [(0, 61), (2, 62), (3, 119), (6, 180)]
    # The new transform turns 62 into 180, which is also stored outside the range.
    new_silver = replace(silver, transform=replace_62_by_180)
    [backfill] = Backfills(spark, (new_silver,)).run(new_silver, 60, 120)
    assert contents(silver) == [(0, 61), (3, 119), (6, 180)]
    assert (backfill.outcome["rows_before"], backfill.outcome["rows_after"]) == (3, 2)
    verify.verify(new_silver)


def replace_62_by_180(rows):
    return rows.selectExpr("IF(number = 62, 180, number) AS number", "timestamp_seconds(number) AS time", "place")


def test_an_aggregate_below_follows_and_what_was_wanted_of_its_flow_is_wanted_again(
    silver, gold, bring, run_once, spark
):
    bring(1, 2, 61, 120)
    run_once(silver, gold)
    # The gold flow has not read this commit yet.
    bring(62, 3)
    run_once(silver)
    new_silver = replace(silver, transform=times_ten)
    silver_backfill, gold_backfill = reversed(Backfills(spark, (new_silver, gold)).run(new_silver, 30, 90))
    assert (silver_backfill.table, gold_backfill.table) == (silver.name, gold.name)
    # The backfill of an aggregate covers whole buckets.
    assert [str(backfill.range) for backfill in (silver_backfill, gold_backfill)] == [
        "from 1970-01-01T00:00:30Z to 1970-01-01T00:01:30Z",
        "from 1970-01-01T00:00:00Z to 1970-01-01T00:02:00Z",
    ]
    assert totals(gold) == {0: (6, 3), 1: (1230, 2), 2: (120, 1)}
    assert desired_state(gold) == "running"
    bring(63, 4)
    run_once(new_silver, gold)
    assert totals(gold) == {0: (46, 4), 1: (1860, 3), 2: (120, 1)}
    assert checkpoint_files.position_of(gold.flow).generation == 2
    for table in (new_silver, gold):
        verify.verify(table)
    assert is_stale(gold) is False


@only_in_full_runs
def test_a_range_of_days_of_a_table_of_several_flows_is_made_of_what_each_has_read(
    silver, name, bring, append, run_once, spark
):
    day = 86_400
    bring(1, day, 2 * day)
    append(f"bronze.{name}_b", [{"number": day + n, "place": 10 + n} for n in range(3)], SOURCE_SCHEMA)
    sources = {"a": Delta(f"bronze.{name}"), "b": Delta(f"bronze.{name}_b")}
    schema = "number INT, place BIGINT, day DATE"
    days = declared(silver, source=sources, schema=schema, transform=by_day, time_column="day", expect=())
    run_once(*days.flows)
    # The second flow has not read this commit yet.
    append(f"bronze.{name}_b", [{"number": day + 5, "place": 15}], SOURCE_SCHEMA)
    contents_before = contents(days)
    new_table = replace(days, transform=next_numbers, expect=(Expect("is_not_11", "place <> 11"),))
    [backfill] = Backfills(spark, (new_table,)).run(new_table, day, 2 * day)
    assert contents(days) == sorted(
        (place, number + (place in (1, 10, 12))) for place, number in contents_before if place != 11
    )
    assert [(row["place"], row["_flow"]) for row in rows_of(days.quarantine)] == [(11, days.flows[1].flow)]
    assert (backfill.outcome["rows_before"], backfill.outcome["rows_after"]) == (4, 3)
    run_once(*new_table.flows)
    assert (15, day + 6) in contents(days)
    verify.verify(new_table)


def by_day(rows):
    return rows.selectExpr("number", "place", "to_date(timestamp_seconds(number)) AS day")


def next_numbers(rows):
    return by_day(rows).selectExpr("number + 1 AS number", "place", "day")


def test_a_bucket_whose_rows_are_all_gone_goes_too(silver, gold, bring, run_once, spark):
    bring(1, 61, 120)
    run_once(silver, gold)
    new_silver = replace(silver, expect=(Expect("is_small", "number < 60 OR number >= 120"),))
    Backfills(spark, (new_silver, gold)).run(new_silver, 60, 120)
    assert totals(gold) == {0: (1, 1), 2: (120, 1)}


def test_tables_below_that_cannot_follow_are_stale_and_their_flows_go_on(silver, name, bring, run_once, spark):
    copy = replace(
        silver, name=f"gold.{name}_copy", source=Delta(silver.name), transform=None, time_column=None, expect=()
    )
    copy_of_copy = replace(copy, name=f"gold.{name}_again", source=Delta(copy.name), time_column="time")
    copy_with_time = replace(copy, name=f"gold.{name}_follows", time_column="time")
    tables = (silver, copy, copy_of_copy, copy_with_time)
    bring(1, 61)
    run_once(*tables)
    new_silver = replace(silver, transform=times_ten)
    completed_backfills = Backfills(spark, (new_silver, *tables[1:])).run(new_silver, 60, 120)
    assert [backfill.table for backfill in completed_backfills] == [copy_with_time.name, silver.name]
    assert contents(copy_with_time) == [(0, 1), (1, 610)]
    engine = database.connect(settings().control_url)
    [stale_entry] = [
        entry
        for entry in stale_rows.stale_ranges(engine)
        if entry.table in (copy.name, copy_of_copy.name, copy_with_time.name)
    ]
    assert stale_entry.table == copy.name
    assert "no time_column says by which column a range of it is cut" in stale_entry.why
    bring(62)
    run_once(new_silver, *tables[1:])
    assert contents(copy) == [(0, 1), (1, 61), (2, 620)]
    assert contents(copy_with_time) == [(0, 1), (1, 610), (2, 620)]
    for table in (new_silver, *tables[1:]):
        verify.verify(table)
    new_copy = replace(copy, time_column="time")
    Backfills(spark, (new_silver, new_copy, copy_of_copy, copy_with_time)).run(new_copy, 0, 3600)
    assert contents(copy) == contents(copy_of_copy) == [(0, 1), (1, 610), (2, 620)]
    assert is_stale(copy) is False


@only_in_full_runs
def test_an_aggregate_without_buckets_is_made_as_a_whole(silver, name, bring, run_once, spark):
    aggregate = Flow(
        name=f"gold.{name}_whole",
        comment="all of it",
        source=Delta(silver.name),
        schema="is_even BOOLEAN, rows BIGINT",
        transform="SELECT number % 2 = 0 AS is_even, count(*) AS rows FROM source GROUP BY 1",
        write=Upsert(keys=("is_even",)),
    )
    bring(1, 61, 2)
    run_once(silver, aggregate)
    new_silver = replace(silver, transform=times_ten)
    Backfills(spark, (new_silver, aggregate)).run(new_silver, 0, 120)
    assert {row["is_even"]: row["rows"] for row in rows_of(aggregate.name)} == {True: 3}
    verify.verify(aggregate)


@only_in_full_runs
def test_a_reader_of_its_changes_is_shown_what_was_replaced_and_goes_on(silver, gold, bring, run_once, spark):
    silver = replace(silver, properties={CHANGE_FEED_PROPERTY: "true"})
    columns = "number INT, place BIGINT, _change_type STRING"
    changes = Flow(name=gold.name, comment="", source=Delta(silver.name, changes=True), schema=columns)
    bring(1, 61)
    run_once(silver, changes)
    new_silver = replace(silver, transform=times_ten)
    [backfill] = Backfills(spark, (new_silver, changes)).run(new_silver, 60, 120)
    assert backfill.table == silver.name
    run_once(changes)
    change_rows = [(row["number"], row["_change_type"]) for row in rows_of(changes.name)]
    assert Counter(change_rows) == Counter([(1, "insert"), (61, "insert"), (61, "delete"), (610, "insert")])
    assert checkpoint_files.position_of(changes.flow).generation == 1


@only_in_full_runs
def test_a_reader_that_does_not_read_to_the_end_ends_it_before_anything_is_replaced(
    silver, gold, bring, run_once, spark, monkeypatch
):
    bring(1)
    run_once(silver, gold)
    bring(61)
    run_once(silver)
    new_silver = replace(silver, transform=times_ten)
    with monkeypatch.context() as patched, pytest.raises(FlowFailed, match="it has not read silver.* to its end"):
        patched.setattr(Host, "run_once", lambda *_: None)
        Backfills(spark, (new_silver, gold)).run(new_silver, 60, 120)
    assert contents(silver) == [(0, 1), (1, 61)]
    assert (desired_state(gold), is_stale(gold)) == ("running", False)


PHASES_IN_FULL_RUNS = [
    pytest.param(phase, marks=only_in_full_runs)
    for phase in ("made", "stopped", "drained", "quarantined", "replaced", "below")
]


@pytest.fixture
def kill(monkeypatch) -> Callable[[str], None]:
    """Lets the next backfill die, or fail, after this point."""

    def die(*_arguments, **_options):
        raise Killed

    def die_after(work):
        def run_and_die(*arguments, **options):
            work(*arguments, **options)
            raise Killed

        return run_and_die

    points = {
        "made": (replacement, "compute_rows", die_after),
        "stopped": (engine_backfill.backfills, "stop_readers", die_after),
        "drained": (engine_backfill, "drain_readers", die_after),
        "quarantined": (replacement, "replace_quarantine", die_after),
        "replaced": (engine_backfill, "_finish", lambda _: die),
        "failed": (engine_backfill, "_finish", lambda _: fail),
        "below": (replacement.Aggregate, "prepare", lambda _: die),
    }

    def kill_at(phase: str) -> None:
        module, name, wrap = points[phase]
        monkeypatch.setattr(module, name, wrap(getattr(module, name)))

    return kill_at


@pytest.mark.parametrize("phase", ["failed", *PHASES_IN_FULL_RUNS])
def test_whoever_is_killed_leaves_what_the_next_try_ends(
    silver, gold, bring, run_once, spark, kill, monkeypatch, phase
):
    bring(1, 61, 119, 1700)
    run_once(silver, gold)
    new_silver = replace(silver, transform=times_ten)
    runner = Backfills(spark, (new_silver, gold))
    kill(phase)
    with pytest.raises(FlowFailed if phase == "failed" else Killed):
        runner.run(new_silver, 60, 120)
    monkeypatch.undo()
    old_contents, new_contents = [(0, 1), (1, 61), (2, 119)], [(0, 1), (1, 610)]
    assert contents(silver) == (new_contents if phase in ("replaced", "failed", "below") else old_contents), (
        "no reader sees a half"
    )
    # A running gold flow would fail at the replaced rows.
    assert desired_state(gold) == ("running" if phase in ("made", "below") else "stopped")
    # The silver flow continues in the meantime.
    bring(62)
    run_once(new_silver)
    runner.run(new_silver, 60, 120)
    assert contents(silver) == [*new_contents, (4, 620)]
    assert {row["place"] for row in rows_of(silver.quarantine)} == {2, 3}
    bring(2)
    run_once(new_silver, gold)
    assert totals(gold) == {0: (21, 2), 1: (1230, 2)}
    for table in (new_silver, gold):
        verify.verify(table)
    table_backfills = [
        backfill for backfill in store.newest(runner.engine, Backfill) if backfill.table in (silver.name, gold.name)
    ]
    assert all(backfill.state == "done" and not backfill.stopped for backfill in table_backfills)


@only_in_full_runs
@pytest.mark.parametrize("phase", [pytest.param("drained", marks=only_in_full_runs), "replaced"])
def test_another_backfill_of_the_table_lets_the_readers_of_a_dead_one_go_on(
    silver, gold, bring, run_once, spark, kill, monkeypatch, phase
):
    bring(1, 61)
    run_once(silver, gold)
    new_silver = replace(silver, transform=times_ten)
    runner = Backfills(spark, (new_silver, gold))
    kill(phase)
    with pytest.raises(Killed):
        runner.run(new_silver, 60, 120)
    monkeypatch.undo()
    runner.run(new_silver, 0, 60)
    assert contents(silver) == [(0, 10), (1, 610 if phase == "replaced" else 61)]
    # Gold does not contain the rows yet that the dead backfill has replaced.
    assert (desired_state(gold), is_stale(gold)) == ("running", phase == "replaced")
    bring(2)
    run_once(new_silver, gold)
    assert totals(gold) == {0: (30, 2), 1: (61, 1)}
    runner.run(new_silver, 60, 120)
    assert contents(silver) == [(0, 10), (1, 610), (2, 20)]
    assert totals(gold) == {0: (30, 2), 1: (610, 1)}
    assert is_stale(gold) is False


@pytest.fixture
def messages(monkeypatch) -> list[str]:
    """What jobs say of themselves while they work, which they do often here."""
    seen: list[str] = []

    def show(engine, job, message: str) -> None:
        shown(engine, job, message)
        seen.append(store.get(engine, StoredJob, job.number, job.kind).message)

    shown = store.show
    monkeypatch.setattr(store, "show", show)
    monkeypatch.setattr(job_progress, "reported", partial(reported, seconds=0.01))
    return seen


def test_a_backfill_says_how_many_tasks_are_done_while_it_makes_its_rows(
    spark, run_once, bring, silver, messages, monkeypatch
):
    counts = re.compile(rf"makes rows of {silver.source.table}: \d+ of [1-9]\d* tasks are done")

    def compute_rows(*arguments):
        def is_counted() -> bool:
            spark.range(0, 10**7, numPartitions=8).selectExpr("sum(hash(id))").collect()
            return any(map(counts.fullmatch, messages))

        wait_until(is_counted, 120, lambda: f"it says {set(messages)}")
        return backfill_rows.compute_rows(*arguments)

    monkeypatch.setattr(replacement, "compute_rows", compute_rows)
    bring(1, 2, 61)
    run_once(silver)
    [done] = Backfills(spark, (replace(silver, transform=times_ten),)).run(silver, 0, 60)
    assert (done.state, done.message) == ("done", "2 rows before, 2 after")


def test_a_full_refresh_from_the_source_says_what_it_has_not_read_yet(spark, run_once, bring, silver):
    bring(1)
    assert job_progress.unread(silver.flows) == "nothing read yet"
    run_once(silver)
    bring(2)
    bring(3)
    assert job_progress.unread(silver.flows) == "2 versions left"
