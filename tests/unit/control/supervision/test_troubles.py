"""One account of what is wrong: a trouble is all that has one cause, and the worst comes first."""

import json
import os

import pytest
from sqlalchemy import Engine, update

from include.catalog import Catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import incidents, orders
from include.control.flows.alarms import AlarmKind
from include.control.flows.observed_flow import Failure
from include.control.leases.process import Process, boot_id
from include.control.store import database
from include.control.store.schema import drivers
from include.control.supervision import supervision, troubles
from include.control.supervision.troubles import Trouble, headline
from include.spec import Delta, Kafka, Table

RAW = Table(name="bronze.raw", comment="raw", source=Kafka("raw"))
READINGS = Table(name="silver.readings", comment="readings", source=Delta("bronze.raw"), schema="a INT", transform=dict)
TABLES = Catalog({table.name: table for table in (RAW, READINGS)})
FLOWS = [RAW.name, READINGS.name]
# No process has started with this machine.
DEAD = Process(os.getpid(), 0.0, boot_id()).to_json()


def found(engine: Engine) -> list[Trouble]:
    """What is wrong with flows, without the supervisor that does not run here."""
    return [trouble for trouble in troubles.troubles(engine, TABLES) if trouble.cause != supervision.SUPERVISOR]


def driver_that_died(engine: Engine) -> None:
    supervision.settle(engine, "main", FLOWS)
    with database.transaction(engine) as connection:
        connection.execute(update(drivers).values(handle=DEAD, log="/log/driver-main.log"))
    supervision.settle(engine, "main", FLOWS, dead_handle=DEAD)


def test_a_driver_that_died_is_one_trouble_with_all_its_flows(engine):
    driver_that_died(engine)
    [trouble] = found(engine)
    assert (trouble.kind, trouble.cause, trouble.flows) == ("BACKING OFF", "driver main", tuple(FLOWS))
    assert trouble.command.startswith("sluice restart --driver main --reason 'incident ")
    assert (trouble.driver, trouble.log, len(trouble.incidents)) == ("main", "/log/driver-main.log", 2)
    json.dumps(trouble.as_json())


def test_a_flow_that_needs_a_person_comes_before_what_passes_by_itself(engine):
    driver_that_died(engine)
    orders.fail(engine, [READINGS.name], Failure("the schema does not fit", "SCHEMA", True))
    supervision.settle(engine, "main", FLOWS, dead_handle=DEAD)
    broken, backing_off = found(engine)
    assert (broken.kind, broken.flows, broken.needs_person) == ("BROKEN", (READINGS.name,), True)
    assert (backing_off.flows, backing_off.needs_person) == ((RAW.name,), False)
    assert headline([broken, backing_off], 2).startswith("1 of 2 flows needs you: BROKEN silver.readings. ")


def test_a_table_that_is_still_late_when_its_cause_is_gone_is_named_itself(engine):
    with database.transaction(engine) as connection:
        incidents.begin(connection, RAW.name, "BROKEN", "why")
        incidents.begin(connection, READINGS.name, "NOT FRESH", "12 min old", cause=RAW.name)
    [trouble] = found(engine)
    assert (trouble.title, trouble.flows) == ("BROKEN bronze.raw (2 flows)", tuple(FLOWS))
    with database.transaction(engine) as connection:
        incidents.end(connection, RAW.name)
    [trouble] = found(engine)
    assert (trouble.title, trouble.flows) == ("NOT FRESH silver.readings", (READINGS.name,))


def test_what_is_wrong_is_in_the_account_before_the_supervisor_has_seen_it(engine):
    supervision.settle(engine, "main", FLOWS)
    orders.fail(engine, [READINGS.name], Failure("the schema does not fit", "SCHEMA", True))
    [trouble] = found(engine)
    assert (trouble.kind, trouble.incidents) == ("BROKEN", ())


def test_a_supervisor_that_is_not_at_work_is_a_trouble(engine):
    [trouble] = troubles.troubles(engine, TABLES)
    assert (trouble.kind, trouble.needs_person, trouble.command) == ("DEAD", True, "sluice up")
    supervision.heartbeat(engine)
    assert troubles.troubles(engine, TABLES) == []


def test_whoever_takes_on_one_flow_takes_on_all_that_has_the_same_cause(engine):
    driver_that_died(engine)
    commands.execute(engine, Command(Action.ACKNOWLEDGE, (RAW.name,), "ada", "I look", hours=1))
    [trouble] = found(engine)
    assert (trouble.acknowledged_by, trouble.acknowledged_reason, trouble.needs_person) == ("ada", "I look", False)
    assert trouble.acknowledged_until and trouble.acknowledged_until > trouble.began_at


@pytest.mark.parametrize("kind", [AlarmKind.WINDOW_FAILED, AlarmKind.INVALID_DEFINITION])
def test_a_trouble_of_a_table_names_the_flows_that_write_it(engine, kind: AlarmKind):
    with database.transaction(engine) as connection:
        incidents.begin(connection, READINGS.name, kind, "why")
    [trouble] = found(engine)
    assert (trouble.kind, trouble.flows) == (kind, (READINGS.name,))


def test_a_platform_where_nothing_is_wrong_needs_nobody():
    assert headline([], 9) == "None of 9 flows needs you."
