"""A rewind restores a table and its readers to a moment. Their flows then compute the undone rows again."""

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders
from include.control.jobs import rewinds, stale_rows, store
from include.control.jobs.rewinds import Rewind
from include.control.supervision import supervision
from include.delta.delta_log import DeltaLog
from include.engine.jobs import refresh as engine_refresh
from include.engine.jobs import rewind as engine_rewind
from include.errors import FlowBroken, UsageError
from include.lake import locations
from include.ledger import verify
from include.recovery import giving_up
from include.rules import Expect
from include.spec import Append, Bucket, Delta, Flow, Replace, Table, Upsert, Watermark
from tests.support.backfills import Backfills, Killed
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.rewinds import Rewinds, moment_of

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
def copy(name: str) -> Table:
    """A copy of silver, by appends."""
    return Flow(
        name=f"gold.{name}_copy", comment="as it is", source=Delta(f"silver.{name}"), schema="number INT, place BIGINT"
    )


@pytest.fixture
def view(name: str) -> Table:
    return Flow(
        name=f"gold.{name}_view",
        comment="the greatest",
        source=Delta(f"silver.{name}"),
        schema="most INT",
        transform="SELECT max(number) AS most FROM source",
        write=Replace(),
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


def test_what_a_wrong_transform_made_is_undone_and_made_again_by_the_mended_one(
    silver, gold, copy, bring, run_once, spark
):
    bring(1, 61, None)
    run_once(silver, gold, copy)
    moment = moment_of(copy)
    bring(2, 62, 130, 2000)
    bring(3)
    run_once(replace(silver, transform=times_ten), gold, copy)
    assert totals(gold)[1] == (61 + 620, 2)
    rewind = Rewinds(spark, silver, gold, copy).run(silver, moment)
    assert rewind.state == "done"
    # The tables are as they were at that moment, without later rows.
    assert contents(silver) == contents(copy) == [(0, 1), (1, 61)]
    assert totals(gold) == {0: (1, 1), 1: (61, 1)}
    assert {row["place"] for row in rows_of(silver.quarantine)} == {2}
    bring(63)
    run_once(silver, gold, copy)
    assert contents(silver) == contents(copy) == [(0, 1), (1, 61), (3, 2), (4, 62), (5, 130), (7, 3), (8, 63)]
    assert totals(gold) == {0: (6, 3), 1: (61 + 62 + 63, 3), 2: (130, 1)}
    assert {row["place"] for row in rows_of(silver.quarantine)} == {2, 6}
    for table in (silver, gold, copy):
        verify.verify(table)


PHASES = {
    "its flows have stopped": ("_replan", 0),
    "nothing is restored yet": ("_in_window", 0),
    "the source is restored": ("_in_window", 1),
    "all is restored": ("_begin_generations", 0),
    "one flow has its new generation": ("checkpoint.begin_next_generation", 1),
    "its views are to be refreshed": ("_refresh", 0),
    "it is to end": ("rewinds.finish", 0),
}


@pytest.mark.parametrize(
    "phase",
    [phase if phase == "the source is restored" else pytest.param(phase, marks=only_in_full_runs) for phase in PHASES],
)
def test_a_rewind_that_dies_is_ended_by_the_next_try_and_until_then_nobody_writes(
    silver, gold, view, bring, run_once, spark, monkeypatch, phase
):
    runner = Rewinds(spark, silver, gold, view)
    bring(1, 61, None)
    run_once(silver, gold)
    moment = moment_of(gold)
    bring(7, 2000)
    run_once(replace(silver, transform=times_ten), gold)
    refresh(runner, view)
    assert [row["most"] for row in rows_of(view.name)] == [70]
    function_path, call_count = PHASES[phase]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(f"include.engine.jobs.rewind.{function_path}", die_in(function_path, call_count))
        runner.run(silver, moment)
    [unfinished_rewind] = rewinds.unfinished(runner.engine, [gold.name])
    # The next try dies at the same point.
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(f"include.engine.jobs.rewind.{function_path}", die_in(function_path, 0))
        runner.complete(unfinished_rewind.number)
    # Nobody tries it again.
    monkeypatch.setattr(store, "AGAIN_SECONDS", 0)
    desired_state, decision = supervision.preview(runner.engine, "nobody's", [silver.flow])[silver.flow]
    assert (desired_state, decision.state, decision.error) == ("stopped", "BROKEN", "REWIND_UNFINISHED")
    with pytest.raises(
        FlowBroken, match=f"rewind {unfinished_rewind.number} of {silver.name} has begun and is not done"
    ):
        run_once(gold)
    with pytest.raises(UsageError, match="has begun and is not done"):
        engine_rewind.run(gold, runner.tables, moment, "a test", "", dry_run=False)
    assert runner.complete(unfinished_rewind.number).state == "done"
    assert runner.complete(unfinished_rewind.number).state == "done"
    assert orders.read(runner.engine, "", [silver.flow]).of[silver.flow].state == "running"
    assert (contents(silver), totals(gold)) == ([(0, 1), (1, 61)], {0: (1, 1), 1: (61, 1)})
    assert [row["most"] for row in rows_of(view.name)] == [61]
    bring(62)
    run_once(silver, gold)
    assert contents(silver) == [(0, 1), (1, 61), (3, 7), (5, 62)]
    assert totals(gold) == {0: (8, 2), 1: (61 + 62, 2)}
    for table in (silver, gold):
        verify.verify(table)


def die_in(function_path: str, call_count: int) -> Callable:
    """Return a replacement of the function, which raises Killed after `call_count` calls."""
    module, _, name = function_path.rpartition(".")
    owner = getattr(engine_rewind, module) if module else engine_rewind
    original, counter = getattr(owner, name), Counter()

    def die(*arguments):
        counter.update("x")
        if counter.total() > call_count:
            raise Killed
        return original(*arguments)

    return die


def refresh(runner: Rewinds, view: Table) -> None:
    with runner.worker() as worker:
        engine_refresh.refresh_view(worker, engine_refresh.RefreshRun.begin(f"run {uuid.uuid4()}", [view]), view)


@only_in_full_runs
@pytest.mark.parametrize("phase", ["the source is restored", "all is restored", "one flow has its new generation"])
def test_a_rewind_that_is_given_up_loses_and_doubles_nothing_and_the_same_again_ends_it(
    silver, gold, copy, bring, run_once, spark, monkeypatch, phase
):
    runner = Rewinds(spark, silver, gold, copy)
    bring(1, 61)
    run_once(silver, gold, copy)
    moment = moment_of(copy)
    bring(7)
    run_once(silver, gold, copy)
    function_path, call_count = PHASES[phase]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(f"include.engine.jobs.rewind.{function_path}", die_in(function_path, call_count))
        runner.run(silver, moment)
    [unfinished_rewind] = rewinds.unfinished(runner.engine, [gold.name])
    leftovers = giving_up.plan(runner.engine, runner.tables, f"rewind {unfinished_rewind.number}")
    giving_up.carry_out(
        runner.engine, runner.tables, f"rewind {unfinished_rewind.number}", leftovers.lines, "a test", None, "no way"
    )
    bring(62)
    run_once(silver)
    assert contents(silver) == [(0, 1), (1, 61), (2, 7), (3, 62)]
    verify.verify(silver)
    if phase == "the source is restored":
        # The readers hold rows that are undone upstream, and must not read them twice.
        for reader in (gold, copy):
            with pytest.raises(FlowBroken):
                run_once(reader)
        assert contents(copy) == [(0, 1), (1, 61), (2, 7)]
        assert {entry.table for entry in stale_rows.stale_ranges(runner.engine)} == {gold.name, copy.name}
        runner.run(silver, moment)
        run_once(silver)
    run_once(gold, copy)
    assert contents(silver) == contents(copy) == [(0, 1), (1, 61), (2, 7), (3, 62)]
    assert totals(gold) == {0: (8, 2), 1: (61 + 62, 2)}
    assert stale_rows.stale_ranges(runner.engine) == []
    for table in (silver, gold, copy):
        verify.verify(table)


@only_in_full_runs
def test_rewound_twice_and_compacted_in_between_each_row_is_there_once(silver, gold, bring, run_once, spark):
    runner = Rewinds(spark, silver, gold)
    bring(1)
    run_once(silver, gold)
    first_moment = moment_of(gold)
    bring(2)
    run_once(silver, gold)
    second_moment = moment_of(gold)
    bring(3)
    run_once(silver, gold)
    runner.run(silver, second_moment)
    assert contents(silver) == [(0, 1), (1, 2)]
    spark.sql(f"OPTIMIZE delta.`{locations.table_path(silver.name)}`")
    run_once(silver, gold)
    bring(4)
    run_once(silver, gold)
    assert totals(gold) == {0: (10, 4)}
    runner.run(silver, first_moment)
    assert (contents(silver), totals(gold)) == ([(0, 1)], {0: (1, 1)})
    run_once(silver, gold)
    assert totals(gold) == {0: (10, 4)}
    assert [number for _, number in contents(silver)] == [1, 2, 3, 4]
    for table in (silver, gold):
        verify.verify(table)


@only_in_full_runs
def test_rows_that_a_replay_put_back_are_in_the_quarantine_again(silver, bring, run_once, spark, replay):
    bring(1, 2000)
    run_once(silver)
    moment = moment_of(silver)
    new_silver = replace(silver, expect=(Expect("is_small", "number < 5000"),))
    bring(3000)
    run_once(silver)
    replay(new_silver)
    assert contents(silver) == [(0, 1), (1, 2000), (2, 3000)]
    runner = Rewinds(spark, silver)
    [step] = runner.plan(silver, moment).steps.values()
    assert any("are in the quarantine again" in line for line in step.undone)
    runner.run(silver, moment)
    assert (contents(silver), contents(silver.quarantine)) == ([(0, 1)], [(1, 2000)])
    run_once(silver)
    assert (contents(silver), contents(silver.quarantine)) == ([(0, 1)], [(1, 2000), (2, 3000)])
    replay(new_silver)
    assert (contents(silver), rows_of(silver.quarantine)) == ([(0, 1), (1, 2000), (2, 3000)], [])
    verify.verify(new_silver)


@only_in_full_runs
def test_a_flow_that_a_person_had_stopped_stays_stopped(silver, gold, bring, run_once, spark):
    runner = Rewinds(spark, silver, gold)
    bring(1)
    run_once(silver, gold)
    moment = moment_of(gold)
    bring(2)
    run_once(silver, gold)
    commands.execute(runner.engine, Command(Action.STOP, (gold.flow,), "a person", "a reason"))
    runner.run(silver, moment)
    flow_orders = orders.read(runner.engine, "", [silver.flow, gold.flow]).of
    assert (flow_orders[silver.flow].state, flow_orders[gold.flow].state) == ("running", "stopped")


def test_a_rewind_that_is_refused_touches_nothing(silver, bring, run_once, spark, name):
    runner = Rewinds(spark, silver)
    bring(1)
    run_once(silver)
    moment = moment_of(silver)
    bring(2)
    run_once(silver)
    path = locations.table_path(f"bronze.{name}")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE number = 1")
    version_before = DeltaLog(locations.table_path(silver.name)).newest
    with pytest.raises(UsageError, match="has replaced what would be read again"):
        runner.run(silver, moment)
    assert DeltaLog(locations.table_path(silver.name)).newest == version_before
    assert rewinds.unfinished(runner.engine, [silver.name]) == []


@only_in_full_runs
def test_what_vacuum_has_deleted_is_named_and_refused(silver, gold, bring, run_once, spark):
    runner = Rewinds(spark, silver, gold)
    bring(1)
    run_once(silver, gold)
    moment = moment_of(gold)
    bring(2)
    run_once(silver, gold)
    delete_removed_files(gold.name)
    [refusal] = runner.plan(silver, moment).refusals
    assert refusal.startswith(f"{gold.name}: VACUUM has deleted 1 files of version")
    # Silver would read these files of bronze again.
    spark.sql(f"OPTIMIZE delta.`{locations.table_path(silver.source.table)}`")
    delete_removed_files(silver.source.table)
    assert any("files of bronze" in line and "are deleted" in line for line in runner.plan(silver, moment).refusals)


def delete_removed_files(table: str) -> None:
    """Delete the removed files of a table, as VACUUM does after the retention."""
    log = DeltaLog(locations.table_path(table))
    for tombstone in log.state.tombstones:
        (log.table / tombstone.path).unlink()


@only_in_full_runs
def test_what_was_approved_is_done_or_nothing(silver, gold, bring, run_once, spark):
    runner = Rewinds(spark, silver, gold)
    bring(1)
    run_once(silver, gold)
    moment = moment_of(gold)
    bring(2)
    run_once(silver, gold)
    plan = runner.plan(silver, moment)
    changed_cut = {name: replace(part, version=part.version - 1) for name, part in plan.cut.items()}
    new_rewind = rewinds.plan(runner.engine, silver.name, moment, changed_cut, [], "a test", "a bug")
    with pytest.raises(UsageError, match="plan it again"):
        runner.complete(new_rewind.number)
    assert store.get(runner.engine, Rewind, new_rewind.number).state == "given up"
    with pytest.raises(UsageError, match="was given up"):
        engine_rewind.resume(new_rewind.number, runner.tables)
    assert totals(gold) == {0: (3, 2)}
    bring(3)
    run_once(silver, gold)
    assert totals(gold) == {0: (6, 3)}
    # The rewind also undoes the commits that came after its plan.
    new_rewind = rewinds.plan(runner.engine, silver.name, moment, plan.cut, [], "a test", "a bug")
    assert runner.complete(new_rewind.number).state == "done"
    assert totals(gold) == {0: (1, 1)}


@only_in_full_runs
def test_a_backfill_is_undone_with_all_that_followed_it(silver, gold, copy, bring, run_once, spark):
    silver = replace(silver, time_column="time")
    tables = (silver, gold, copy)
    bring(1, 61)
    run_once(*tables)
    moment = moment_of(copy)
    bring(2)
    new_silver = replace(silver, transform=times_ten)
    Backfills(spark, (new_silver, gold, copy)).run(new_silver, 0, 60)
    run_once(*tables)
    runner = Rewinds(spark, *tables)
    runner.run(silver, moment)
    assert contents(silver) == contents(copy) == [(0, 1), (1, 61)]
    run_once(*tables)
    assert contents(silver) == contents(copy) == [(0, 1), (1, 61), (2, 2)]
    assert totals(gold) == {0: (3, 2), 1: (61, 1)}
    assert [
        entry for entry in stale_rows.stale_ranges(runner.engine) if entry.table in (silver.name, gold.name, copy.name)
    ] == []
    for table in tables:
        verify.verify(table)


@only_in_full_runs
def test_what_is_late_is_judged_by_what_had_come_by_then(silver, bring, run_once, spark):
    silver = replace(silver, write=Append(unique=("place",), watermark=Watermark("time", minutes=1)))
    bring(100)
    run_once(silver)
    moment = moment_of(silver)
    bring(900)
    run_once(silver)
    bring(110)
    run_once(silver)
    assert contents(silver) == [(0, 100), (1, 900)]
    Rewinds(spark, silver).run(silver, moment)
    # The flow now reads both commits in one batch, so no row is late.
    run_once(silver)
    assert contents(silver) == [(0, 100), (1, 900), (2, 110)]
    verify.verify(silver)


@only_in_full_runs
def test_without_anything_to_undo_nothing_is_done(silver, bring, run_once, spark):
    bring(1)
    run_once(silver)
    runner = Rewinds(spark, silver)
    assert runner.plan(silver, "2999-01-01").steps == {}
    assert "nothing is to be undone" in runner.plan(silver, "2999-01-01").lines()[0]
