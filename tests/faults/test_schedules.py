"""A scheduled flow in a real driver reads to the end of its source when it is due, and then stops."""

from dataclasses import replace

from sqlalchemy import update

from include.airflow.supervisor.reconcile import next_tick
from include.control import schedule
from include.control.flows import orders
from include.control.flows.decide import State
from include.control.store import database
from include.control.store.schema import ticks
from include.control.supervision import supervision
from tests.support.flows import wait_for_rows
from tests.support.waiting import wait_until

HOURLY = "0 * * * *"


def test_a_flow_with_a_schedule_reads_what_has_come_when_it_is_due_and_rests_in_between(chain, driver, engine):
    chain.topic.create()
    bronze, silver = chain.bronze, replace(chain.silver, schedule=HOURLY)
    schedules = {bronze.flow: None, silver.flow: HOURLY}

    def advance_one_hour() -> None:
        with database.transaction(engine) as connection:
            statement = update(ticks).where(ticks.c.flow == silver.flow)
            connection.execute(statement.values(at=ticks.c.at - 3_600))

    def is_stopped() -> bool:
        state = orders.read(engine, running_driver.name, [silver.flow]).of[silver.flow].state
        return state == "stopped" and running_driver.query(silver) is None

    def follow() -> dict[str, str]:
        return schedule.follow(engine, schedules, next_tick)

    follow()
    with driver(bronze, silver) as running_driver:
        for number in range(3):
            chain.topic.send(number)
            wait_for_rows(bronze, number + 1)
            assert is_stopped()
            advance_one_hour()
            assert list(follow()) == [silver.flow]
            wait_for_rows(silver, number + 1)
            wait_until(is_stopped, 60)
            decision = supervision.settle(engine, running_driver.name, list(schedules)).decisions[silver.flow]
            assert (decision.state, decision.is_unhealthy) == (State.STOPPED, False)
        assert running_driver.query(bronze).isActive
    chain.assert_silver_holds(chain.topic.messages())
