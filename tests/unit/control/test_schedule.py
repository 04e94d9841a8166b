"""A flow with a schedule rests in between, catches up once when due, and stays stopped if a person stops it."""

from sqlalchemy import Engine, select, update

from include.control import commands, schedule
from include.control.commands import Action, Command
from include.control.flows import orders
from include.control.flows.decide import State
from include.control.store import database
from include.control.store.schema import audits, ticks
from include.control.supervision import supervision

FLOW, OTHER = "silver.a", "bronze.a"
HOURLY = {FLOW: "0 * * * *", OTHER: None}
HOUR = 3_600


def next_hour(cron: str, after: float) -> float:
    assert cron == HOURLY[FLOW]
    return after // HOUR * HOUR + HOUR


def follow(engine: Engine, schedules: dict[str, str | None] = HOURLY) -> dict[str, str]:
    return schedule.follow(engine, schedules, next_hour)


def pass_hours(engine: Engine, hours: int = 1) -> None:
    """Moves the times of all schedules this many hours back."""
    with database.transaction(engine) as connection:
        connection.execute(update(ticks).values(at=ticks.c.at - hours * HOUR))


def state(engine: Engine, flow: str = FLOW) -> str:
    return orders.read(engine, "main", [flow]).of[flow].state


def ask(engine: Engine, action: Action) -> str:
    return commands.execute(engine, Command(action, (FLOW,), "ada", "a test"))[0]


def audit(engine: Engine) -> list[tuple[str, str, str]]:
    with database.transaction(engine) as connection:
        rows = connection.execute(select(audits).order_by(audits.c.number))
        return [(row.who, row.action, row.target) for row in rows]


def bring_to_rest(engine: Engine) -> None:
    follow(engine)
    assert state(engine) == "stopped"


def test_a_flow_with_a_schedule_rests_until_it_is_due_and_reads_to_the_end_then(engine):
    assert follow(engine) == {FLOW: "stops after the current batch"}
    assert follow(engine) == {}
    pass_hours(engine)
    assert follow(engine) == {FLOW: "reads what its source holds now, then stops"}
    assert state(engine) == "draining"
    orders.end_drain(engine, FLOW)
    assert follow(engine) == {}
    assert state(engine) == "stopped"
    assert audit(engine) == [("schedule", "stop", FLOW), ("schedule", "catch up", FLOW)]


def test_a_flow_without_one_is_left_alone(engine):
    bring_to_rest(engine)
    assert state(engine, OTHER) == "running"
    assert schedule.follow(engine, {OTHER: None}, next_hour) == {}


def test_times_that_were_missed_are_caught_up_once(engine):
    bring_to_rest(engine)
    pass_hours(engine, 5)
    assert follow(engine)
    orders.end_drain(engine, FLOW)
    assert follow(engine) == {}


def test_a_time_that_comes_while_it_reads_is_caught_up_when_it_is_done(engine):
    bring_to_rest(engine)
    pass_hours(engine)
    follow(engine)
    pass_hours(engine)
    assert follow(engine) == {}
    orders.end_drain(engine, FLOW)
    assert follow(engine) == {FLOW: "reads what its source holds now, then stops"}


def test_a_person_who_stops_it_wins_over_its_schedule_until_somebody_starts_it(engine):
    bring_to_rest(engine)
    assert ask(engine, Action.STOP) == f"{FLOW}: is started by its schedule no more"
    assert ask(engine, Action.STOP) == f"{FLOW}: nothing done, it is stopped"
    pass_hours(engine, 5)
    assert follow(engine) == {}
    assert state(engine) == "stopped"
    ask(engine, Action.START)
    assert follow(engine) == {FLOW: "reads what its source holds now, then stops"}
    orders.end_drain(engine, FLOW)
    assert follow(engine) == {}
    pass_hours(engine)
    assert follow(engine) != {}


def test_a_person_who_stops_it_while_it_reads_wins_too(engine):
    bring_to_rest(engine)
    pass_hours(engine)
    follow(engine)
    assert ask(engine, Action.STOP) == f"{FLOW}: stops after the current batch"
    pass_hours(engine, 5)
    assert follow(engine) == {}


def test_a_flow_that_a_person_lets_catch_up_goes_on_by_its_schedule(engine):
    bring_to_rest(engine)
    assert ask(engine, Action.CATCH_UP) == f"{FLOW}: reads what its source holds now, then stops"
    orders.end_drain(engine, FLOW)
    pass_hours(engine)
    assert follow(engine) != {}


def test_a_flow_whose_schedule_is_taken_out_runs_all_the_time(engine):
    bring_to_rest(engine)
    assert follow(engine, {FLOW: None, OTHER: None}) == {FLOW: "is started"}
    assert state(engine) == "running"
    ask(engine, Action.STOP)
    assert follow(engine, {FLOW: None, OTHER: None}) == {}
    assert state(engine) == "stopped"


def test_a_flow_that_ran_all_the_time_reads_to_the_end_when_it_gets_a_schedule(engine):
    ask(engine, Action.START)
    assert follow(engine) == {FLOW: "reads what its source holds now, then stops"}


def test_at_rest_it_is_stopped_and_not_sick_and_its_driver_is_started_only_when_it_is_due(engine):
    bring_to_rest(engine)
    result = supervision.settle(engine, "side", [FLOW])
    decision = result.decisions[FLOW]
    assert (decision.state, decision.is_unhealthy, result.launch_since) == (State.STOPPED, False, None)
    assert decision.reason == "stopped: its schedule is '0 * * * *'"
    pass_hours(engine)
    follow(engine)
    assert supervision.settle(engine, "side", [FLOW]).launch_since is not None


def test_a_person_who_stops_it_while_the_supervisor_looks_at_the_schedules_wins(engine):
    bring_to_rest(engine)
    pass_hours(engine, 5)

    def stop_meanwhile(cron: str, after: float) -> float:
        ask(engine, Action.STOP)
        return after

    assert schedule.follow(engine, HOURLY, stop_meanwhile) == {}
    assert state(engine) == "stopped"
