"""The supervisor's memory: an intent outlives a crash, and a second supervisor starts nothing twice."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest
from sqlalchemy import Engine, select, update

from include.control import database, lease, supervision
from include.control.database import desired, launches
from include.control.decide import State
from include.control.process import Process
from tests.conftest import ROOT

FLOWS = ["bronze.a", "silver.a"]


def settle(engine: Engine):
    return supervision.settle(engine, "main", FLOWS)


def launch(engine: Engine):
    with database.transaction(engine) as connection:
        return connection.execute(select(launches)).one()


def pass_time(engine: Engine, seconds: float) -> None:
    """As if the last intent lay so much further back."""
    with database.transaction(engine) as connection:
        connection.execute(update(launches).values(intended_at=launches.c.intended_at - seconds))


def stop(engine: Engine, *flows: str) -> None:
    with database.transaction(engine) as connection:
        for flow in flows:
            connection.execute(desired.insert().values(flow=flow, state="stopped", reason="a test"))


def test_the_intent_to_start_is_kept_before_anything_is_launched(engine):
    assert settle(engine).start
    assert (launch(engine).attempts, launch(engine).process) == (1, None)


def test_a_supervisor_that_died_between_intent_and_launch_costs_a_timeout_and_no_second_driver(engine):
    assert settle(engine).start
    assert [settle(engine).start for _ in range(3)] == [False] * 3
    pass_time(engine, 170)
    assert settle(engine).state is State.STARTING
    assert not settle(engine).start
    pass_time(engine, 20)
    assert settle(engine).start
    assert launch(engine).attempts == 2


def test_a_launch_that_lives_is_waited_for_and_then_called_stuck_and_never_doubled(engine, sleeper):
    settle(engine)
    supervision.record_launch(engine, "main", Process.of(sleeper().pid))
    assert settle(engine).state is State.STARTING
    pass_time(engine, 10_000)
    decision = settle(engine)
    assert (decision.state, decision.start) == (State.STUCK, False)


def test_a_launch_that_died_backs_off_with_the_sentence_it_ended_with(engine, sleeper):
    settle(engine)
    process = Process.of(sleeper().pid)
    supervision.record_launch(engine, "main", process)
    process.kill()
    supervision.record_failure(engine, "main", "bronze.a: no broker answers")
    decision = settle(engine)
    assert (decision.state, decision.start) == (State.BACKING_OFF, False)
    assert decision.reason.startswith("bronze.a: no broker answers (next start in ")
    pass_time(engine, 30)
    assert settle(engine).start
    assert launch(engine).attempts == 2


def test_a_driver_that_holds_all_its_leases_is_healthy_and_starts_counting_anew_once_it_lasts(engine, holder):
    settle(engine)
    pass_time(engine, 1_000)
    settle(engine)
    supervision.record_failure(engine, "main", "an old story")
    lease.acquire(engine, FLOWS, holder("main"), 3600)
    assert settle(engine).state is State.HEALTHY
    assert launch(engine).attempts == 2, "it holds its leases, but has yet to show that it lasts"
    pass_time(engine, 200)
    assert settle(engine).state is State.HEALTHY
    assert (launch(engine).attempts, launch(engine).failure) == (0, None)


def test_a_driver_that_was_killed_is_started_at_once_though_its_leases_still_run(engine, holder):
    settle(engine)
    driver = holder("main")
    supervision.record_launch(engine, "main", driver.python)
    lease.acquire(engine, FLOWS, driver, 3600)
    pass_time(engine, 200)
    assert settle(engine).state is State.HEALTHY
    driver.python.kill()
    assert settle(engine).start


def test_a_driver_elsewhere_is_healthy_while_its_leases_run(engine, holder):
    driver = holder("main")
    elsewhere = replace(driver, python=replace(driver.python, boot="another"), jvm=replace(driver.jvm, boot="another"))
    lease.acquire(engine, FLOWS, elsewhere, 3600)
    assert settle(engine).state is State.HEALTHY


def test_what_is_not_wanted_is_neither_missed_nor_started(engine, holder):
    stop(engine, *FLOWS)
    decision = settle(engine)
    assert (decision.state, decision.start) == (State.STOPPED, False)
    with database.transaction(engine) as connection:
        connection.execute(desired.delete().where(desired.c.flow == FLOWS[0]))
    lease.acquire(engine, FLOWS[:1], holder("main"), 30)
    assert settle(engine).state is State.HEALTHY


def test_drivers_are_settled_each_for_itself(engine):
    assert settle(engine).start
    assert supervision.settle(engine, "other", ["gold.b"]).start
    assert not settle(engine).start


def test_a_driver_that_dies_soon_after_every_start_backs_off_though_it_was_seen_with_its_leases(engine, holder):
    for _ in range(5):
        if not settle(engine).start:
            break
        driver = holder("main")
        supervision.record_launch(engine, "main", driver.python)
        held = lease.acquire(engine, FLOWS, driver, 30)
        pass_time(engine, 20)
        assert settle(engine).state is State.HEALTHY
        lease.release(engine, held)
        driver.fence()
        supervision.record_failure(engine, "main", "silver.a: the batch cannot be written")
    else:
        pytest.fail("started five times in a row without a pause, and never once called sick")


def test_a_driver_that_ended_without_a_word_is_not_given_the_words_of_the_one_before(engine):
    settle(engine)
    supervision.record_failure(engine, "main", "bronze.a: no broker answers")
    pass_time(engine, 1_000)
    assert settle(engine).start
    pass_time(engine, 31)
    with database.transaction(engine) as connection:
        connection.execute(update(launches).values(process=Process(1, 0.0, "gone").to_json()))
    assert "no broker" not in settle(engine).reason


# Waits for a line on stdin, settles, and says whether it would start the driver.
SUPERVISOR = """
import sys
from include.control import database, supervision

engine = database.connect(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
print(supervision.settle(engine, "main", ["bronze.a"]).start, flush=True)
"""


def test_of_many_supervisors_at_one_moment_one_starts_the_driver(engine):
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, engine.url.render_as_string()],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(5)
    ]
    assert [racer.stdout.readline() for racer in racers] == ["ready\n"] * 5
    for racer in racers:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = sorted(racer.communicate(timeout=60)[0].strip() for racer in racers)
    assert answers == [*["False"] * 4, "True"]
    assert launch(engine).attempts == 1
