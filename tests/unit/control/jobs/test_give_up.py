"""Jobs that exclude each other, and jobs that are given up: by logs that are written by hand."""

import json
import uuid
from dataclasses import replace

import pytest
from sqlalchemy import Engine, select

from include.catalog import Catalog
from include.control import commands, lease, orders, resets
from include.control.commands import Action, Command
from include.control.jobs import approvals, backfill_queue, backfills, rewinds, stale_tables
from include.control.jobs.backfills import Backfill, Follower
from include.control.jobs.rewinds import RestorePoint, Rewind
from include.control.store import database
from include.control.store.schema import audits
from include.engine.jobs import backfill as engine_backfill
from include.engine.jobs import rewind as engine_rewind
from include.errors import FlowBroken, FlowFailed, UsageError
from include.readers.active_commits import REWIND
from include.readers.batches import BACKFILL
from include.readers.offset_log import OWNER
from include.recovery import backfills as told
from include.recovery import giving_up, rewind_state, unseeded_generations
from include.settings import settings
from include.spec import Delta, Replace, Table
from include.validation.slices import Slice
from tests.support import lake


class House:
    """bronze, silver, gold and a view, each with two batches; silver is put back to its first."""

    def __init__(self, engine: Engine) -> None:
        self.engine, name = engine, f"t{uuid.uuid4().hex[:10]}"
        self.bronze = f"bronze.{name}"
        self.silver = Table(name=f"silver.{name}", comment="", source=Delta(self.bronze), schema="number BIGINT")
        self.gold = Table(name=f"gold.{name}", comment="", source=Delta(self.silver.name), schema="number BIGINT")
        view = replace(self.gold, name=f"gold.v{name}", write=Replace())
        self.view = view.name
        self.tables = Catalog({one.name: one for one in (self.silver, self.gold, view)})
        for batch in range(2):
            lake.rows(self.bronze, batch + 0.1, 1)
            for table in (self.silver, self.gold):
                stamp = {"flow": table.flow, "generation": 1, "batch": batch, "source_to": lake.delta_offset(batch + 1)}
                lake.rows(table.name, batch + 0.2, 1, **stamp, source={"table": table.source.table})
        for table in (self.silver, self.gold):
            lake.checkpoint(table.flow, lake.delta_offset(1), lake.delta_offset(2))

    def plan(self, *tables: str, who: str = "ada") -> Rewind:
        names = tables or (self.silver.name, self.gold.name)
        cut = {name: RestorePoint(0, None, {name: 1}, 0.5) for name in names}
        return rewinds.plan(self.engine, names[0], "1970-01-01T00:00:00.5", cut, [self.view], who, "a bug")

    def died(self, *put_back: Table) -> Rewind:
        """A rewind whose job has died when these were put back."""
        one = self.plan()
        rewinds.stop(self.engine, one)
        rewinds.restore(self.engine, one, one.cut)
        for table in put_back:
            self.put_back(table.name, one)
        return rewinds.get(self.engine, one.number)

    def put_back(self, name: str, one: Rewind) -> None:
        path = settings().table_path(name)
        version = lake.write(name, 9, **{REWIND: {"number": one.number, "key": one.key, "to": 0}})
        file = path / "_delta_log" / f"{version:020}.json"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines[0]["commitInfo"] |= {"operation": "RESTORE", "operationParameters": {"version": "0"}}
        file.write_text("\n".join(map(json.dumps, lines)))

    def give_up(self, job: str) -> str:
        found = giving_up.plan(self.engine, self.tables, job)
        return giving_up.carry_out(self.engine, self.tables, job, found.lines, "ada, approved by grace", "no way")

    def wanted(self, flow: str) -> str:
        return orders.read(self.engine, "main", [flow]).of[flow].state

    def begins_anew(self, flow: str) -> bool:
        return resets.pending(self.engine, flow) is not None

    def stale(self) -> dict[str, str]:
        return {one.table: one.why for one in stale_tables.list_all(self.engine)}


@pytest.fixture
def house(engine: Engine, home, own_settings) -> House:
    own_settings(SLUICE_CONTROL_URL=engine.url.render_as_string(hide_password=False))
    return House(engine)


def job(one: Rewind) -> str:
    return f"rewind {one.number}"


def test_of_two_rewinds_that_share_a_table_the_second_does_not_begin(house):
    first, second = house.plan(), house.plan(house.gold.name)
    rewinds.stop(house.engine, first)
    with pytest.raises(UsageError, match=f"rewind {second.number} is not begun: .*rewind {first.number} of .*give up"):
        rewinds.stop(house.engine, second)
    assert not rewinds.get(house.engine, second.number).is_begun
    # Its own next try goes on.
    rewinds.stop(house.engine, first)
    rewinds.finish(house.engine, first, "done")
    rewinds.stop(house.engine, second)


