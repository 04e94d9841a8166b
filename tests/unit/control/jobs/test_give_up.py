"""Jobs that exclude each other, and jobs that are given up. The tests write the Delta logs by hand."""

import json
import uuid
from dataclasses import replace

import pytest
from sqlalchemy import Engine, select

from include.catalog import Catalog
from include.checkpoints.checkpoint_files import OWNER
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders, resets
from include.control.flows.resets import Reset
from include.control.jobs import all_kinds, backfills, rewinds, stale_rows, store
from include.control.jobs.backfills import Backfill, Follower
from include.control.jobs.rewinds import RestorePoint, Rewind
from include.control.leases import lease
from include.control.store import database, job_id
from include.control.store.schema import audits
from include.delta.commit_history import REWIND
from include.engine.jobs import backfill as engine_backfill
from include.engine.jobs import rewind as engine_rewind
from include.engine.jobs.worker import Worker
from include.errors import FlowBroken, FlowFailed, UsageError
from include.flows.batches import BACKFILL
from include.lake import locations
from include.project.ranges import Slice
from include.recovery import backfill as recovery_backfills
from include.recovery import giving_up, rewind_plan, unseeded_generations
from include.spec import Delta, Flow, Replace, Table
from tests.support import lake


class Lakehouse:
    """A bronze, a silver and a gold table with two batches each, and a view."""

    def __init__(self, engine: Engine) -> None:
        self.engine, name = engine, f"t{uuid.uuid4().hex[:10]}"
        self.bronze = f"bronze.{name}"
        self.silver = Flow(name=f"silver.{name}", comment="", source=Delta(self.bronze), schema="number BIGINT")
        self.gold = Flow(name=f"gold.{name}", comment="", source=Delta(self.silver.name), schema="number BIGINT")
        view = replace(self.gold, name=f"gold.v{name}", write=Replace())
        self.view = view.name
        self.tables = Catalog({table.name: table for table in (self.silver, self.gold, view)})
        for batch in range(2):
            lake.rows(self.bronze, batch + 0.1, 1)
            for table in (self.silver, self.gold):
                metadata = {
                    "flow": table.flow,
                    "generation": 1,
                    "batch": batch,
                    "source_to": lake.delta_offset(batch + 1),
                }
                lake.rows(table.name, batch + 0.2, 1, **metadata, source={"table": table.source.table})
        for table in (self.silver, self.gold):
            lake.checkpoint(table.flow, lake.delta_offset(1), lake.delta_offset(2))

    def plan(self, *tables: str, who: str = "ada") -> Rewind:
        names = tables or (self.silver.name, self.gold.name)
        cut = {name: RestorePoint(0, None, {name: 1}, 0.5) for name in names}
        return rewinds.plan(self.engine, names[0], "1970-01-01T00:00:00.5", cut, [self.view], who, "a bug")

    def dead_rewind(self, *restored_tables: Table) -> Rewind:
        """A rewind whose job has died after it restored these tables."""
        rewind = self.plan()
        rewinds.stop(self.engine, rewind)
        rewinds.restore(self.engine, rewind, rewind.cut)
        for table in restored_tables:
            self.commit_restore(table.name, rewind)
        return store.get(self.engine, Rewind, rewind.number)

    def commit_restore(self, name: str, rewind: Rewind) -> None:
        path = locations.table_path(name)
        version = lake.write(name, 9, **{REWIND: {"number": rewind.number, "key": rewind.key, "to": 0}})
        file = path / "_delta_log" / f"{version:020}.json"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        lines[0]["commitInfo"] |= {"operation": "RESTORE", "operationParameters": {"version": "0"}}
        file.write_text("\n".join(map(json.dumps, lines)))

    def give_up(self, job: str) -> str:
        plan = giving_up.plan(self.engine, self.tables, job)
        return giving_up.carry_out(self.engine, self.tables, job, plan.lines, "ada", "grace", "no way")

    def wanted_state(self, flow: str) -> str:
        return orders.read(self.engine, "main", [flow]).of[flow].state

    def has_pending_reset(self, flow: str) -> bool:
        return resets.pending(self.engine, flow) is not None

    def stale_reasons(self) -> dict[str, str]:
        return {entry.table: entry.why for entry in stale_rows.stale_ranges(self.engine)}


