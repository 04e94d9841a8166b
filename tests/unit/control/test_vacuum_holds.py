"""Registered readers and unreleased flows hold back VACUUM."""

import pytest
from sqlalchemy import Engine, select, update

from include.control import vacuum_holds
from include.control.flows import incidents, resets
from include.control.flows.alarms import AlarmKind
from include.control.flows.resets import Reset
from include.control.store import database
from include.control.store.schema import readers, releases
from include.errors import FlowBroken

TABLE, OTHER, FLOW = "silver.readings", "silver.others", "gold.by_minute"


def release(engine: Engine, flow: str = FLOW, who: str = "ann", reason: str = "it is rebuilt on Monday") -> None:
    with database.transaction(engine) as connection:
        vacuum_holds.release(connection, flow, who, reason)


def current_seconds(engine: Engine) -> float:
    with database.transaction(engine) as connection:
        return database.now(connection)


def test_a_reader_counts_from_now_on_for_its_table_alone(engine: Engine):
    seconds_before = current_seconds(engine)
    vacuum_holds.register(engine, "report", TABLE, version=7, hours=1, requester="ann")
    [(name, version, since)] = vacuum_holds.registered(engine, TABLE)
    assert (name, version) == ("report", 7)
    assert seconds_before <= since <= current_seconds(engine)
    assert vacuum_holds.registered(engine, OTHER) == []


def test_it_counts_for_as_many_hours_as_it_asked_for(engine: Engine):
    vacuum_holds.register(engine, "report", TABLE, version=7, hours=2.5, requester="ann")
    with database.transaction(engine) as connection:
        row = connection.execute(select(readers)).one()
    assert row.ends_at - row.since == pytest.approx(2.5 * 3600)


def test_an_alarm_about_copies_lasts_until_each_reader_has_released_its_hold_or_holds_again(engine: Engine):
    for reader, table in (("report", TABLE), ("export", TABLE), ("other", OTHER)):
        vacuum_holds.register(engine, reader, table, version=7, hours=1, requester="ann")
    with database.transaction(engine) as connection:
        for table in (TABLE, "silver.unread"):
            vacuum_holds.begin_copies_left(connection, "erase 3", table)
    [alarm] = alarms_of(engine)
    assert alarm.reason == "erase 3 took rows of erased subjects out, and export, report may have copies"
    vacuum_holds.register(engine, "report", TABLE, version=9, hours=1, requester="ann")
    assert alarms_of(engine) == [alarm]
    vacuum_holds.unregister(engine, "other", OTHER, requester="ann")
    assert alarms_of(engine) == [alarm]
    vacuum_holds.unregister(engine, "export", TABLE, requester="ann")
    assert alarms_of(engine) == []


def alarms_of(engine: Engine) -> list[incidents.Incident]:
    with database.reading(engine) as connection:
        return [incident for incident in incidents.all_open(connection) if incident.state == AlarmKind.COPIES_LEFT]


def test_a_reader_that_registers_again_moves(engine: Engine):
    vacuum_holds.register(engine, "report", TABLE, version=7, hours=1, requester="ann")
    with database.transaction(engine) as connection:
        connection.execute(update(readers).values(since=1.0, ends_at=2.0))
    vacuum_holds.register(engine, "report", TABLE, version=9, hours=1, requester="ann")
    [(name, version, since)] = vacuum_holds.registered(engine, TABLE)
    assert (name, version) == ("report", 9)
    assert since > 1


def test_one_name_may_read_several_tables_and_a_table_have_several_readers(engine: Engine):
    vacuum_holds.register(engine, "report", TABLE, version=7, hours=1, requester="ann")
    vacuum_holds.register(engine, "report", OTHER, version=3, hours=1, requester="ann")
    vacuum_holds.register(engine, "backup", TABLE, version=5, hours=1, requester="ann")
    assert [(name, version) for name, version, _ in vacuum_holds.registered(engine, TABLE)] == [
        ("backup", 5),
        ("report", 7),
    ]
    assert [(name, version) for name, version, _ in vacuum_holds.registered(engine, OTHER)] == [("report", 3)]


def test_a_reader_whose_time_is_over_holds_nothing_back(engine: Engine):
    vacuum_holds.register(engine, "report", TABLE, version=7, hours=1, requester="ann")
    with database.transaction(engine) as connection:
        connection.execute(update(readers).values(ends_at=database.now(connection) - 1))
    assert vacuum_holds.registered(engine, TABLE) == []


def test_a_reader_lets_go_of_one_table_and_is_told_whether_it_held_it(engine: Engine):
    for table in (TABLE, OTHER):
        vacuum_holds.register(engine, "report", table, version=7, hours=1, requester="ann")
    assert vacuum_holds.unregister(engine, "report", TABLE, "ann") is True
    assert vacuum_holds.unregister(engine, "report", TABLE, "ann") is False
    assert vacuum_holds.registered(engine, TABLE) == []
    assert vacuum_holds.registered(engine, OTHER)


def test_a_flow_is_refused_by_name_once_it_was_released_and_no_other(engine: Engine):
    release(engine)
    vacuum_holds.require_unreleased(engine, "gold.other")
    with pytest.raises(FlowBroken) as refusal:
        vacuum_holds.require_unreleased(engine, FLOW)
    assert refusal.value.error == "RELEASED"
    assert str(refusal.value) == (
        "gold.by_minute: ann released it (it is rebuilt on Monday), so its source may have deleted what it has yet to "
        "read: move its table away, then action reset checkpoint reads all that its source holds now"
    )
    assert vacuum_holds.released(engine) == {FLOW}


def test_of_two_releases_the_first_stands(engine: Engine):
    release(engine)
    with database.transaction(engine) as connection:
        first_releases = connection.execute(select(releases)).all()
    release(engine, who="bob", reason="another reason")
    with database.transaction(engine) as connection:
        assert connection.execute(select(releases)).all() == first_releases


def test_a_flow_that_was_rebuilt_holds_vacuum_back_again_and_no_other_does(engine: Engine):
    release(engine)
    release(engine, flow="gold.other")
    resets.complete(engine, Reset(FLOW, False, "ann", "rebuilt"), generation=2, lost=[])
    vacuum_holds.require_unreleased(engine, FLOW)
    assert vacuum_holds.released(engine) == {"gold.other"}
