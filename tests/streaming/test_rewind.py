"""A table and all that is made of it go back to a moment together, and make again exactly what was undone."""

import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from include.control import commands, orders
from include.control.commands import Action, Command
from include.control.jobs import rewinds, stale_tables
from include.control.supervision import supervision
from include.engine.jobs import refresh as engine_refresh
from include.engine.jobs import rewind as engine_rewind
from include.errors import FlowBroken, UsageError
from include.ledger import verify
from include.readers.delta_log import DeltaLog
from include.recovery import giving_up
from include.rules import Expect
from include.settings import settings
from include.spec import Append, Bucket, Delta, Replace, Table, Upsert, Watermark
from tests.support.backfills import Backfills, Killed
from tests.support.flows import only_in_full_runs, rows_of
from tests.support.rewinds import Rewinds, moment_of

SOURCE = "number INT, place BIGINT"


def numbers(rows):
    return rows.selectExpr("number", "timestamp_seconds(number) AS time", "place")


def wrong(rows):
    return rows.selectExpr("number * 10 AS number", "timestamp_seconds(number) AS time", "place")


def sums(rows):
    from pyspark.sql import functions as F

    return rows.groupBy("minute").agg(F.sum("number").alias("total"), F.count("*").alias("rows"))


@pytest.fixture
def silver(name: str) -> Table:
    return Table(
        name=f"silver.{name}",
        comment="numbers",
        source=Delta(f"bronze.{name}"),
        schema="number INT, time TIMESTAMP, place BIGINT",
        transform=numbers,
        expect=(Expect("is_small", "number < 1000"),),
    )


@pytest.fixture
def gold(name: str) -> Table:
    return Table(
        name=f"gold.{name}",
        comment="sums",
        source=Delta(f"silver.{name}"),
        schema="minute TIMESTAMP, total BIGINT, rows BIGINT",
        transform=sums,
        write=Upsert(keys=("minute",), recompute=Bucket("minute", of="time", unit="minute")),
    )


@pytest.fixture
def copy(name: str) -> Table:
    """Appends of silver, once more."""
    return Table(
        name=f"gold.{name}_copy", comment="as it is", source=Delta(f"silver.{name}"), schema="number INT, place BIGINT"
    )


@pytest.fixture
def view(name: str) -> Table:
    return Table(
        name=f"gold.{name}_view",
        comment="the greatest",
        source=Delta(f"silver.{name}"),
        schema="most INT",
        transform="SELECT max(number) AS most FROM source",
        write=Replace(),
    )


@pytest.fixture
def bring(append, name) -> Callable[..., None]:
    """One more commit of bronze: `bring(1, 2, 61)`."""
    brought = Counter()

    def write(*found: int | None) -> None:
        rows = [{"number": number, "place": brought.total() + n} for n, number in enumerate(found)]
        brought.update(rows=len(rows))
        append(f"bronze.{name}", rows, SOURCE)

    return write


def held(table: Table | str) -> list[tuple[int, int]]:
    """Place and number of each row."""
    name = table if isinstance(table, str) else table.name
    return sorted((row["place"], row["number"]) for row in rows_of(name))


