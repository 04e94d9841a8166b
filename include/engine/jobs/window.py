"""Runs one maintenance window of one table, in a process of its own or in a driver."""

from collections.abc import Iterator
from contextlib import contextmanager

from include.catalog import Catalog
from include.control import requesters
from include.control.jobs import store
from include.control.jobs.job import Job
from include.control.jobs.store import DONE
from include.control.store import database, job_id
from include.control.store.job_id import JobKind
from include.engine.jobs.worker import Worker, open_worker
from include.maintenance import table_survey
from include.settings import settings
from include.spec import Table


def dry_run(table: Table, tables: Catalog) -> None:
    """Prints what a window would do now and which files it would delete; changes nothing."""
    plan = table_survey.plan_window(database.connect(settings().control_url), table, tables)
    print("\n".join([*plan.lines(), *plan.deletions()]))


def run(table: Table, tables: Catalog, number: int | None = None, reason: str = store.BY_HAND) -> None:
    """Does the maintenance that is worth doing, in a window. number: of the planned window in the calendar, if any.
    reason: for the audit, where none is planned.

    Raises LeaseHeld if the table has another window, Unreachable, and FlowFailed if a step fails.
    """
    engine = database.connect(settings().control_url)
    if number is None:
        plan = table_survey.plan_window(engine, table, tables)
        print("\n".join(plan.lines()), flush=True)
        number = plan.store(engine, store.BY_HAND)
        result = "nothing is worth it" if number is None else f"asked for by hand: window {number}"
        requesters.record(engine, requesters.MAINTAIN, table.name, reason, result)
        if number is None:
            return
    with open_worker(engine, tables, f"maintain {table.name}", table_survey.stored_tables(table)) as worker:
        WindowJob(engine, job_id.window(number)).work(worker)


class WindowJob(Job[Worker, Table]):
    """A window of the calendar, which records its result."""

    KIND, SCRIPT = JobKind.WINDOW, "jobs/maintain.py"

    def plan(self, worker: Worker) -> list[Table]:
        # One that failed when its driver ended is done again.
        window = self.stored()
        return [worker.tables.table(window.table)] if window.state != DONE else []

    @contextmanager
    def hold(self, worker: Worker) -> Iterator[None]:
        # They go back only when the process can no longer write.
        worker.take_leases(worker.tables.table(self.stored().table), self.id.number)
        yield

    def run(self, worker: Worker, stage: Table) -> None:
        worker.window(stage, self.id.number).run(worker.halt)
