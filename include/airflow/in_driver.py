"""Operators that leave a job to the running driver of the table's flows. The task waits deferred, without a slot."""

import asyncio
from abc import abstractmethod
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.standard.operators.branch import BaseBranchOperator
from airflow.sdk import Context, Param
from airflow.triggers.base import BaseTrigger, TriggerEvent
from sqlalchemy import Engine

from include import catalog
from include.control.jobs import backfill_queue, window_queue
from include.control.jobs.backfill_queue import RequestStatus
from include.control.store import database
from include.errors import Unreachable
from include.maintenance import table_state
from include.maintenance.plan import OPTIMIZE
from include.project import ranges
from include.settings import settings
from include.spec import Table

LOOK_SECONDS = 2
# A driver polls once a second, but not while it starts a flow.
NOBODY_SECONDS = 30
# A larger rewrite would occupy the driver's cores for minutes and delay its streams.
MOST_BYTES_REWRITTEN = 512 * 2**20
WHERE_PARAM = Param(
    "driver",
    enum=["driver", "job"],
    description="driver: in the one that runs the table's flow, while it lives; job: in a process of its own",
)
BACKFILL, WINDOW = "backfill", "window"
STATUS_OF = {BACKFILL: backfill_queue.status, WINDOW: window_queue.status}


class InDriver(BaseBranchOperator):
    """Requests a job from the table's driver, and waits deferred. If the driver cannot do it, `fallback_task` follows.

    done_task: follows if the driver has done the job. A cleared or killed task does no harm: the driver continues.
    """

    kind: str

    def __init__(self, *, table: str, fallback_task: str, done_task: str | None = None, **operator_kwargs: Any) -> None:
        super().__init__(**operator_kwargs)
        self.table = table
        self.fallback_task = fallback_task
        self.done_task = done_task

    def execute(self, context: Context) -> Any:
        table, engine = catalog.load().table(self.table), database.connect(settings().control_url)
        if reason := "a job was asked for" if context["params"]["where"] == "job" else self.refusal(engine, table):
            return self._fall_back(context, reason)
        if number := self.ask(engine, table, context):
            print(f"{self.kind} {number} is asked of driver '{table.driver}'")
            self.defer(trigger=Wait(number, self.kind), method_name="answered")
        return self._fall_back(context, f"driver '{table.driver}' does not run")

    def refusal(self, engine: Engine, table: Table) -> str | None:
        """Why the driver must not do the job; None if it may."""
        return None

    @abstractmethod
    def ask(self, engine: Engine, table: Table, context: Context) -> int | None:
        """Request the job. Returns its number, or None if the driver is not alive."""

    @abstractmethod
    def withdraw(self, engine: Engine, number: int) -> bool:
        """Withdraw the request. Returns False if the driver has just begun the job."""

    def answered(self, context: Context, event: dict[str, Any]) -> Any:
        """Continue after the trigger: branch to `done_task`, keep waiting, or fall back."""
        number = event["number"]
        if event["is_done"]:
            print(f"{self.kind} {number} was done by the driver: python -m include.ledger {self.kind}s {self.table}")
            return self.do_branch(context, self.done_task)
        if not self.withdraw(database.connect(settings().control_url), number):
            self.defer(trigger=Wait(number, self.kind), method_name="answered")
        # The fallback job finds what the driver has begun, and completes it.
        return self._fall_back(context, event["why"])

    def _fall_back(self, context: Context, reason: str) -> Any:
        print(f"{self.table} is left to the task '{self.fallback_task}': {reason}")
        return self.do_branch(context, self.fallback_task)


class BackfillInDriver(InDriver):
    """Requests the backfill of the range that the task `plan` has returned."""

    kind = BACKFILL

    def ask(self, engine: Engine, table: Table, context: Context) -> int | None:
        range_texts = context["ti"].xcom_pull(task_ids="plan")
        range_ = ranges.parse_slice(table, range_texts["from"] or None, range_texts["to"] or None)
        return backfill_queue.request(engine, table.name, range_, context["run_id"], table.driver)

    def withdraw(self, engine: Engine, number: int) -> bool:
        backfill_queue.withdraw(engine, number)
        return True


class WindowInDriver(InDriver):
    """Requests the window that the task `plan` has stored. Without one, the following tasks are skipped."""

    kind = WINDOW

    def execute(self, context: Context) -> Any:
        is_planned = context["ti"].xcom_pull(task_ids="plan") is not None
        return super().execute(context) if is_planned else self.do_branch(context, None)

    def refusal(self, engine: Engine, table: Table) -> str | None:
        surveys = table_state.survey(engine, table, catalog.load())
        bytes_rewritten = sum(survey.plan.step(OPTIMIZE).numbers.get("bytes_rewritten", 0) for survey in surveys)
        if bytes_rewritten <= MOST_BYTES_REWRITTEN:
            return None
        return (
            f"a driver rewrites {MOST_BYTES_REWRITTEN / 2**20:.0f} MB at most, "
            f"and this is {bytes_rewritten / 2**20:,.0f} MB"
        )

    def ask(self, engine: Engine, table: Table, context: Context) -> int | None:
        number: int = context["ti"].xcom_pull(task_ids="plan")
        return number if window_queue.request(engine, number, table.driver) else None

    def withdraw(self, engine: Engine, number: int) -> bool:
        is_unbegun = window_queue.claim(engine, number)
        return is_unbegun or not window_queue.status(engine, number).is_in_hand


class Wait(BaseTrigger):
    """Waits until the requested job has ended, or until nobody has worked on it for `NOBODY_SECONDS`."""

    def __init__(self, number: int, kind: str = BACKFILL) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = number
        self.kind = kind

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

    def _look(self) -> RequestStatus:
        try:
            return STATUS_OF[self.kind](database.connect(settings().control_url), self.number)
        except Unreachable as error:
            # If the database stays unreachable, the driver ends too, and the wait with it.
            return RequestStatus(str(error), is_in_hand=True)