def totals(table: Table) -> dict[int, tuple[int, int]]:
    """By minute, their sum and how many there were."""
    return {int(row["minute"].timestamp()) // 60: (row["total"], row["rows"]) for row in rows_of(table.name)}


def test_what_a_wrong_transform_made_is_undone_and_made_again_by_the_mended_one(
    silver, gold, copy, bring, run_once, spark
):
    bring(1, 61, None)
    run_once(silver, gold, copy)
    moment = moment_of(copy)
    bring(2, 62, 130, 2000)
    bring(3)
    run_once(replace(silver, transform=wrong), gold, copy)
    assert totals(gold)[1] == (61 + 620, 2)
    done = Rewinds(spark, silver, gold, copy).run(silver, moment)
    assert done.phase == "done"
    # As it was at that moment, with nothing of what came later.
    assert held(silver) == held(copy) == [(0, 1), (1, 61)]
    assert totals(gold) == {0: (1, 1), 1: (61, 1)}
    assert {row["place"] for row in rows_of(silver.quarantine)} == {2}
    bring(63)
    run_once(silver, gold, copy)
    assert held(silver) == held(copy) == [(0, 1), (1, 61), (3, 2), (4, 62), (5, 130), (7, 3), (8, 63)]
    assert totals(gold) == {0: (6, 3), 1: (61 + 62 + 63, 3), 2: (130, 1)}
    assert {row["place"] for row in rows_of(silver.quarantine)} == {2, 6}
    for table in (silver, gold, copy):
        verify.verify(table)


PHASES = {
    "its flows have stopped": ("_replan", 0),
    "nothing is put back yet": ("_in_window", 0),
    "the source is put back": ("_in_window", 1),
    "all is put back": ("_begin_generations", 0),
    "one flow has its new generation": ("checkpoint.begin_next_generation", 1),
    "its views are to be refreshed": ("_refresh", 0),
    "it is to end": ("rewinds.finish", 0),
}


@pytest.mark.parametrize(
    "phase", [one if one == "the source is put back" else pytest.param(one, marks=only_in_full_runs) for one in PHASES]
)
def test_a_rewind_that_dies_is_ended_by_the_next_try_and_until_then_nobody_writes(
    silver, gold, view, bring, run_once, spark, monkeypatch, phase
):
    house = Rewinds(spark, silver, gold, view)
    bring(1, 61, None)
    run_once(silver, gold)
    moment = moment_of(gold)
    bring(7, 2000)
    run_once(replace(silver, transform=wrong), gold)
    refresh(house, view)
    assert [row["most"] for row in rows_of(view.name)] == [70]
    where, times = PHASES[phase]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(f"include.engine.jobs.rewind.{where}", dies_at(where, times))
        house.run(silver, moment)
    [left] = rewinds.unfinished(house.engine, [gold.name])
    # The next try dies there, too.
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(f"include.engine.jobs.rewind.{where}", dies_at(where, 0))
        house.end(left.number)
    wanted, decision = supervision.preview(house.engine, "nobody's", [silver.flow])[silver.flow]
    assert (wanted, decision.state, decision.error) == ("stopped", "BROKEN", "REWIND_UNFINISHED")
    with pytest.raises(FlowBroken, match=f"rewind {left.number} of {silver.name} has begun and is not done"):
        run_once(gold)
    with pytest.raises(UsageError, match="has begun and is not done"):
        engine_rewind.run(gold, house.tables, moment, "a test", "", dry_run=False)
    assert house.end(left.number).phase == "done"
    assert house.end(left.number).phase == "done"
    assert orders.read(house.engine, "", [silver.flow]).of[silver.flow].state == "running"
    assert (held(silver), totals(gold)) == ([(0, 1), (1, 61)], {0: (1, 1), 1: (61, 1)})
    assert [row["most"] for row in rows_of(view.name)] == [61]
    bring(62)
    run_once(silver, gold)
    assert held(silver) == [(0, 1), (1, 61), (3, 7), (5, 62)]
    assert totals(gold) == {0: (8, 2), 1: (61 + 62, 2)}
    for table in (silver, gold):
        verify.verify(table)


def dies_at(where: str, times: int) -> Callable:
    """The function of that name, which kills at the call after so many."""
    module, _, name = where.rpartition(".")
    owner = getattr(engine_rewind, module) if module else engine_rewind
    real, calls = getattr(owner, name), Counter()

    def die(*arguments):
        calls.update("x")
        if calls.total() > times:
            raise Killed
        return real(*arguments)

    return die


def refresh(house: Rewinds, view: Table) -> None:
    with house.worker() as own:
        engine_refresh.refresh_remaining(own, engine_refresh.RefreshRun.begin(f"run {uuid.uuid4()}", [view]))


@only_in_full_runs
@pytest.mark.parametrize("phase", ["the source is put back", "all is put back", "one flow has its new generation"])
def test_a_rewind_that_is_given_up_loses_and_doubles_nothing_and_the_same_again_ends_it(
    silver, gold, copy, bring, run_once, spark, monkeypatch, phase
):
    house = Rewinds(spark, silver, gold, copy)
    bring(1, 61)
    run_once(silver, gold, copy)
    moment = moment_of(copy)
    bring(7)
    run_once(silver, gold, copy)
    where, times = PHASES[phase]
    with monkeypatch.context() as patched, pytest.raises(Killed):
        patched.setattr(f"include.engine.jobs.rewind.{where}", dies_at(where, times))
        house.run(silver, moment)
    [left] = rewinds.unfinished(house.engine, [gold.name])
    found = giving_up.plan(house.engine, house.tables, f"rewind {left.number}")
    giving_up.carry_out(house.engine, house.tables, f"rewind {left.number}", found.lines, "a test", "no way")
    bring(62)
    run_once(silver)
    assert held(silver) == [(0, 1), (1, 61), (2, 7), (3, 62)]
    verify.verify(silver)
    if phase == "the source is put back":
        # They hold what was undone above them, and must not read it twice.
        for reader in (gold, copy):
            with pytest.raises(FlowBroken):
                run_once(reader)
        assert held(copy) == [(0, 1), (1, 61), (2, 7)]
        assert {one.table for one in stale_tables.list_all(house.engine)} == {gold.name, copy.name}
        house.run(silver, moment)
        run_once(silver)
    run_once(gold, copy)
    assert held(silver) == held(copy) == [(0, 1), (1, 61), (2, 7), (3, 62)]
    assert totals(gold) == {0: (8, 2), 1: (61 + 62, 2)}
    assert stale_tables.list_all(house.engine) == []
    for table in (silver, gold, copy):
        verify.verify(table)


def test_rewound_twice_and_compacted_in_between_each_row_is_there_once(silver, gold, bring, run_once, spark):
    house = Rewinds(spark, silver, gold)
    bring(1)
    run_once(silver, gold)
    first = moment_of(gold)
    bring(2)
    run_once(silver, gold)
    second = moment_of(gold)
    bring(3)
    run_once(silver, gold)
    house.run(silver, second)
    assert held(silver) == [(0, 1), (1, 2)]
    spark.sql(f"OPTIMIZE delta.`{settings().table_path(silver.name)}`")
    run_once(silver, gold)
    bring(4)
    run_once(silver, gold)
    assert totals(gold) == {0: (10, 4)}
    house.run(silver, first)
    assert (held(silver), totals(gold)) == ([(0, 1)], {0: (1, 1)})
    run_once(silver, gold)
    assert totals(gold) == {0: (10, 4)}
    assert [number for _, number in held(silver)] == [1, 2, 3, 4]
    for table in (silver, gold):
        verify.verify(table)


@only_in_full_runs
def test_rows_that_a_replay_put_back_are_in_the_quarantine_again(silver, bring, run_once, spark, replay):
    bring(1, 2000)
    run_once(silver)
    moment = moment_of(silver)
    mended = replace(silver, expect=(Expect("is_small", "number < 5000"),))
    bring(3000)
    run_once(silver)
    replay(mended)
    assert held(silver) == [(0, 1), (1, 2000), (2, 3000)]
    house = Rewinds(spark, silver)
    [step] = house.plan(silver, moment).steps.values()
    assert any("are in the quarantine again" in line for line in step.undone)
    house.run(silver, moment)
    assert (held(silver), held(silver.quarantine)) == ([(0, 1)], [(1, 2000)])
    run_once(silver)
    assert (held(silver), held(silver.quarantine)) == ([(0, 1)], [(1, 2000), (2, 3000)])
    replay(mended)
    assert (held(silver), rows_of(silver.quarantine)) == ([(0, 1), (1, 2000), (2, 3000)], [])
    verify.verify(mended)


@only_in_full_runs
def test_a_flow_that_a_person_had_stopped_stays_stopped(silver, gold, bring, run_once, spark):
    house = Rewinds(spark, silver, gold)
    bring(1)
    run_once(silver, gold)
    moment = moment_of(gold)
    bring(2)
    run_once(silver, gold)
    commands.execute(house.engine, Command(Action.STOP, (gold.flow,), "a person", "a reason"))
    house.run(silver, moment)
    of = orders.read(house.engine, "", [silver.flow, gold.flow]).of
    assert (of[silver.flow].state, of[gold.flow].state) == ("running", "stopped")


def test_a_rewind_that_is_refused_touches_nothing(silver, bring, run_once, spark, name):
    house = Rewinds(spark, silver)
    bring(1)
    run_once(silver)
    moment = moment_of(silver)
    bring(2)
    run_once(silver)
    path = settings().table_path(f"bronze.{name}")
    spark.sql(f"DELETE FROM delta.`{path}` WHERE number = 1")
    before = DeltaLog(settings().table_path(silver.name)).newest
    with pytest.raises(UsageError, match="has replaced what would be read again"):
        house.run(silver, moment)
    assert DeltaLog(settings().table_path(silver.name)).newest == before
    assert rewinds.unfinished(house.engine, [silver.name]) == []


@only_in_full_runs
def test_what_vacuum_has_deleted_is_named_and_refused(silver, gold, bring, run_once, spark):
    house = Rewinds(spark, silver, gold)
    bring(1)
    run_once(silver, gold)
    moment = moment_of(gold)
    bring(2)
    run_once(silver, gold)
    delete_what_was_removed(gold.name)
    [refusal] = house.plan(silver, moment).refusals
    assert refusal.startswith(f"{gold.name}: VACUUM has deleted 1 files of version")
    # Of bronze, which silver would read again.
    spark.sql(f"OPTIMIZE delta.`{settings().table_path(silver.source.table)}`")
    delete_what_was_removed(silver.source.table)
    assert any("files of bronze" in one and "are deleted" in one for one in house.plan(silver, moment).refusals)


def delete_what_was_removed(table: str) -> None:
    """As VACUUM does once its retention is over."""
    log = DeltaLog(settings().table_path(table))
    for one in log.state.tombstones:
        (log.table / one.path).unlink()


@only_in_full_runs
def test_what_was_approved_is_done_or_nothing(silver, gold, bring, run_once, spark):
    house = Rewinds(spark, silver, gold)
    bring(1)
    run_once(silver, gold)
    moment = moment_of(gold)
    bring(2)
    run_once(silver, gold)
    found = house.plan(silver, moment)
    elsewhere = {name: replace(part, version=part.version - 1) for name, part in found.cut.items()}
    asked = rewinds.plan(house.engine, silver.name, moment, elsewhere, [], "a test", "a bug")
    with pytest.raises(UsageError, match="plan it again"):
        house.end(asked.number)
    assert rewinds.get(house.engine, asked.number).phase == "given up"
    with pytest.raises(UsageError, match="was given up"):
        engine_rewind.resume(asked.number, house.tables)
    assert totals(gold) == {0: (3, 2)}
    bring(3)
    run_once(silver, gold)
    assert totals(gold) == {0: (6, 3)}
    # More has come since it was planned: that is undone as well.
    asked = rewinds.plan(house.engine, silver.name, moment, found.cut, [], "a test", "a bug")
    assert house.end(asked.number).phase == "done"
    assert totals(gold) == {0: (1, 1)}


@only_in_full_runs
def test_a_backfill_is_undone_with_all_that_followed_it(silver, gold, copy, bring, run_once, spark):
    silver = replace(silver, time_column="time")
    tables = (silver, gold, copy)
    bring(1, 61)
    run_once(*tables)
    moment = moment_of(copy)
    bring(2)
    today = replace(silver, transform=wrong)
    Backfills(spark, (today, gold, copy)).run(today, 0, 60)
    run_once(*tables)
    house = Rewinds(spark, *tables)
    house.run(silver, moment)
    assert held(silver) == held(copy) == [(0, 1), (1, 61)]
    run_once(*tables)
    assert held(silver) == held(copy) == [(0, 1), (1, 61), (2, 2)]
    assert totals(gold) == {0: (3, 2), 1: (61, 1)}
    assert [
        one for one in stale_tables.list_all(house.engine) if one.table in (silver.name, gold.name, copy.name)
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
    assert held(silver) == [(0, 100), (1, 900)]
    Rewinds(spark, silver).run(silver, moment)
    # Both in one batch now, so nothing is late.
    run_once(silver)
    assert held(silver) == [(0, 100), (1, 900), (2, 110)]
    verify.verify(silver)


@only_in_full_runs
def test_without_anything_to_undo_nothing_is_done(silver, bring, run_once, spark):
    bring(1)
    run_once(silver)
    house = Rewinds(spark, silver)
    assert house.plan(silver, "2999-01-01").steps == {}
    assert "nothing is to be undone" in house.plan(silver, "2999-01-01").lines()[0]
