"""An acknowledged alarm is silent until the acknowledgement expires or another alarm begins."""

import pytest
from sqlalchemy import Engine, update

from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import incidents
from include.control.flows.decide import Decision, State
from include.control.store import database
from include.control.store.schema import acknowledgements as acknowledgement_rows

FLOW = "silver.orders"


def begin(engine: Engine, state: State, error: str = "") -> None:
    with database.transaction(engine) as connection:
        incidents.begin(connection, FLOW, state, "why", error)


def acknowledge(engine: Engine, hours: float = 2) -> str:
    [result] = commands.execute(engine, Command(Action.ACKNOWLEDGE, (FLOW,), "ada", "known since monday", hours=hours))
    return result


def is_acknowledged(engine: Engine, state: State, error: str = "") -> bool:
    with database.transaction(engine) as connection:
        acknowledgement = incidents.valid_acknowledgements(connection).get(FLOW)
    return acknowledgement is not None and acknowledgement.covers(Decision(state, "why", error=error))


def test_an_alarm_that_is_acknowledged_says_by_whom_and_until_when_and_is_told_to_nobody(engine: Engine):
    begin(engine, State.BROKEN, "SCHEMA_CHANGED")
    assert acknowledge(engine).startswith(f"{FLOW}: its alarm BROKEN is acknowledged by ada until 20")
    assert is_acknowledged(engine, State.BROKEN, "SCHEMA_CHANGED")
    assert incidents.unsent(engine) == []


def test_what_has_no_alarm_cannot_be_acknowledged(engine: Engine):
    assert acknowledge(engine) == f"{FLOW}: nothing done, it has no alarm"
    assert not is_acknowledged(engine, State.BROKEN)


@pytest.mark.parametrize(
    ("first", "then", "is_covered"),
    [
        ((State.BROKEN, "SCHEMA_CHANGED"), (State.BROKEN, "KAFKA_DATA_LOSS"), False),
        ((State.BACKING_OFF, ""), (State.STUCK, ""), True),
        ((State.BACKING_OFF, ""), (State.BROKEN, "SCHEMA_CHANGED"), False),
        ((State.LAGGING, ""), (State.STUCK, ""), False),
        ((State.LAGGING, ""), (State.LAGGING, ""), True),
    ],
)
def test_it_covers_no_other_trouble_that_a_person_has_to_know_of(engine: Engine, first, then, is_covered):
    begin(engine, *first)
    acknowledge(engine)
    assert is_acknowledged(engine, *then) is is_covered


def test_it_ends_when_the_flow_is_well_again(engine: Engine):
    begin(engine, State.BACKING_OFF)
    acknowledge(engine)
    with database.transaction(engine) as connection:
        incidents.end(connection, FLOW)
    assert not is_acknowledged(engine, State.BACKING_OFF)
    begin(engine, State.BACKING_OFF)
    assert not is_acknowledged(engine, State.BACKING_OFF)


def test_it_ends_at_its_time_and_a_second_one_lasts_longer(engine: Engine):
    begin(engine, State.BACKING_OFF)
    acknowledge(engine)
    with database.transaction(engine) as connection:
        connection.execute(update(acknowledgement_rows).values(ends_at=database.now(connection) - 1))
    assert not is_acknowledged(engine, State.BACKING_OFF)
    acknowledge(engine, hours=3)
    assert is_acknowledged(engine, State.BACKING_OFF)
