"""A driver whose flow cannot take over its lease, with real leases and without Spark."""

import os

import pytest
from sqlalchemy import update

from include.control.flows import orders
from include.control.flows.decide import State
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease, process
from include.control.store import database
from include.control.store.schema import leases
from include.control.supervision import supervision
from include.engine.stream.host import Host

FLOW = "silver.readings"


def refuse(pid: int, number: int) -> None:
    raise PermissionError(1, "Operation not permitted")


def outlive(pid: int, number: int) -> None:
    """Does nothing, as SIGKILL does to a process whose disk hangs."""


@pytest.mark.parametrize(
    ("answer", "why"),
    [(refuse, "belongs to user '{user}', and user '{user}' may not end it: end it as"), (outlive, "outlives SIGKILL")],
)
def test_a_former_holder_that_cannot_be_ended_fails_the_flow_and_not_its_driver(
    engine, holder, monkeypatch, answer, why: str
):
    former_holder = holder()
    lease.acquire(engine, [FLOW], former_holder, 30)
    with database.transaction(engine) as connection:
        connection.execute(update(leases).values(expires_at=database.now(connection) - 1))
    monkeypatch.setattr(os, "kill", answer)
    monkeypatch.setattr(process, "KILL_TIMEOUT_SECONDS", 0.2)
    orders.begin(engine, [FLOW], by_hand=False)
    host = Host(None, engine, LeaseRenewer(engine, holder(), 30, pytest.fail), "main")
    host._read_orders([FLOW])
    error = host._start(FLOW, host._orders.of[FLOW], once=False)
    assert f"process {former_holder.jvm.pid} " in str(error)
    assert why.format(user=process._user(os.getpid())) in str(error)
    assert orders.read(engine, "main", [FLOW]).failed == {FLOW}
    decision = supervision.settle(engine, "main", [FLOW]).decisions[FLOW]
    assert (decision.state, decision.start) == (State.BACKING_OFF, True)
    assert str(error) in decision.reason