@pytest.fixture
def house(engine: Engine, home, own_settings) -> Lakehouse:
    own_settings(SLUICE_CONTROL_URL=engine.url.render_as_string(hide_password=False))
    return Lakehouse(engine)


def job_name(rewind: Rewind) -> str:
    return f"rewind {rewind.number}"


def test_of_two_rewinds_that_share_a_table_the_second_does_not_begin(house):
    first, second = house.plan(), house.plan(house.gold.name)
    rewinds.stop(house.engine, first)
    with pytest.raises(UsageError, match=f"rewind {second.number} is not begun: .*rewind {first.number} of .*give up"):
        rewinds.stop(house.engine, second)
    assert not store.get(house.engine, Rewind, second.number).is_begun
    # A retry of the first rewind is allowed.
    rewinds.stop(house.engine, first)
    rewinds.finish(house.engine, first, "done")
    rewinds.stop(house.engine, second)


def test_rewinds_of_other_tables_go_on_side_by_side(house):
    plans = house.plan(), house.plan("silver.another")
    for rewind in plans:
        rewinds.stop(house.engine, rewind)
    assert all(store.get(house.engine, Rewind, rewind.number).is_begun for rewind in plans)


@pytest.mark.parametrize("holds", ["its table", "a reader"])
def test_a_rewind_does_not_begin_while_a_backfill_holds_one_of_its_tables(house, holds):
    table = house.silver.name if holds == "its table" else house.bronze
    backfill = backfills.begin(house.engine, table, Slice(), "bob")
    rewinds.give_up(house.engine, house.plan(), "only to see that nothing is in its way")
    backfills.stop_readers(house.engine, backfill, [house.silver.flow])
    with pytest.raises(UsageError, match=f"backfill {backfill.number} is in the middle of it"):
        rewinds.stop(house.engine, house.plan())
    store.record_failure(house.engine, backfill, "it cannot be made", resumes_flows=True)
    rewinds.stop(house.engine, house.plan())


def test_a_rewind_does_not_begin_while_the_job_of_a_backfill_lives(house, holder):
    backfill = backfills.begin(house.engine, house.gold.name, Slice(), "bob")
    leases = lease.acquire(house.engine, [str(job_id.backfill(backfill.root))], holder(), 3600)
    with pytest.raises(UsageError, match=f"backfill {backfill.number} is in the middle of it"):
        rewinds.stop(house.engine, house.plan())
    lease.release(house.engine, leases)
    rewinds.stop(house.engine, house.plan())


def test_a_backfill_replaces_nothing_that_a_table_of_a_begun_rewind_reads(house):
    backfill, rewind = backfills.begin(house.engine, house.bronze, Slice(), "bob"), house.plan()
    rewinds.stop(house.engine, rewind)
    with pytest.raises(FlowFailed, match=f"rewind {rewind.number} is not done with a flow that reads it"):
        backfills.stop_readers(house.engine, backfill, [house.silver.flow])
    rewinds.finish(house.engine, rewind, "done")
    backfills.stop_readers(house.engine, backfill, [house.silver.flow])


@pytest.mark.parametrize("phase", [rewinds.PLANNED, rewinds.STOPPING, rewinds.RESTORING])
def test_a_rewind_that_has_put_nothing_back_leaves_nothing_behind(house, phase):
    commands.execute(house.engine, Command(Action.DRAIN, (house.gold.flow,), "ada", "a test"))
    rewind = house.plan()
    if phase != rewinds.PLANNED:
        rewinds.stop(house.engine, rewind)
    if phase == rewinds.RESTORING:
        rewinds.restore(house.engine, rewind, rewind.cut)
    assert "nothing was restored" in house.give_up(job_name(rewind))
    assert (house.wanted_state(house.silver.flow), house.wanted_state(house.gold.flow)) == ("running", "draining")
    assert not house.has_pending_reset(house.silver.flow) and house.stale_reasons() == {}
    assert store.get(house.engine, Rewind, rewind.number).state == rewinds.GIVEN_UP
    rewinds.require_unblocked(house.engine, house.silver.name, lambda name: False)