def test_rewinds_of_other_tables_go_on_side_by_side(house):
    both = house.plan(), house.plan("silver.another")
    for one in both:
        rewinds.stop(house.engine, one)
    assert all(rewinds.get(house.engine, one.number).is_begun for one in both)


@pytest.mark.parametrize("holds", ["its table", "a reader"])
def test_a_rewind_does_not_begin_while_a_backfill_holds_one_of_its_tables(house, holds):
    table = house.silver.name if holds == "its table" else house.bronze
    one = backfills.begin(house.engine, table, Slice(), "bob")
    rewinds.give_up(house.engine, house.plan(), "only to see that nothing is in its way")
    backfills.stop_readers(house.engine, one, [house.silver.flow])
    with pytest.raises(UsageError, match=f"backfill {one.number} is in the middle of it"):
        rewinds.stop(house.engine, house.plan())
    backfills.fail_before_replace(house.engine, one, "it cannot be made")
    rewinds.stop(house.engine, house.plan())


def test_a_rewind_does_not_begin_while_the_job_of_a_backfill_lives(house, holder):
    one = backfills.begin(house.engine, house.gold.name, Slice(), "bob")
    held = lease.acquire(house.engine, [backfills.lease_name(one.root)], holder(), 3600)
    with pytest.raises(UsageError, match=f"backfill {one.number} is in the middle of it"):
        rewinds.stop(house.engine, house.plan())
    lease.release(house.engine, held)
    rewinds.stop(house.engine, house.plan())


def test_a_backfill_replaces_nothing_that_a_table_of_a_begun_rewind_reads(house):
    one, asked = backfills.begin(house.engine, house.bronze, Slice(), "bob"), house.plan()
    rewinds.stop(house.engine, asked)
    with pytest.raises(FlowFailed, match=f"rewind {asked.number} is not done with a flow that reads it"):
        backfills.stop_readers(house.engine, one, [house.silver.flow])
    rewinds.finish(house.engine, asked, "done")
    backfills.stop_readers(house.engine, one, [house.silver.flow])


@pytest.mark.parametrize("phase", [rewinds.PLANNED, rewinds.STOPPING, rewinds.RESTORING])
def test_a_rewind_that_has_put_nothing_back_leaves_nothing_behind(house, phase):
    commands.execute(house.engine, Command(Action.DRAIN, (house.gold.flow,), "ada", "a test"))
    one = house.plan()
    if phase != rewinds.PLANNED:
        rewinds.stop(house.engine, one)
    if phase == rewinds.RESTORING:
        rewinds.restore(house.engine, one, one.cut)
    assert "nothing was put back" in house.give_up(job(one))
    assert (house.wanted(house.silver.flow), house.wanted(house.gold.flow)) == ("running", "draining")
    assert not house.begins_anew(house.silver.flow) and house.stale() == {}
    assert rewinds.get(house.engine, one.number).phase == rewinds.GIVEN_UP
    rewinds.require_unblocked(house.engine, house.silver.name, lambda name: False)


def test_between_restore_and_new_generations_no_flow_goes_on_where_it_stood(house):
    one = house.died(house.silver)
    said = house.give_up(job(one))
    assert f"{house.silver.name} was put back to version 0, and stays so" in said
    # Its checkpoint lies ahead of the table: going on there, it would leave out what is undone.
    assert house.begins_anew(house.silver.flow)
    # Gold holds what is undone above it. It fails at the RESTORE, and a new generation would hide nothing of that.
    assert not house.begins_anew(house.gold.flow)
    assert house.stale().keys() == {house.gold.name, house.view}
    assert f"rewind {house.silver.name} to" in house.stale()[house.gold.name]
    assert house.wanted(house.silver.flow) == house.wanted(house.gold.flow) == "running"


def test_where_all_tables_were_put_back_all_flows_begin_anew_but_those_that_have(house):
    one = house.died(house.silver, house.gold)
    lake.checkpoint(house.silver.flow, lake.delta_offset(1), generation=2)
    house.give_up(job(one))
    assert not house.begins_anew(house.silver.flow), "it has its new generation"
    assert house.begins_anew(house.gold.flow)
    assert house.stale().keys() == {house.view}


def test_a_table_without_a_file_goes_on_behind_what_was_put_back_should_it_come_back(house):
    one = house.died(house.silver)
    house.tables = Catalog({house.gold.name: house.gold})
    house.give_up(job(one))
    assert house.begins_anew(house.silver.flow)


