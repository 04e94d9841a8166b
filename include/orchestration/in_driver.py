"""Backfills that Airflow leaves to the driver of the table's flows, where that runs: no task waits in a process."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from airflow.providers.standard.operators.branch import BaseBranchOperator
from airflow.sdk import Context
from airflow.triggers.base import BaseTrigger, TriggerEvent

from include import catalog
from include.control import database, requests
from include.control.requests import Standing
from include.declaration import slices
from include.errors import Unreachable
from include.settings import settings

LOOK_SECONDS = 2
# A driver looks once a second, but may have its hands full with the start of a flow.
NOBODY_SECONDS = 30


class InDriver(BaseBranchOperator):
    """Asks the table's driver, and waits without a slot. What keeps the driver from it, the task `otherwise` does.

    Cleared or killed, it does no harm: the driver goes on.
    """

    def __init__(self, *, table: str, otherwise: str, **given: Any) -> None:
        super().__init__(**given)
        self.table = table
        self.otherwise = otherwise

    def execute(self, context: Context) -> Any:
        asked = context["ti"].xcom_pull(task_ids="plan")
        table = catalog.load().table(self.table)
        range_ = slices.of(table, asked["from"] or None, asked["to"] or None)
        if context["params"]["where"] != "driver":
            return self._leave(context, "a job was asked for")
        engine = database.connect(settings().control_url)
        if number := requests.ask(engine, table.name, range_, context["run_id"], table.driver):
            print(f"backfill {number} is asked of driver '{table.driver}'")
            self.defer(trigger=Wait(number), method_name="answered")
        return self._leave(context, f"driver '{table.driver}' does not run")

    def answered(self, context: Context, event: dict[str, Any]) -> Any:
        number = event["number"]
        if event["is_done"]:
            print(f"backfill {number} was done by the driver: python -m include.ledger backfills {self.table}")
            return self.do_branch(context, None)
        # It finds what was begun, and ends that.
        requests.end(database.connect(settings().control_url), number)
        return self._leave(context, event["why"])

    def _leave(self, context: Context, why: str) -> Any:
        print(f"{self.table} is left to the task '{self.otherwise}': {why}")
        return self.do_branch(context, self.otherwise)


class Wait(BaseTrigger):
    """For the end of a backfill that a driver was asked for, or until nobody has been at it for a while."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "include.orchestration.in_driver.Wait", {"number": self.number}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        said, nobody_seconds = "", 0
        while True:
            # Also before the first look: Airflow does not bear an answer in the second of the question.
            await asyncio.sleep(LOOK_SECONDS)
            now = await asyncio.to_thread(self._look)
            if now.said != said:
                self.log.info("backfill %d: %s", self.number, now.said)
                said = now.said
            nobody_seconds = 0 if now.is_in_hand else nobody_seconds + LOOK_SECONDS
            if now.is_done or now.failure or nobody_seconds >= NOBODY_SECONDS:
                why = now.failure or f"nobody has been at it for {nobody_seconds} s ({now.said})"
                yield TriggerEvent({"number": self.number, "is_done": now.is_done, "why": why})
                return

    def _look(self) -> Standing:
        try:
            return requests.standing(database.connect(settings().control_url), self.number)
        except Unreachable as error:
            # The driver ends, too, where that lasts.
            return Standing(str(error), is_in_hand=True)