def test_between_restore_and_new_generations_no_flow_goes_on_where_it_stood(house):
    rewind = house.dead_rewind(house.silver)
    result = house.give_up(job_name(rewind))
    assert f"{house.silver.name} was restored to version 0, and stays so" in result
    # The checkpoint is ahead of the restored table, so the flow would skip the undone batches.
    assert house.has_pending_reset(house.silver.flow)
    assert resets.pending(house.engine, house.silver.flow) == Reset(
        house.silver.flow, False, rewind.who, f"behind rewind {rewind.number}"
    )
    # Gold still holds undone rows. Its flow fails at the RESTORE, and a new generation would not remove them.
    assert not house.has_pending_reset(house.gold.flow)
    assert house.stale_reasons().keys() == {house.gold.name, house.view}
    assert f"rewind {house.silver.name} to" in house.stale_reasons()[house.gold.name]
    assert house.wanted_state(house.silver.flow) == house.wanted_state(house.gold.flow) == "running"


def test_where_all_tables_were_put_back_all_flows_begin_anew_but_those_that_have(house):
    rewind = house.dead_rewind(house.silver, house.gold)
    lake.checkpoint(house.silver.flow, lake.delta_offset(1), generation=2)
    house.give_up(job_name(rewind))
    assert not house.has_pending_reset(house.silver.flow), "it has its new generation"
    assert house.has_pending_reset(house.gold.flow)
    assert house.stale_reasons().keys() == {house.view}


def test_a_table_without_a_file_goes_on_behind_what_was_put_back_should_it_come_back(house):
    rewind = house.dead_rewind(house.silver)
    house.tables = Catalog({house.gold.name: house.gold})
    house.give_up(job_name(rewind))
    assert house.has_pending_reset(house.silver.flow)


def test_the_tables_of_a_rewind_that_was_given_up_can_be_put_back_again(house):
    rewind = house.dead_rewind(house.silver)
    house.give_up(job_name(rewind))
    second_rewind = house.plan()
    rewinds.stop(house.engine, second_rewind)
    rewinds.finish(house.engine, second_rewind, "done")
    assert house.gold.name not in house.stale_reasons()


def test_a_job_that_lives_is_not_given_up(house, holder):
    rewind = house.dead_rewind()
    leases = lease.acquire(house.engine, [str(job_id.rewind(rewind.number))], holder(), 3600)
    with pytest.raises(UsageError, match=f"{job_name(rewind)} is at work .*: let it end, or end that process"):
        giving_up.plan(house.engine, house.tables, job_name(rewind))
    lease.release(house.engine, leases)
    house.give_up(job_name(rewind))


def test_a_job_that_came_further_since_it_was_asked_for_is_not_given_up(house):
    rewind = house.dead_rewind()
    approved_lines = giving_up.plan(house.engine, house.tables, job_name(rewind)).lines
    house.commit_restore(house.silver.name, rewind)
    with pytest.raises(UsageError, match="has come further since this was asked for"):
        giving_up.carry_out(house.engine, house.tables, job_name(rewind), approved_lines, "ada", "grace", "a test")
    assert store.get(house.engine, Rewind, rewind.number).ended_at is None


def test_what_is_done_or_was_never_there_is_not_given_up(house):
    rewind = house.dead_rewind()
    house.give_up(job_name(rewind))
    for target in (job_name(rewind), "rewind 999999", "backfill 999999", "silver.a"):
        with pytest.raises(UsageError):
            giving_up.plan(house.engine, house.tables, target)


