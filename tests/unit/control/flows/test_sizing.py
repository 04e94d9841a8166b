"""What is decided about the executors of a driver, what the driver is told, and what is kept of it."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import Engine, select, update

from include.control.flows import orders, sizing
from include.control.flows.scale import Batch, Decision, Load, Reason
from include.control.flows.sizing import LEAST_GAP_SECONDS, PAST_SECONDS
from include.control.store import database
from include.control.store.schema import audits, driver_sizes, scale_decisions
from include.errors import UsageError
from include.settings import from_environment

BATCHES = tuple(Batch(rows, 0.5 + rows / 1_000, 1) for rows in (500, 1_000, 2_000, 4_000, 8_000))
BUSY = Load("bronze.events", 3_000.0, 100_000, 8, BATCHES)
IDLE = replace(BUSY, arrivals=10.0, backlog=0)


def settle(engine: Engine, *loads: Load, bounds: tuple[int, int] = (1, 6)) -> Decision | None:
    sizing.declare(engine, {"main": bounds})
    return sizing.settle(engine, "main", bounds, 600.0, loads)


def minutes_pass(engine: Engine, minutes: float = 1) -> None:
    with database.transaction(engine) as connection:
        connection.execute(update(scale_decisions).values(at=scale_decisions.c.at - 60 * minutes))


def told(engine: Engine, driver: str = "main") -> int | None:
    return orders.read(engine, driver, []).executors


def audited(engine: Engine) -> list[tuple[str, str, str, bool]]:
    with database.reading(engine) as connection:
        rows = connection.execute(select(audits).order_by(audits.c.number)).all()
    return [(row.who, row.action, row.target, row.has_effect) for row in rows]


def test_a_driver_begins_with_the_fewest_and_one_whose_executors_are_not_declared_is_told_no_number(engine: Engine):
    assert told(engine) is None
    sizing.declare(engine, {"main": (2, 6)})
    assert (told(engine), told(engine, "other")) == (2, None)
    sizing.declare(engine, {"main": (1, 6)})
    assert told(engine) == 2, "only a decision changes it"


def test_two_verdicts_make_it_larger_and_a_quiet_quarter_of_an_hour_makes_it_smaller(engine: Engine):
    assert settle(engine, BUSY).reason is Reason.MORE_SEEN_ONCE
    minutes_pass(engine)
    assert settle(engine, BUSY).reason is Reason.MORE
    assert told(engine) == 5
    for _ in range(14):
        minutes_pass(engine)
        assert settle(engine, IDLE).reason is Reason.LESS_NOT_YET
    minutes_pass(engine)
    assert settle(engine, IDLE).reason is Reason.LESS
    assert told(engine) == 1


def test_two_runs_of_the_supervisor_at_once_are_one_verdict(engine: Engine):
    settle(engine, BUSY)
    minutes_pass(engine, 0.9 * LEAST_GAP_SECONDS / 60)
    assert settle(engine, BUSY) is None
    assert told(engine) == 1


def test_each_decision_that_differs_is_in_the_audit_with_the_number_of_its_inputs(engine: Engine):
    for load in (IDLE, IDLE, BUSY, BUSY, BUSY):
        settle(engine, load)
        minutes_pass(engine)
    before = ("scaling", "scale", "driver main")
    # KEEPS UP, MORE SEEN ONCE, MORE, KEEPS UP.
    assert audited(engine) == [(*before, False), (*before, False), (*before, True), (*before, False)]
    with database.reading(engine) as connection:
        results = connection.execute(select(audits.c.result).order_by(audits.c.number)).scalars().all()
    (decision,) = [decision for decision in sizing.decisions(engine, "main", 10) if decision.reason is Reason.MORE]
    assert results[2] == f"executors 1 to 5: MORE, decision {decision.number}"


def test_a_stored_decision_is_made_again_from_its_inputs(engine: Engine):
    for load in (IDLE, BUSY, BUSY):
        settle(engine, load)
        minutes_pass(engine)
    newest, *earlier = stored = sizing.decisions(engine, "main", 10)
    assert len(stored) == 3 and all(decision.is_replayed for decision in stored)
    assert (newest.size_before, newest.size, newest.reason) == (1, 5, Reason.MORE)
    assert newest.inputs.loads == (BUSY,)
    assert len(newest.inputs.verdicts) == 2
    # Another build, or another hand.
    with database.transaction(engine) as connection:
        connection.execute(
            update(scale_decisions).where(scale_decisions.c.number == newest.number).values(size=newest.size + 1)
        )
    assert not sizing.decisions(engine, "main", 1)[0].is_replayed
    assert sizing.decisions(engine, "other", 10) == []
    assert json.loads(json.dumps(earlier[0].as_json()))["inputs"]["loads"][0]["flow"] == "bronze.events"


def test_the_past_is_kept_for_half_an_hour_and_news_for_longer(engine: Engine):
    for load in (IDLE, IDLE, IDLE):
        settle(engine, load)
        minutes_pass(engine)
    minutes_pass(engine, PAST_SECONDS / 60)
    decision = settle(engine, BUSY)
    assert decision.inputs.verdicts == ()
    assert len(sizing.decisions(engine, "main", 10)) == 2


def test_a_driver_says_what_it_has_and_of_how_many_cores(engine: Engine):
    sizing.report(engine, "main", 3, 2)
    assert sizing.sizes(engine) == {}
    settle(engine, IDLE)
    sizing.report(engine, "main", 3, 2)
    size = sizing.sizes(engine)["main"]
    assert (size.size, size.running) == (1, 3)
    assert size.words.startswith("driver 'main' is to have 1 executor, and has 3: it keeps up")
    minutes_pass(engine)
    assert settle(engine, IDLE).inputs.cores == 2


def test_a_driver_that_is_no_longer_declared_is_left_to_the_settings_of_spark(engine: Engine):
    settle(engine, IDLE)
    sizing.declare(engine, {"main": (1, 6)})
    assert told(engine) == 1
    sizing.declare(engine, {})
    assert told(engine) is None
    with database.reading(engine) as connection:
        assert connection.execute(select(driver_sizes)).all() == []


def test_bounds_are_declared_by_driver():
    config = from_environment({"SLUICE_EXECUTORS": "main=1-3, heavy.two=2-10", "SLUICE_CATCH_UP_SECONDS": "90"})
    assert config.executors == {"main": (1, 3), "heavy.two": (2, 10)}
    assert config.catch_up_seconds == 90
    assert from_environment({}).executors == {}


@pytest.mark.parametrize("word", ["main", "main=3", "main=0-3", "main=3-1", "main=1-x", "=1-3"])
def test_bounds_that_are_none_are_refused(word: str):
    with pytest.raises(UsageError, match="write each driver once, with the fewest and the most executors"):
        from_environment({"SLUICE_EXECUTORS": f"other=1-2 {word}"})


def test_a_driver_with_two_bounds_is_refused():
    with pytest.raises(UsageError, match="'main=2-5': write each driver once"):
        from_environment({"SLUICE_EXECUTORS": "main=1-3 main=2-5"})
