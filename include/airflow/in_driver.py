"""Leaves a job to the running driver of the table's flows. The task waits deferred, without a slot."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

from airflow.providers.standard.operators.branch import BaseBranchOperator
from airflow.sdk import Context, Param
from airflow.triggers.base import BaseTrigger, TriggerEvent
from sqlalchemy import Engine

from include import catalog, logs
from include.airflow.run import Run
from include.control.flows import placements, queue
from include.control.flows.queue import JobStatus
from include.control.jobs import all_kinds
from include.control.store import database
from include.control.store.job_id import JobId, JobKind
from include.errors import Unreachable
from include.settings import settings
from include.spec import Table

LOOK_SECONDS = 2
# A driver polls once a second, but not while it starts a flow.
NOBODY_SECONDS = 30
WHERE_PARAM = Param(
    "driver",
    enum=["driver", "job"],
    description="driver: in the one that runs the table's flow, while it lives; job: in a process of its own",
)


class InDriver(BaseBranchOperator):
    """Requests the job that the task `plan` has planned from the driver of the table's flow, and waits deferred.

    If the driver cannot do it, `fallback_task` follows. If nothing was planned, the following tasks are skipped.

    ask: requests the job; gets the result of `plan`, and returns the number of the job, or why no driver does it.
    done_task: follows if the driver has done the job. A cleared or killed task does no harm: the driver continues.
    """

    def __init__(
        self,
        *,
        kind: str,
        ask: Callable[[Engine, Table, str, Any, str], int | str],
        fallback_task: str,
        done_task: str | None = None,
        **operator_kwargs: Any,
    ) -> None:
        super().__init__(**operator_kwargs)
        self.kind = kind
        self.ask = ask
        self.fallback_task = fallback_task
        self.done_task = done_task

    def execute(self, context: Context) -> Any:
        if (planned := context["ti"].xcom_pull(task_ids="plan")) is None:
            return self.do_branch(context, None)
        if context["params"]["where"] == "job":
            return self._fall_back(context, "a job was asked for")
        engine = database.connect(settings().control_url)
        tables = placements.place(engine, catalog.load())
        table = tables.table(Run.of(context).table)
        driver = tables.driver_for(table)
        asked = self.ask(engine, table, driver, planned, context["run_id"])
        if not isinstance(asked, str):
            logs.info(f"{self.kind} {asked} is asked of driver '{driver}'")
            self._wait(asked)
        return self._fall_back(context, asked)

    def answered(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after the trigger: branch to `done_task`, keep waiting, or fall back."""
        job = JobId(self.kind, event["number"])
        if event["is_done"]:
            logs.info(f"{job} was done by the driver: sluice jobs {Run.of(context).table} --kind {self.kind}")
            return self.do_branch(context, self.done_task)
        engine = database.connect(settings().control_url)
        if not queue.withdraw_unbegun(engine, job) and all_kinds.status(engine, job).is_in_hand:
            self._wait(job.number)
        queue.withdraw(engine, job)
        # The fallback job finds what the driver has begun, and completes it.
        return self._fall_back(context, event["why"])

    def _wait(self, number: int) -> NoReturn:
        self.defer(trigger=Wait(number, self.kind), method_name="answered")

    def _fall_back(self, context: Context, reason: str) -> Any:
        logs.info(f"{Run.of(context).table} is left to the task '{self.fallback_task}': {reason}")
        return self.do_branch(context, self.fallback_task)


class Wait(BaseTrigger):
    """Waits until the requested job has ended, or until nobody has worked on it for `NOBODY_SECONDS`."""

    def __init__(self, number: int, kind: str = JobKind.BACKFILL) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = number
        self.kind = str(kind)

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "include.airflow.in_driver.Wait", {"number": self.number, "kind": self.kind}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        last_message, idle_seconds = "", 0
        while True:
            # Also before the first poll: Airflow fails if a trigger fires within the second in which it was created.
            await asyncio.sleep(LOOK_SECONDS)
            status = await asyncio.to_thread(self._look)
            if status.message != last_message:
                self.log.info("%s %d: %s", self.kind, self.number, status.message)
                last_message = status.message
            idle_seconds = 0 if status.is_in_hand else idle_seconds + LOOK_SECONDS
            if status.is_done or status.failure or idle_seconds >= NOBODY_SECONDS:
                reason = status.failure or f"nobody has been at it for {idle_seconds} s ({status.message})"
                event = {"number": self.number, "is_done": status.is_done, "why": reason}
                yield TriggerEvent(event)  # type: ignore[no-untyped-call]
                return

    def _look(self) -> JobStatus:
        try:
            return all_kinds.status(database.connect(settings().control_url), JobId(self.kind, self.number))
        except Unreachable as error:
            # If the database stays unreachable, the driver ends too, and the wait with it.
            return JobStatus(str(error), is_in_hand=True)