def test_the_audit_says_who_gave_it_up_and_what_that_left_behind(house):
    rewind = house.dead_rewind(house.silver)
    result = house.give_up(job_name(rewind))
    with database.transaction(house.engine) as connection:
        audit = connection.execute(select(audits).order_by(audits.c.number.desc()).limit(1)).one()
    audit_fields = (audit.who, audit.approver, audit.action, audit.target, audit.reason, audit.result)
    assert audit_fields == ("ada", "grace", "give up", job_name(rewind), "no way", result)


def commit_replacement(house: Lakehouse, backfill: Backfill, **extra) -> None:
    """Writes the commit of this backfill."""
    metadata = {"number": backfill.number, "key": backfill.key, "rows_before": 2, **extra}
    transaction = {"txn": {"appId": recovery_backfills.txn_app_id(backfill), "version": 1, "lastUpdated": 1}}
    lake.write(backfill.table, 5, transaction, written=2, **{BACKFILL: metadata})


def begin_backfill(house: Lakehouse, table: str, *flows: str) -> Backfill:
    backfill = backfills.begin(house.engine, table, Slice(), "bob")
    backfills.stop_readers(house.engine, backfill, list(flows))
    return store.get(house.engine, Backfill, backfill.number)


def test_a_backfill_that_has_replaced_nothing_lets_its_readers_go_on_where_they_stand(house):
    backfill = begin_backfill(house, house.silver.name, house.gold.flow)
    assert "nothing was replaced" in house.give_up(f"backfill {backfill.number}")
    assert house.wanted_state(house.gold.flow) == "running" and not house.has_pending_reset(house.gold.flow)
    assert store.get(house.engine, Backfill, backfill.number).state == backfills.GIVEN_UP
    with database.reading(house.engine) as connection:
        audited = [row[:] for row in connection.execute(select(audits.c.action, audits.c.target, audits.c.reason))]
    assert ("backfill", house.silver.name, "as a whole") in audited
    assert backfills.begin(house.engine, house.silver.name, Slice(), "bob").number != backfill.number


def test_a_backfill_that_has_replaced_its_range_lets_its_readers_go_on_behind_that(house):
    backfill = begin_backfill(house, house.silver.name, house.gold.flow)
    commit_replacement(house, backfill)
    house.give_up(f"backfill {backfill.number}")
    assert house.wanted_state(house.gold.flow) == "running" and house.has_pending_reset(house.gold.flow)
    assert resets.pending(house.engine, house.gold.flow) == Reset(
        house.gold.flow, False, "bob", f"behind backfill {backfill.number}"
    )
    assert "was given up: backfill" in house.stale_reasons()[house.gold.name]
    assert backfills.unfinished(house.engine, backfill.root) == []


def test_what_was_to_follow_a_backfill_that_is_given_up_stays_stale_and_says_the_way_out(house):
    backfill = backfills.begin(house.engine, house.silver.name, Slice(), "bob")
    backfills.finish(house.engine, backfill, 3, (1, 1), [Follower(house.gold.name, Slice())], {})
    house.give_up(f"backfill {backfill.number}")
    assert house.stale_reasons()[house.gold.name].endswith(
        f"backfill {backfill.root} was given up: backfill {house.gold.name}"
    )


def test_a_retry_of_the_run_that_asked_for_it_does_not_begin_again_what_was_given_up(house, holder):
    lease.acquire(house.engine, [lease.driver_lease("main")], holder("main"), 3600)
    number = backfills.request(house.engine, house.silver.name, Slice(), "run 1", "main")
    house.give_up(f"backfill {number}")
    status = all_kinds.status(house.engine, job_id.backfill(number))
    assert (status.is_done, status.failure) == (False, "it was given up")
    words = f"^{house.silver.name} {Slice()}: backfill {number} of run 'run 1' was given up: trigger another run"
    with pytest.raises(UsageError, match=words):
        backfills.request(house.engine, house.silver.name, Slice(), "run 1", "main")
    assert orders.read(house.engine, "main", []).job is None
    assert backfills.request(house.engine, house.silver.name, Slice(), "run 2", "main") != number


