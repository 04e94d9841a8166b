"""Commands of the on-call engineer, from each wanted state, once and twice, and their audit."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import Engine, Table, select, text, update

from include.control import commands, skips
from include.control.commands import DESTRUCTIVE, REPEAT_SECONDS, Action, Command
from include.control.flows import orders
from include.control.flows.decide import State
from include.control.flows.observed_flow import Failure
from include.control.leases import lease
from include.control.leases.lease import Lease
from include.control.leases.process import Holder
from include.control.skips import BatchToSkip, Skip
from include.control.store import database, schema
from include.control.store.schema import audits, desired, drivers, releases, resets, runs
from include.control.supervision import supervision
from tests.support.waiting import wait_until

FLOW = "silver.a"
INCURABLE = Failure("column 'bpm' is gone", "DeclarationError", needs_person=True)
RESET = "begins a new generation of its checkpoint at its next start"
DRAIN = "reads what its source holds now, then stops"
ENDS_ALREADY = "nothing done, it reads to the end already"
RUNS = "nothing done, it runs: action stop first"
RESETS = sorted(DESTRUCTIVE - {Action.SKIP, Action.RELEASE, Action.GIVE_UP})

# (action, wanted state): wanted state after it, number of new turns, and answer.
CASES = {
    (Action.RESTART, "running"): ("running", 1, "restarts after the current batch"),
    (Action.RESTART, "draining"): ("draining", 1, "restarts after the current batch"),
    (Action.RESTART, "stopped"): ("stopped", 0, "nothing done, it is stopped: action start"),
    (Action.STOP, "running"): ("stopped", 0, "stops after the current batch"),
    (Action.STOP, "draining"): ("stopped", 0, "stops after the current batch"),
    (Action.STOP, "stopped"): ("stopped", 0, "nothing done, it is stopped"),
    (Action.START, "running"): ("running", 0, "is started"),
    (Action.START, "draining"): ("running", 0, "is started"),
    (Action.START, "stopped"): ("running", 0, "is started"),
    (Action.DRAIN, "running"): ("draining", 0, DRAIN),
    (Action.DRAIN, "draining"): ("draining", 0, ENDS_ALREADY),
    (Action.DRAIN, "stopped"): ("stopped", 0, "nothing done, it is stopped: action catch up reads what has come since"),
    (Action.CATCH_UP, "running"): ("running", 0, "nothing done, it runs and catches up by itself"),
    (Action.CATCH_UP, "draining"): ("draining", 0, ENDS_ALREADY),
    (Action.CATCH_UP, "stopped"): ("draining", 0, DRAIN),
    **{(action, state): (state, 1, RESET) for action in RESETS for state in ("running", "draining", "stopped")},
    (Action.RELEASE, "running"): ("running", 0, RUNS),
    (Action.RELEASE, "draining"): ("draining", 0, RUNS),
    **{(Action.ACKNOWLEDGE, state): (state, 0, "nothing done, it has no alarm") for state in ("running", "stopped")},
    (Action.KEEP_OLD_ROWS, "running"): (
        "running",
        0,
        "nothing done, all its rows are of the definition that it has now",
    ),
    (Action.SKIP, "running"): ("running", 0, "nothing done, no batch of it is planned"),
    (Action.GIVE_UP, "stopped"): ("stopped", 0, "nothing done, a job is given up, and no flow: name the job"),
    (Action.MOVE, "running"): ("running", 0, "nothing done, it moves to no driver: name one"),
    (Action.RELEASE, "stopped"): ("stopped", 0, "VACUUM no longer waits for it, and it has to be rebuilt"),
}


def ask(
    engine: Engine, action: Action, *flows: str, driver: str | None = None, reason: str = "night shift"
) -> list[str]:
    return commands.execute(engine, Command(action, flows or (FLOW,), "ann", reason, driver))


def want(engine: Engine, state: str) -> None:
    with database.transaction(engine) as connection:
        connection.execute(desired.insert().values(flow=FLOW, state=state, reason="a test"))


def rows(engine: Engine, table: Table) -> list:
    with database.transaction(engine) as connection:
        return connection.execute(select(table).order_by(*table.primary_key)).all()


def requested_rows(engine: Engine) -> list:
    """All rows that drivers, the supervisor and VACUUM act upon."""
    column_groups = [desired.c, runs.c, drivers.c, resets.c, releases.c]
    with database.transaction(engine) as connection:
        return [
            connection.execute(
                select(*(column for column in columns if column.name not in ("intended_at", "ends_at")))
            ).all()
            for columns in column_groups
        ]


def fail_flows(engine: Engine, *flows: str) -> None:
    for flow in flows or (FLOW,):
        with database.transaction(engine) as connection:
            orders.lock(connection, [flow])
            connection.execute(update(runs).where(runs.c.flow == flow).values(attempts=4, intended_at=1.0))
        orders.fail(engine, [flow], INCURABLE)


def start_driver(engine: Engine, driver: Holder) -> None:
    """Gives a new driver its lease. The former driver returns that lease first."""
    name = lease.driver_lease("main")
    with database.transaction(engine) as connection:
        former_lease = Lease(name, lease.epoch(connection, name))
    lease.release(engine, [former_lease])
    lease.acquire(engine, [name], driver, 3600)


def is_forgiven(engine: Engine, flow: str = FLOW) -> bool:
    """Whether the supervisor starts the flow at once."""
    [row] = [row for row in rows(engine, runs) if row.flow == flow]
    return (row.failure, row.needs_person, row.attempts) == (None, False, 0)


@pytest.mark.parametrize(("action", "state"), CASES)
def test_each_action_from_each_state_does_what_it_says_and_no_harm_when_it_is_pasted_twice(engine, action, state):
    after, turns, answer = CASES[action, state]
    want(engine, state)
    assert ask(engine, action) == [f"{FLOW}: {answer}"]
    order = orders.read(engine, "main", [FLOW]).of[FLOW]
    assert (order.state, order.turn) == (after, turns)
    assert len(rows(engine, resets)) == (action in RESETS)
    assert len(rows(engine, releases)) == ((action, state) == (Action.RELEASE, "stopped"))
    rows_after_first = requested_rows(engine)
    ask(engine, action)
    assert requested_rows(engine) == rows_after_first


def test_every_action_has_its_cases():
    assert {action for action, _ in CASES} == set(Action)


@pytest.mark.parametrize(("action", "state"), CASES)
def test_whatever_is_to_run_because_somebody_asked_for_it_runs_at_once_however_it_failed(engine, action, state):
    want(engine, state)
    fail_flows(engine)
    [answer] = ask(engine, action)
    does_nothing = "nothing done" in answer or action in (Action.STOP, Action.RELEASE)
    assert is_forgiven(engine) is not does_nothing
    decision = supervision.settle(engine, "main", [FLOW]).decisions[FLOW]
    runs_after = CASES[action, state][0] != "stopped"
    assert decision.start is (runs_after and not does_nothing)


def test_everything_asked_for_is_on_record_also_what_came_to_nothing(engine):
    ask(engine, Action.STOP, "silver.a", "silver.b", reason="moving")
    ask(engine, Action.STOP, "silver.b", reason="moving, really")
    ask(engine, Action.RESTART, "silver.a", driver="main", reason="new jar")
    audit_rows = [(row.who, row.action, row.target, row.reason, row.result) for row in rows(engine, audits)]
    assert audit_rows == [
        ("ann", "stop", "silver.a", "moving", "stops after the current batch"),
        ("ann", "stop", "silver.b", "moving", "stops after the current batch"),
        ("ann", "stop", "silver.b", "moving, really", "nothing done, it is stopped"),
        ("ann", "restart", "driver main", "new jar", "ends after the current batches, and is started again"),
    ]
    times = [row.at for row in rows(engine, audits)]
    with database.transaction(engine) as connection:
        now = database.now(connection)
    assert now - 10 < min(times) <= max(times) <= now


def test_a_stopped_flow_says_in_whose_words(engine):
    ask(engine, Action.STOP, reason="moving to Berlin")
    ask(engine, Action.STOP, reason="another reason")
    decision = supervision.settle(engine, "main", [FLOW]).decisions[FLOW]
    assert (decision.state, decision.reason) == (State.STOPPED, "stopped: moving to Berlin")


@pytest.mark.parametrize("driver", [None, "main"])
def test_a_restart_pasted_twice_is_one_and_a_later_one_is_another(engine, holder, driver: str | None):
    def restarts() -> int:
        driver_orders = orders.read(engine, "main", [FLOW])
        return driver_orders.ends_epoch if driver else driver_orders.of[FLOW].turn

    start_driver(engine, holder())
    ask(engine, Action.RESTART, driver=driver)
    for _ in range(2):
        [answer] = ask(engine, Action.RESTART, driver=driver)
        assert "nothing done, that was asked for " in answer
    assert restarts() == 1
    start_driver(engine, holder())
    with database.transaction(engine) as connection:
        connection.execute(update(audits).values(at=audits.c.at - REPEAT_SECONDS))
    ask(engine, Action.RESTART, driver=driver)
    assert restarts() == 2


def test_the_restart_of_a_driver_forgives_its_flows_and_lets_none_of_them_start_before(engine, holder):
    start_driver(engine, holder())
    fail_flows(engine, "silver.a", "silver.b", "gold.c")
    assert ask(engine, Action.RESTART, "silver.a", "silver.b", driver="main") == [
        "driver main: ends after the current batches, and is started again"
    ]
    assert orders.read(engine, "main", []).ends_epoch == 1
    assert [is_forgiven(engine, flow) for flow in ("silver.a", "silver.b", "gold.c")] == [True, True, False]
    assert {order.turn for order in orders.read(engine, "main", ["silver.a", "silver.b"]).of.values()} == {0}


def test_any_other_action_on_a_driver_is_meant_for_each_of_its_flows(engine):
    answers = ask(engine, Action.STOP, "silver.a", "silver.b", driver="main")
    assert answers == ["silver.a: stops after the current batch", "silver.b: stops after the current batch"]
    assert rows(engine, drivers) == []


def test_a_release_says_who_gave_the_flow_up_and_why_and_the_first_one_stands(engine):
    want(engine, "stopped")
    ask(engine, Action.RELEASE, reason="it is rebuilt on Monday")
    ask(engine, Action.RELEASE, reason="another reason")
    [row] = rows(engine, releases)
    assert (row.flow, row.who, row.reason) == (FLOW, "ann", "it is rebuilt on Monday")


@pytest.mark.parametrize("action", RESETS)
def test_a_reset_says_who_asked_and_whether_the_loss_is_accepted(engine, action: Action):
    ask(engine, action, reason="the topic was shortened")
    [row] = rows(engine, resets)
    assert (row.flow, row.accepts_loss, row.who, row.reason) == (
        FLOW,
        action is Action.ACCEPT_DATA_LOSS,
        "ann",
        "the topic was shortened",
    )
    assert ask(engine, action) == [f"{FLOW}: nothing done, that is asked for already and happens at its next start"]


def test_a_batch_is_skipped_once_with_the_name_of_who_approved_it(engine):
    planned = BatchToSkip(2, 7, "t/0 3 to 4")
    fail_flows(engine)
    command = Command(Action.SKIP, (FLOW,), "ann", "poison", planned=planned, approver="bob")
    assert commands.execute(engine, command) == [f"{FLOW}: leaves out batch 7 of generation 2, which reads t/0 3 to 4"]
    assert is_forgiven(engine)
    assert commands.execute(engine, command) == [f"{FLOW}: nothing done, batch 7 of generation 2 is left out already"]
    [row] = rows(engine, schema.skips)
    assert (row.flow, row.generation, row.batch, row.reads) == (FLOW, 2, 7, "t/0 3 to 4")
    assert skips.of_batch(engine, FLOW, 2, 7) == Skip(7, "ann, approved by bob", "poison")
    assert skips.of_batch(engine, FLOW, 2, 8) is None


def test_a_loss_can_be_accepted_though_a_plain_reset_was_asked_for_and_failed(engine):
    ask(engine, Action.RESET_CHECKPOINT)
    fail_flows(engine)
    ask(engine, Action.ACCEPT_DATA_LOSS)
    [row] = rows(engine, resets)
    assert row.accepts_loss
    assert is_forgiven(engine)


def test_whoever_accepts_a_loss_is_not_overruled_by_a_plain_reset(engine):
    ask(engine, Action.ACCEPT_DATA_LOSS)
    fail_flows(engine)
    ask(engine, Action.RESET_CHECKPOINT)
    [row] = rows(engine, resets)
    assert row.accepts_loss
    assert is_forgiven(engine)


@pytest.mark.parametrize("driver", [None, "main"])
def test_a_restart_after_the_flow_failed_again_is_no_repetition(engine, driver: str | None):
    ask(engine, Action.RESTART, driver=driver)
    fail_flows(engine)
    ask(engine, Action.RESTART, driver=driver)
    assert is_forgiven(engine)


@pytest.mark.parametrize(
    ("action", "driver"), [(Action.RESTART, None), (Action.RESTART, "main"), (Action.RESET_CHECKPOINT, None)]
)
def test_a_double_click_is_one_request(on_postgresql, action: Action, driver: str | None):
    engine = on_postgresql
    table, key = (drivers.c.driver, "main") if driver else (runs.c.flow, FLOW)
    supervision.settle(engine, "main", [FLOW])
    with ThreadPoolExecutor(2) as pool:
        with database.transaction(engine) as connection:
            connection.execute(select(table).where(table == key).with_for_update())
            requests = [pool.submit(ask, engine, action, driver=driver) for _ in range(2)]
            blocked_query = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
            wait_until(lambda: connection.execute(blocked_query).scalar_one() == 2, 2)
        answers = [answer for request in requests for answer in request.result()]
    assert sum("nothing done" in answer for answer in answers) == 1


def test_a_restart_that_did_nothing_is_not_repeated_by_the_next_one(engine: Engine):
    want(engine, "stopped")
    assert ask(engine, Action.RESTART) == [f"{FLOW}: nothing done, it is stopped: action start"]
    ask(engine, Action.START)
    assert ask(engine, Action.RESTART) == [f"{FLOW}: restarts after the current batch"]
