"""A kind of job is declared in one file: this one. It is requested, done, listed and given up like any other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine, select

from include.cli import jobs as cli
from include.control.flows import orders, queue
from include.control.flows.queue import JobStatus
from include.control.jobs import all_kinds, held_flows, store
from include.control.jobs.job import Job
from include.control.jobs.store import DONE, StoredJob
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.job_events import Event
from include.control.store.job_id import JobId, JobKind
from include.control.store.job_schema import job_events, jobs
from include.engine.jobs import job_runner
from include.errors import FlowFailed, LeaseHeld, UsageError
from include.recovery import giving_up
from include.settings import settings

TABLE, FLOW, DRIVER = "silver.persons", "gold.persons", "main"


class Process:
    """What does jobs here: it has leases, and no Spark."""

    def __init__(self, engine: Engine, holder: Holder) -> None:
        self.engine, self.holder = engine, holder

    @contextmanager
    def hold_leases(self, names: list[str], timeout_seconds: float) -> Iterator[None]:
        taken = lease.acquire(self.engine, names, self.holder, 60)
        try:
            yield
        finally:
            lease.release(self.engine, taken)


class ForgettingJob(Job[Process, str]):
    """Forgets a person, column by column."""

    KIND, SCRIPT, MOST_TRIES = "forgetting", "jobs/forget.py", 2
    forgotten: list[str] = []
    fails_at = ""

    def plan(self, worker: Process) -> list[str]:
        job = store.get(worker.engine, StoredJob, self.id.number, self.id.kind)
        return [name for name in job.parameters["columns"] if name not in self.forgotten] if not job.ended_at else []

    def run(self, worker: Process, stage: str) -> None:
        with database.transaction(worker.engine) as connection:
            held_flows.stop(connection, self.id, [FLOW], "ada", "a person is forgotten")
        store.enter(self.engine, self.stored(), "forgetting", stage)
        if stage == self.fails_at:
            raise FlowFailed(f"{stage} cannot be forgotten")
        self.forgotten.append(stage)
        if not self.plan(worker):
            with database.transaction(self.engine) as connection:
                store.end(connection, self.stored(), DONE, "the person is forgotten")


@pytest.fixture
def process(engine: Engine, holder: Callable[[], Holder], monkeypatch) -> Process:
    """A process next to a live driver."""
    monkeypatch.setattr(ForgettingJob, "forgotten", [])
    lease.acquire(engine, [lease.driver_lease(DRIVER)], holder(), 60)
    return Process(engine, holder())


@pytest.fixture
def job(engine: Engine, process: Process) -> JobId:
    """A requested job."""
    with database.transaction(engine) as connection:
        parameters = {"columns": ["name", "address"]}
        number = store.insert_job(connection, "forgetting", TABLE, "ada", reason="she asked", parameters=parameters)
    planned = JobId("forgetting", number)
    assert queue.request(engine, planned, DRIVER)
    return planned


def requested(engine: Engine) -> Job:
    """The job that the driver reads, by its kind."""
    id_ = orders.read(engine, DRIVER, []).job
    assert id_
    return Job.OF_KIND[id_.kind](engine, id_)


def stored(engine: Engine) -> StoredJob:
    return all_kinds.newest(engine, "forgetting")[0]


def test_a_job_of_a_new_kind_is_done_in_the_driver_that_is_asked_for_it(engine, process, job):
    assert all_kinds.status(engine, job).is_in_hand
    running = requested(engine)
    assert running.claim()
    running.work(process)
    queue.withdraw(engine, job)
    assert ForgettingJob.forgotten == ["name", "address"]
    assert (stored(engine).state, stored(engine).message, stored(engine).stopped) == (
        DONE,
        "the person is forgotten",
        {},
    )
    assert all_kinds.status(engine, job) == JobStatus("it is done", is_done=True)
    assert orders.read(engine, DRIVER, [FLOW]).of[FLOW].state == "running"
    assert orders.read(engine, DRIVER, []).job is None


def test_the_list_of_jobs_says_how_far_one_is_until_it_is_over(engine, process, job):
    store.enter(engine, stored(engine), "forgetting", "its rows")
    store.show(engine, stored(engine), "its rows: 3 of 7 tasks are done")
    assert list(cli._lines(stored(engine)))[1] == "      its rows: 3 of 7 tasks are done"
    running = stored(engine)
    store.give_up(engine, running, "nobody needs it")
    store.show(engine, running, "its rows: 4 of 7 tasks are done")
    assert stored(engine).message == "nobody needs it"


def test_what_a_new_kind_has_begun_is_completed_by_the_next_try(engine, process, job, monkeypatch):
    monkeypatch.setattr(ForgettingJob, "fails_at", "address")
    running = requested(engine)
    assert running.claim()
    with pytest.raises(FlowFailed) as error:
        running.work(process)
    running.fail(str(error.value))
    assert all_kinds.status(engine, job) == JobStatus(
        "no driver is asked for it", failure="address cannot be forgotten"
    )
    assert orders.read(engine, DRIVER, [FLOW]).of[FLOW].state == "stopped"
    monkeypatch.setattr(ForgettingJob, "fails_at", "")
    Job.OF_KIND[job.kind](engine, job).work(process)
    assert ForgettingJob.forgotten[-1] == "address"
    assert (stored(engine).failure, stored(engine).ended_at is None) == (None, False)


def test_a_job_of_a_new_kind_is_done_by_one_process_at_a_time_and_begun_in_as_many_drivers_as_it_says(
    engine, process, job, holder
):
    running = requested(engine)
    with process.hold_leases([str(job)], 0), pytest.raises(LeaseHeld):
        running.work(Process(engine, holder()))
    assert [running.claim(), running.claim()] == [True, True]
    with pytest.raises(FlowFailed, match=r"do it in a process of its own, spark-submit jobs/forget\.py"):
        running.claim()


def test_a_driver_knows_every_kind_of_its_folder_and_names_the_one_whose_file_is_gone(engine):
    kinds = {kind: type(job_runner.job_of(engine, JobId(kind, 1))) for kind in JobKind}
    assert all(kind == job.KIND for kind, job in kinds.items())
    with pytest.raises(UsageError, match="^erasure 1: no file in include/engine/jobs declares this kind: restore it"):
        job_runner.job_of(engine, JobId("erasure", 1))


def test_a_job_of_a_new_kind_is_listed_and_can_be_given_up(engine, process, job, monkeypatch, own_settings, capsys):
    own_settings(SLUICE_CONTROL_URL=engine.url.render_as_string(hide_password=False))
    monkeypatch.setattr(ForgettingJob, "fails_at", "name")
    running = requested(engine)
    with pytest.raises(FlowFailed):
        running.work(process)
    running.fail("name cannot be forgotten")
    database.connect(settings().control_url)
    cli.show_jobs(kind="forgetting")
    head, failure, stopped = capsys.readouterr().out.splitlines()
    assert head.startswith("forgetting") and head.endswith(f"failed    {TABLE}  by ada: she asked")
    assert (failure.strip(), stopped.strip()) == ("name cannot be forgotten", f"has stopped {FLOW}")
    with pytest.raises(UsageError, match="'forgetful' is not one of 'window', .*'refresh', 'replay', 'forgetting'"):
        cli.show_jobs(kind="forgetful")
    leftovers = giving_up.plan(engine, None, str(job))
    giving_up.carry_out(engine, None, str(job), leftovers.lines, "bob", None, "no way")
    assert (stored(engine).state, stored(engine).stopped) == ("given up", {})
    assert orders.read(engine, DRIVER, [FLOW]).of[FLOW].state == "running"
    with pytest.raises(UsageError, match=f"{job} is given up: nothing is to be given up"):
        giving_up.plan(engine, None, str(job))


def test_a_request_that_is_repeated_completes_its_unfinished_job_and_another_one_is_a_new_job(engine):
    def begun(requester: str, *conditions, table: str = TABLE) -> int:
        return store.begin(engine, JobKind.REFRESH, table, requester, *conditions, parameters={"views": ["a"]}).number

    other_views = jobs.c.parameters == '{"views": ["b"]}'
    assert [begun("monday"), begun("monday"), begun("tuesday"), begun("monday", table="gold.b")] == [1, 1, 2, 3]
    assert begun("monday", other_views) == 4
    with pytest.raises(FlowFailed), store.failure_recorded(engine, all_kinds.newest(engine, "refresh")[-1]):
        raise FlowFailed("no space")
    [first] = store.unfinished(engine, JobKind.REFRESH, "gold.b", "monday")
    store.finish(engine, first, "2 rows")
    failed = {job.number: (job.state, job.failure, job.message) for job in all_kinds.newest(engine, "refresh")}
    assert (failed[1], failed[3]) == (("planned", "no space", ""), ("done", None, "2 rows"))
    assert [begun("monday"), begun("monday", table="gold.b")] == [1, 5]


def test_a_retry_of_a_run_does_not_begin_what_was_given_up_and_a_command_by_hand_does(engine):
    numbers = {who: store.begin(engine, JobKind.REPLAY, TABLE, who).number for who in ("a run", store.BY_HAND)}
    for number in numbers.values():
        remains = giving_up.plan(engine, None, f"replay {number}")
        giving_up.carry_out(engine, None, f"replay {number}", remains.lines, "bob", None, "no way")
    with pytest.raises(UsageError, match=f"{TABLE}: replay 1 of run 'a run' was given up: trigger another run"):
        store.begin(engine, JobKind.REPLAY, TABLE, "a run")
    assert store.begin(engine, JobKind.REPLAY, TABLE, store.BY_HAND).number == 3


def test_jobs_are_listed_of_all_kinds_newest_first_and_of_a_table_those_that_restore_or_refresh_it(engine):
    views = {"views": ["gold.a", "gold.a_b"]}
    first = store.begin(engine, JobKind.REFRESH, "gold.a", "monday", parameters=views)
    store.begin(engine, JobKind.REFRESH, "gold.other", "monday", parameters={"views": ["gold.other", "gold.aXb"]})
    replay = store.begin(engine, JobKind.REPLAY, "gold.a_b", "monday")
    assert [job.id for job in all_kinds.newest(engine, table="gold.a_b")] == [replay, first]
    assert [job.id for job in all_kinds.newest(engine)] == [replay, JobId(JobKind.REFRESH, 2), first]
    assert [job.id for job in all_kinds.newest(engine, "refresh", limit=1)] == [JobId(JobKind.REFRESH, 2)]
    unknown = all_kinds.status(engine, JobId(JobKind.REPLAY, 9))
    assert unknown == JobStatus("it was never planned", failure="nobody planned replay 9")


def test_a_job_that_needs_an_approval_keeps_who_gave_it(engine):
    id_ = store.begin(engine, JobKind.REPLAY, TABLE, "ada")
    planned = store.get(engine, StoredJob, id_.number, id_.kind)
    with pytest.raises(UsageError, match="nobody has approved it"):
        store.require_approved(engine, planned)
    store.approve(engine, planned, "bob")
    store.require_approved(engine, planned)
    with database.reading(engine) as connection:
        approvals = connection.execute(select(job_events).where(job_events.c.event == Event.APPROVED)).all()
    assert [(event.kind, event.number, event.who) for event in approvals] == [(JobKind.REPLAY, id_.number, "bob")]
