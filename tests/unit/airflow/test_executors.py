"""The supervisor decides about the executors of declared drivers that run, and of no others."""

import re
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, select, update

from include import catalog
from include.airflow.supervisor import executors
from include.catalog import Catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders, placements, sizing
from include.control.flows.rebalance import Move, rebalance
from include.control.flows.scale import Batch, Load, Reason
from include.control.leases import lease
from include.control.store import database
from include.control.store.schema import audits, scale_decisions
from include.errors import UsageError
from include.lake import locations
from include.monitoring import load, query_progress
from include.settings import settings
from include.spec import Delta, Flow, Kafka

BRONZE = Flow(name="bronze.events", source=Kafka("events"), comment="")
SILVER = Flow(name="silver.readings", source=Delta("bronze.events"), comment="", driver="other")
TABLES = Catalog({table.name: table for table in (BRONZE, SILVER)})
CLICKS, ORDERS = (Flow(name=f"bronze.{topic}", source=Kafka(topic), comment="") for topic in ("clicks", "orders"))
FOUR = Catalog({table.name: table for table in (BRONZE, CLICKS, ORDERS, SILVER)})


@pytest.fixture
def control(home, own_settings, silent_port) -> Engine:
    own_settings(SLUICE_KAFKA=f"127.0.0.1:{silent_port}", SLUICE_CONTROL_URL=f"sqlite:///{home / 'control.db'}")
    return database.connect(settings().control_url)


def sizes(engine: Engine) -> dict[str, int]:
    return {driver: size.size for driver, size in sizing.sizes(engine).items()}


def test_a_platform_that_declares_no_executors_decides_nothing(control: Engine, holder):
    lease.acquire(control, [BRONZE.flow], holder(), 60)
    executors.scale_all(control, TABLES)
    assert (sizes(control), sizing.decisions(control, None, 10)) == ({}, [])


def test_a_driver_has_its_fewest_before_it_starts_and_a_decision_once_it_runs(control: Engine, holder, own_settings):
    own_settings(SLUICE_EXECUTORS="main=2-4")
    executors.scale_all(control, TABLES)
    assert orders.read(control, "main", []).executors == 2
    assert sizing.decisions(control, None, 10) == []
    lease.acquire(control, [BRONZE.flow, SILVER.flow], holder(), 60)
    executors.scale_all(control, TABLES)
    (decision,) = sizing.decisions(control, None, 10)
    # No broker answers.
    assert (decision.driver, decision.size, decision.reason) == ("main", 2, Reason.UNKNOWN)
    assert [load.flow for load in decision.inputs.loads] == [BRONZE.flow]


def test_a_driver_that_no_flow_has_is_named(control: Engine, own_settings, caplog):
    own_settings(SLUICE_EXECUTORS="mian=1-3")
    executors.scale_all(control, TABLES)
    assert "SLUICE_EXECUTORS names the driver 'mian', which no flow has" in caplog.text


def test_a_driver_that_cannot_be_judged_keeps_its_size_and_the_others_get_theirs(
    control: Engine, holder, own_settings, caplog
):
    own_settings(SLUICE_EXECUTORS="main=2-4 other=3-5")
    lease.acquire(control, [BRONZE.flow, SILVER.flow], holder(), 60)
    # The table of the progress is damaged, which both of them read.
    (locations.table_path(query_progress.TABLE) / "_delta_log").mkdir(parents=True)
    (locations.table_path(query_progress.TABLE) / "_delta_log" / f"{0:020}.json").write_text("no JSON")
    executors.scale_all(control, TABLES)
    assert sizes(control) == {"main": 2, "other": 3}
    assert caplog.text.count("stay as they are") == 2


# By flow, the rows per second that arrive. An executor takes 700 of them.
ARRIVALS = {BRONZE.flow: 800.0, CLICKS.flow: 1_400.0, ORDERS.flow: 1_800.0, SILVER.flow: 70.0}


@pytest.fixture
def lack(control: Engine, holder, own_settings, monkeypatch) -> Callable[..., None]:
    """Let the driver `main` need 5.7 executors of at most two for a quarter of an hour. `other` has room for 3.9."""
    batches = tuple(Batch(rows, 0.5 + rows / 1_000, 1) for rows in (500, 1_000, 2_000, 4_000, 8_000))
    monkeypatch.setattr(
        load, "measure", lambda flows: tuple(Load(flow.flow, ARRIVALS[flow.flow], 0, None, batches) for flow in flows)
    )
    monkeypatch.setattr(catalog, "load", lambda: FOUR)
    lease.acquire(control, list(ARRIVALS), holder(), 60)

    def run(**variables: str) -> None:
        own_settings(SLUICE_EXECUTORS="main=2-2 other=4-4", **variables)
        for _ in range(16):
            executors.scale_all(control, placements.place(control, FOUR))
            with database.transaction(control) as connection:
                connection.execute(update(scale_decisions).values(at=scale_decisions.c.at - 60))

    return run


def moves(engine: Engine) -> list[tuple[str, str]]:
    with database.reading(engine) as connection:
        rows = connection.execute(select(audits).where(audits.c.action == "move").order_by(audits.c.number)).all()
    return [(row.target, row.reason) for row in rows if row.who == sizing.REQUESTER]


def test_a_flow_moves_from_a_driver_that_lacks_executors_to_one_with_room(control: Engine, lack):
    lack(SLUICE_REBALANCE="on")
    ((flow, reason),) = moves(control)
    assert flow == ORDERS.flow
    assert [placed.flow for placed in placements.place(control, FOUR).drivers()["other"]] == [ORDERS.flow, SILVER.flow]
    # The same decisions, made again from what is stored of them, give the same move.
    numbers = [int(number) for number in re.findall("[0-9]+", reason.split("decisions")[1])]
    stored = [decision for decision in sizing.decisions(control, None, 100) if decision.number in numbers]
    again = rebalance({decision.driver: decision.replayed for decision in stored}, ARRIVALS)
    assert again == Move(ORDERS.flow, "main", "other", again.need)


def test_the_next_flow_moves_only_when_all_decisions_are_about_those_that_stayed(control: Engine, lack, monkeypatch):
    lack(SLUICE_REBALANCE="on")
    lack(SLUICE_REBALANCE="on")
    assert [flow for flow, _ in moves(control)] == [ORDERS.flow]
    monkeypatch.setattr(executors, "QUIET_SECONDS", -1)
    lack(SLUICE_REBALANCE="on")
    assert [flow for flow, _ in moves(control)] == [ORDERS.flow, BRONZE.flow]


def test_a_flow_that_a_person_has_moved_stays_where_it_is(control: Engine, lack, monkeypatch):
    monkeypatch.setattr(executors, "QUIET_SECONDS", -1)
    for driver in ("other", "main"):
        commands.execute(control, Command(Action.MOVE, (ORDERS.flow,), "ann", "a test", to=driver))
    lack(SLUICE_REBALANCE="on")
    assert moves(control) and ORDERS.flow not in [flow for flow, _ in moves(control)]


def test_flows_move_only_where_a_person_has_switched_that_on(control: Engine, lack):
    lack()
    assert moves(control) == []


def test_a_move_that_fails_leaves_the_sizes_and_the_rest_of_the_supervisors_work(
    control: Engine, lack, monkeypatch, caplog
):
    def fail(*_: object) -> None:
        raise UsageError("its file is gone")

    monkeypatch.setattr(commands, "execute", fail)
    lack(SLUICE_REBALANCE="on")
    assert "no flow moves to another driver: UsageError('its file is gone')" in caplog.text
    assert sizes(control) == {"main": 2, "other": 4}
