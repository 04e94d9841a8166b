"""Jobs that Airflow leaves to the driver of the table's flows, where that runs: no task waits in a process."""

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
from include.control.jobs.backfill_queue import BackfillStatus
from include.control.store import database
from include.errors import Unreachable
from include.maintenance import table_state
from include.maintenance.plan import OPTIMIZE
from include.settings import settings
from include.spec import Table
from include.validation import slices

LOOK_SECONDS = 2
# A driver looks once a second, but may have its hands full with the start of a flow.
NOBODY_SECONDS = 30
# More would keep the streams of the same process from its cores for minutes.
MOST_BYTES_REWRITTEN = 512 * 2**20
WHERE = Param(
    "driver",
    enum=["driver", "job"],
    description="driver: in the one that runs the table's flow, while it lives; job: in a process of its own",
)
BACKFILL, WINDOW = "backfill", "window"
STANDING = {BACKFILL: backfill_queue.standing, WINDOW: window_queue.standing}


class InDriver(BaseBranchOperator):
    """Asks the table's driver, and waits without a slot. What keeps the driver from it, the task `otherwise` does.

    done: the task that follows where the driver has done it. Cleared or killed, it does no harm: the driver goes on.
    """

    kind: str

    def __init__(self, *, table: str, otherwise: str, done: str | None = None, **given: Any) -> None:
        super().__init__(**given)
        self.table = table
        self.otherwise = otherwise
        self.done = done

    def execute(self, context: Context) -> Any:
        table, engine = catalog.load().table(self.table), database.connect(settings().control_url)
        if why := "a job was asked for" if context["params"]["where"] == "job" else self.refusal(engine, table):
            return self._leave(context, why)
        if number := self.ask(engine, table, context):
            print(f"{self.kind} {number} is asked of driver '{table.driver}'")
            self.defer(trigger=Wait(number, self.kind), method_name="answered")
        return self._leave(context, f"driver '{table.driver}' does not run")

    def refusal(self, engine: Engine, table: Table) -> str | None:
        """Why the driver is not to be asked; None where it is."""
        return None

    @abstractmethod
    def ask(self, engine: Engine, table: Table, context: Context) -> int | None:
        """Its number, None where the driver does not live."""

    @abstractmethod
    def withdraw(self, engine: Engine, number: int) -> bool:
        """Ask for it no more; returns False where the driver has begun just now."""

    def answered(self, context: Context, event: dict[str, Any]) -> Any:
        number = event["number"]
        if event["is_done"]:
            print(f"{self.kind} {number} was done by the driver: python -m include.ledger {self.kind}s {self.table}")
            return self.do_branch(context, self.done)
        if not self.withdraw(database.connect(settings().control_url), number):
            self.defer(trigger=Wait(number, self.kind), method_name="answered")
        # It finds what was begun, and ends that.
        return self._leave(context, event["why"])

    def _leave(self, context: Context, why: str) -> Any:
        print(f"{self.table} is left to the task '{self.otherwise}': {why}")
        return self.do_branch(context, self.otherwise)


class BackfillInDriver(InDriver):
    """Of the range that the task `plan` has found."""

    kind = BACKFILL

    def ask(self, engine: Engine, table: Table, context: Context) -> int | None:
        asked = context["ti"].xcom_pull(task_ids="plan")
        range_ = slices.of(table, asked["from"] or None, asked["to"] or None)
        return backfill_queue.ask(engine, table.name, range_, context["run_id"], table.driver)

    def withdraw(self, engine: Engine, number: int) -> bool:
        backfill_queue.end(engine, number)
        return True


class WindowInDriver(InDriver):
    """Of the number that the task `plan` has entered into the calendar; without one, what follows is skipped."""

    kind = WINDOW

    def execute(self, context: Context) -> Any:
        is_planned = context["ti"].xcom_pull(task_ids="plan") is not None
        return super().execute(context) if is_planned else self.do_branch(context, None)

    def refusal(self, engine: Engine, table: Table) -> str | None:
        surveys = table_state.look(engine, table, catalog.load())
        rewritten = sum(found.plan.step(OPTIMIZE).numbers.get("bytes_rewritten", 0) for found in surveys)
        if rewritten <= MOST_BYTES_REWRITTEN:
            return None
        return (
            f"a driver rewrites {MOST_BYTES_REWRITTEN / 2**20:.0f} MB at most, and this is {rewritten / 2**20:,.0f} MB"
        )

    def ask(self, engine: Engine, table: Table, context: Context) -> int | None:
        number: int = context["ti"].xcom_pull(task_ids="plan")
        return number if window_queue.ask(engine, number, table.driver) else None

    def withdraw(self, engine: Engine, number: int) -> bool:
        is_unbegun = window_queue.take(engine, number)
        return is_unbegun or not window_queue.standing(engine, number).is_in_hand


class Wait(BaseTrigger):
    """For the end of what a driver was asked for, or until nobody has been at it for a while."""

    def __init__(self, number: int, kind: str = BACKFILL) -> None:
        super().__init__()
        self.number = number
        self.kind = kind

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "include.orchestration.in_driver.Wait", {"number": self.number, "kind": self.kind}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        said, nobody_seconds = "", 0
        while True:
            # Also before the first look: Airflow does not bear an answer in the second of the question.
            await asyncio.sleep(LOOK_SECONDS)
            now = await asyncio.to_thread(self._look)
            if now.said != said:
                self.log.info("%s %d: %s", self.kind, self.number, now.said)
                said = now.said
            nobody_seconds = 0 if now.is_in_hand else nobody_seconds + LOOK_SECONDS
            if now.is_done or now.failure or nobody_seconds >= NOBODY_SECONDS:
                why = now.failure or f"nobody has been at it for {nobody_seconds} s ({now.said})"
                yield TriggerEvent({"number": self.number, "is_done": now.is_done, "why": why})
                return

    def _look(self) -> BackfillStatus:
        try:
            return STANDING[self.kind](database.connect(settings().control_url), self.number)
        except Unreachable as error:
            # The driver ends, too, where that lasts.
            return BackfillStatus(str(error), is_in_hand=True)