def test_the_tables_of_a_rewind_that_was_given_up_can_be_put_back_again(house):
    one = house.died(house.silver)
    house.give_up(job(one))
    again = house.plan()
    rewinds.stop(house.engine, again)
    rewinds.finish(house.engine, again, "done")
    assert house.gold.name not in house.stale()


def test_a_job_that_lives_is_not_given_up(house, holder):
    one = house.died()
    held = lease.acquire(house.engine, [rewinds.lease_name(one.number)], holder(), 3600)
    with pytest.raises(UsageError, match=f"{job(one)} is at work .*: let it end, or end that process"):
        giving_up.plan(house.engine, house.tables, job(one))
    lease.release(house.engine, held)
    house.give_up(job(one))


def test_a_job_that_came_further_since_it_was_asked_for_is_not_given_up(house):
    one = house.died()
    approved = giving_up.plan(house.engine, house.tables, job(one)).lines
    house.put_back(house.silver.name, one)
    with pytest.raises(UsageError, match="has come further since this was asked for"):
        giving_up.carry_out(house.engine, house.tables, job(one), approved, "ada", "a test")
    assert rewinds.get(house.engine, one.number).ended_at is None


def test_what_is_done_or_was_never_there_is_not_given_up(house):
    one = house.died()
    house.give_up(job(one))
    for wrong in (job(one), "rewind 999999", "backfill 999999", "silver.a"):
        with pytest.raises(UsageError):
            giving_up.plan(house.engine, house.tables, wrong)


def test_the_audit_says_who_gave_it_up_and_what_that_left_behind(house):
    one = house.died(house.silver)
    said = house.give_up(job(one))
    with database.transaction(house.engine) as connection:
        last = connection.execute(select(audits).order_by(audits.c.number.desc()).limit(1)).one()
    found = (last.who, last.action, last.target, last.reason, last.result)
    assert found == ("ada, approved by grace", "give up", job(one), "no way", said)


def replaced(house: House, one: Backfill, **more) -> None:
    """As its commit says it."""
    said = {"number": one.number, "key": one.key, "rows_before": 2, **more}
    transaction = {"txn": {"appId": told.txn_app_id(one), "version": 1, "lastUpdated": 1}}
    lake.write(one.table, 5, transaction, written=2, **{BACKFILL: said})


def stopped(house: House, table: str, *flows: str) -> Backfill:
    one = backfills.begin(house.engine, table, Slice(), "bob")
    backfills.stop_readers(house.engine, one, list(flows))
    return backfills.find(house.engine, one.number)


def test_a_backfill_that_has_replaced_nothing_lets_its_readers_go_on_where_they_stand(house):
    one = stopped(house, house.silver.name, house.gold.flow)
    assert "nothing was replaced" in house.give_up(f"backfill {one.number}")
    assert house.wanted(house.gold.flow) == "running" and not house.begins_anew(house.gold.flow)
    assert backfills.find(house.engine, one.number).phase == backfills.GIVEN_UP
    assert backfills.begin(house.engine, house.silver.name, Slice(), "bob").number != one.number


def test_a_backfill_that_has_replaced_its_range_lets_its_readers_go_on_behind_that(house):
    one = stopped(house, house.silver.name, house.gold.flow)
    replaced(house, one)
    house.give_up(f"backfill {one.number}")
    assert house.wanted(house.gold.flow) == "running" and house.begins_anew(house.gold.flow)
    assert "was given up: backfill" in house.stale()[house.gold.name]
    assert backfills.unfinished_of(house.engine, one.root) == []


def test_what_was_to_follow_a_backfill_that_is_given_up_stays_stale_and_says_the_way_out(house):
    one = backfills.begin(house.engine, house.silver.name, Slice(), "bob")
    backfills.finish(house.engine, one, 3, (1, 1), [Follower(house.gold.name, Slice())])
    house.give_up(f"backfill {one.number}")
    assert house.stale()[house.gold.name].endswith(f"backfill {one.root} was given up: backfill {house.gold.name}")


def test_a_retry_of_the_run_that_asked_for_it_does_not_begin_again_what_was_given_up(house, holder):
    lease.acquire(house.engine, [lease.driver_lease("main")], holder("main"), 3600)
    number = backfill_queue.request(house.engine, house.silver.name, Slice(), "run 1", "main")
    house.give_up(f"backfill {number}")
    now = backfill_queue.status(house.engine, number)
    assert (now.is_done, now.failure) == (False, "it was given up")
    with pytest.raises(UsageError, match=f"backfill {number} of run 'run 1' was given up: trigger another run"):
        backfill_queue.request(house.engine, house.silver.name, Slice(), "run 1", "main")
    assert orders.read(house.engine, "main", []).backfill is None
    assert backfill_queue.request(house.engine, house.silver.name, Slice(), "run 2", "main") != number


