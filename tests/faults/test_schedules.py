"""A flow with a schedule in a real driver: it reads to the end when it is due, and rests beside the others."""

from dataclasses import replace

from sqlalchemy import update

from include.control import orders, schedule
from include.control.decide import State
from include.control.store import database
from include.control.store.schema import ticks
from include.control.supervision import supervision
from include.orchestration.cron import next_tick
from tests.support.flows import wait_for_rows
from tests.support.waiting import wait_until

HOURLY = "0 * * * *"


def test_a_flow_with_a_schedule_reads_what_has_come_when_it_is_due_and_rests_in_between(chain, driver, engine):
    chain.topic.create()
    bronze, silver = chain.bronze, replace(chain.silver, schedule=HOURLY)
    schedules = {bronze.flow: None, silver.flow: HOURLY}

    def hour_passes() -> None:
        with database.transaction(engine) as connection:
            mine = update(ticks).where(ticks.c.flow == silver.flow)
            connection.execute(mine.values(at=ticks.c.at - 3_600))

    def is_at_rest() -> bool:
        state = orders.read(engine, running.name, [silver.flow]).of[silver.flow].state
        return state == "stopped" and running.query(silver) is None

    def follow() -> dict[str, str]:
        return schedule.follow(engine, schedules, next_tick)

    follow()
    with driver(bronze, silver) as running:
        for sent in range(3):
            chain.topic.send(sent)
            wait_for_rows(bronze, sent + 1)
            assert is_at_rest()
            hour_passes()
            assert list(follow()) == [silver.flow]
            wait_for_rows(silver, sent + 1)
            wait_until(is_at_rest, 60)
            decided = supervision.settle(engine, running.name, list(schedules)).decisions[silver.flow]
            assert (decided.state, decided.is_sick) == (State.STOPPED, False)
        assert running.query(bronze).isActive
    chain.assert_silver_holds(chain.topic.messages())