def begin_full_refresh(house: Lakehouse) -> Backfill:
    """A full refresh that has begun a generation of its flow. The generation waits for its first commit."""
    backfill = begin_backfill(house, house.silver.name, house.silver.flow, house.gold.flow)
    directory = lake.checkpoint(house.silver.flow, lake.delta_offset(2), generation=2)
    (directory / OWNER).write_text(json.dumps({"flow": house.silver.flow, "after": [2, unseeded_generations.SEED]}))
    return backfill


def generations(house: Lakehouse) -> set[str]:
    return {directory.name for directory in locations.checkpoints(house.silver.flow).iterdir()}


def test_a_full_refresh_that_is_given_up_before_its_commit_takes_its_generations_back(house):
    backfill = begin_full_refresh(house)
    house.give_up(f"backfill {backfill.number}")
    # The flow could not start with a generation that has no commit.
    assert generations(house) == {"1", "2.new"}
    assert house.wanted_state(house.silver.flow) == "running" and not house.has_pending_reset(house.silver.flow)


def test_behind_the_commit_of_a_full_refresh_its_flow_waits_for_the_next_one(house):
    backfill = begin_full_refresh(house)
    commit_replacement(
        house, backfill, anew={house.silver.flow: {"flow": house.silver.flow, "generation": 2, "batch": 0}}
    )
    result = house.give_up(f"backfill {backfill.number}")
    assert f"{house.silver.flow} does not start until a full refresh of {house.silver.name} has ended" in result
    assert generations(house) == {"1", "2"}
    assert not house.has_pending_reset(house.silver.flow), "what the refresh has read would be read twice"
    assert unseeded_generations.lacks_seed_commit(house.silver) and not unseeded_generations.lacks_seed_commit(
        house.gold
    )
    assert house.has_pending_reset(house.gold.flow)


class FakeLeaseRenewer:
    """A LeaseRenewer that takes no leases."""

    def take(self, names: list[str]) -> None: ...

    def holds(self, _name: str) -> bool:
        return False

    def give_back(self, names: list[str]) -> None: ...


def test_a_table_whose_file_was_deleted_does_not_keep_its_backfill_unended(house):
    backfill = begin_backfill(house, house.bronze, house.silver.flow)
    worker = Worker(house.engine, FakeLeaseRenewer(), None, None, house.tables, None)
    engine_backfill.BackfillJob(house.engine, job_id.backfill(backfill.root)).work(worker)
    assert backfills.unfinished(house.engine, backfill.root) == []
    assert house.wanted_state(house.silver.flow) == "running"


def test_a_rewind_that_nobody_approved_does_not_begin_and_one_that_was_begun_is_ended(house):
    rewind = house.plan()
    with pytest.raises(UsageError, match=f"rewind {rewind.number} is not begun, as nobody has approved it"):
        engine_rewind.resume(rewind.number, house.tables)
    with pytest.raises(UsageError):
        store.require_approved(house.engine, rewind)
    assert store.get(house.engine, Rewind, rewind.number).ended_at is None
    store.approve(house.engine, rewind, "grace")
    store.require_approved(house.engine, rewind)
    store.require_approved(house.engine, house.dead_rewind())


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_rewind_does_what_was_approved_or_nothing(house, elsewhere):
    for table in (house.silver, house.gold):
        for version in range(2):
            (locations.table_path(table.name) / f"{version}-0").touch()
    rewind = house.plan()
    new_plan = engine_rewind.rewind_plan.plan(house.engine, house.silver, house.tables, "1970-01-01T00:00:00.5")
    assert new_plan.refusals == [] and {restore_point.version for restore_point in new_plan.cut.values()} == {0}
    rewinds.stop(house.engine, rewind)
    stored_rewind = store.get(house.engine, Rewind, rewind.number)
    if elsewhere:
        cut = {**stored_rewind.parameters["cut"]}
        cut[house.gold.name] = {**cut[house.gold.name], "version": 1}
        stored_rewind = replace(stored_rewind, parameters={**stored_rewind.parameters, "cut": cut})
    worker = type("Own", (), {"tables": house.tables, "engine": house.engine})
    if elsewhere:
        with pytest.raises(UsageError, match="plan it again"):
            engine_rewind._replan(worker, stored_rewind)
        assert store.get(house.engine, Rewind, rewind.number).state == rewinds.STOPPING
    else:
        assert engine_rewind._replan(worker, stored_rewind).state == rewinds.RESTORING