def begin_anew(house: House) -> Backfill:
    """A full refresh that has begun a generation of its flow, which waits for a commit."""
    one = stopped(house, house.silver.name, house.silver.flow, house.gold.flow)
    directory = lake.checkpoint(house.silver.flow, lake.delta_offset(2), generation=2)
    (directory / OWNER).write_text(json.dumps({"flow": house.silver.flow, "after": [2, unseeded_generations.SEED]}))
    return one


def generations(house: House) -> set[str]:
    return {one.name for one in settings().checkpoints(house.silver.flow).iterdir()}


def test_a_full_refresh_that_is_given_up_before_its_commit_takes_its_generations_back(house):
    one = begin_anew(house)
    house.give_up(f"backfill {one.number}")
    # With it, its flow could not start.
    assert generations(house) == {"1", "2.new"}
    assert house.wanted(house.silver.flow) == "running" and not house.begins_anew(house.silver.flow)


def test_behind_the_commit_of_a_full_refresh_its_flow_waits_for_the_next_one(house):
    one = begin_anew(house)
    replaced(house, one, anew={house.silver.flow: {"flow": house.silver.flow, "generation": 2, "batch": 0}})
    said = house.give_up(f"backfill {one.number}")
    assert f"{house.silver.flow} does not start until a full refresh of {house.silver.name} has ended" in said
    assert generations(house) == {"1", "2"}
    assert not house.begins_anew(house.silver.flow), "what the refresh has read would be read twice"
    assert unseeded_generations.lacks_seed_commit(house.silver) and not unseeded_generations.lacks_seed_commit(
        house.gold
    )
    assert house.begins_anew(house.gold.flow)


class Keeper:
    """Of a job in this process."""

    def take(self, names: list[str]) -> None: ...

    def give_back(self, names: list[str]) -> None: ...


def test_a_table_whose_file_was_deleted_does_not_keep_its_backfill_unended(house):
    one = stopped(house, house.bronze, house.silver.flow)
    own = type("Own", (), {"tables": house.tables, "keeper": Keeper(), "engine": house.engine})
    engine_backfill.work(own, one)
    assert backfills.unfinished_of(house.engine, one.root) == []
    assert house.wanted(house.silver.flow) == "running"


def test_a_rewind_that_nobody_approved_does_not_begin_and_one_that_was_begun_is_ended(house):
    one = house.plan()
    with pytest.raises(UsageError, match=f"rewind {one.number} is not begun, as nobody has approved it"):
        engine_rewind.resume(one.number, house.tables)
    with pytest.raises(UsageError):
        approvals.require(house.engine, one)
    assert rewinds.get(house.engine, one.number).ended_at is None
    approvals.approve(house.engine, one, "grace")
    approvals.require(house.engine, one)
    approvals.require(house.engine, house.died())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_rewind_does_what_was_approved_or_nothing(house, elsewhere):
    for table in (house.silver, house.gold):
        for version in range(2):
            (settings().table_path(table.name) / f"{version}-0").touch()
    one = house.plan()
    found = engine_rewind.rewind_plan.plan(house.engine, house.silver, house.tables, "1970-01-01T00:00:00.5")
    assert found.refusals == [] and {part.version for part in found.cut.values()} == {0}
    rewinds.stop(house.engine, one)
    asked = rewinds.get(house.engine, one.number)
    if elsewhere:
        asked = replace(asked, cut={**asked.cut, house.gold.name: replace(asked.cut[house.gold.name], version=1)})
    own = type("Own", (), {"tables": house.tables, "engine": house.engine})
    if elsewhere:
        with pytest.raises(UsageError, match="plan it again"):
            engine_rewind._replan(own, asked)
        assert rewinds.get(house.engine, one.number).phase == rewinds.STOPPING
    else:
        assert engine_rewind._replan(own, asked).phase == rewinds.RESTORING


def test_a_flow_of_a_rewind_owes_its_generation_until_it_has_it(house):
    one = house.died(house.silver)
    assert [flow.flow for flow in rewind_state.flows_to_renew(one, [house.silver, house.gold])] == [
        house.silver.flow,
        house.gold.flow,
    ]
    lake.checkpoint(house.silver.flow, lake.delta_offset(1), generation=2)
    assert [flow.flow for flow in rewind_state.flows_to_renew(one, [house.silver, house.gold])] == [house.gold.flow]


def test_nobody_else_writes_the_tables_of_a_rewind_until_it_was_given_up(house):
    one = house.died(house.silver)
    with pytest.raises(FlowBroken, match="give up"):
        rewinds.require_unblocked(house.engine, house.gold.name, lambda name: False)
    house.give_up(job(one))
    rewinds.require_unblocked(house.engine, house.gold.name, lambda name: False)