def test_a_flow_of_a_rewind_owes_its_generation_until_it_has_it(house):
    rewind = house.dead_rewind(house.silver)
    assert [flow.flow for flow in rewind_plan.flows_to_renew(rewind, [house.silver, house.gold])] == [
        house.silver.flow,
        house.gold.flow,
    ]
    lake.checkpoint(house.silver.flow, lake.delta_offset(1), generation=2)
    assert [flow.flow for flow in rewind_plan.flows_to_renew(rewind, [house.silver, house.gold])] == [house.gold.flow]


def test_nobody_else_writes_the_tables_of_a_rewind_until_it_was_given_up(house):
    rewind = house.dead_rewind(house.silver)
    with pytest.raises(FlowBroken, match="give up") as refused:
        rewinds.require_unblocked(house.engine, house.gold.name, lambda name: False)
    assert refused.value.error == "REWIND_UNFINISHED"
    house.give_up(job_name(rewind))
    rewinds.require_unblocked(house.engine, house.gold.name, lambda name: False)


def test_a_planned_rewind_that_is_given_up_says_why_and_the_newest_is_listed_first(house):
    first, second = house.plan(), house.plan()
    rewinds.give_up(house.engine, first, "the bug was elsewhere")
    given_up = store.get(house.engine, Rewind, first.number)
    assert (given_up.state, given_up.message, given_up.failure) == (
        rewinds.GIVEN_UP,
        "the bug was elsewhere",
        "the bug was elsewhere",
    )
    assert [rewind.number for rewind in store.newest(house.engine, Rewind)] == [second.number, first.number]
    assert [rewind.number for rewind in store.newest(house.engine, Rewind, limit=1)] == [second.number]


def test_a_rewind_tells_whether_its_job_lives_and_its_last_failure_and_the_audit_what_was_done(house, holder):
    rewind, other = house.plan(), house.plan()
    store.approve(house.engine, rewind, "grace")
    assert not store.get(house.engine, Rewind, rewind.number).is_held
    lease.acquire(house.engine, [str(job_id.rewind(rewind.number))], holder(), 3600)
    assert [store.get(house.engine, Rewind, one.number).is_held for one in (rewind, other)] == [True, False]
    store.record_failure(house.engine, rewind, "no space left")
    assert [store.get(house.engine, Rewind, one.number).failure for one in (rewind, other)] == ["no space left", None]
    store.enter(house.engine, rewind, rewinds.REFRESHING, "refreshes a view")
    stored = store.get(house.engine, Rewind, rewind.number)
    assert (stored.state, stored.message, stored.failure) == (rewinds.REFRESHING, "refreshes a view", None)
    rewinds.finish(house.engine, rewind, "all is back", "one row is missing")
    rewinds.finish(house.engine, other, "all is back")
    with database.reading(house.engine) as connection:
        is_of_rewind = (audits.c.action == "rewind") & (audits.c.target == rewind.table)
        results = connection.execute(select(audits.c.result).where(is_of_rewind).order_by(audits.c.number)).scalars()
        assert list(results) == [
            *(f"rewind {one.number} is asked for: to {one.moment}" for one in (rewind, other)),
            f"to {rewind.moment}: approved by grace",
            "done: one row is missing",
            "done: all is back",
        ]
