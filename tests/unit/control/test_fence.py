"""Takeover of a lease: the former holder is dead before a new one begins, however long fencing takes."""

import os
import signal
import time
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, select, update

from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.lease import Lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import leases
from include.errors import LeaseHeld, SluiceError, Unreachable
from tests.support.waiting import wait_until


def lease_holders(engine: Engine) -> dict[str, tuple[int, Holder]]:
    with database.transaction(engine) as connection:
        rows = connection.execute(select(leases))
        return {row.flow: (row.epoch, Holder.from_json(row.holder)) for row in rows}


@pytest.fixture
def former(engine: Engine, holder: Callable[[], Holder]) -> Holder:
    """The holder of two expired leases. SIGSTOP has stopped its processes."""
    stopped_holder = holder()
    lease.acquire(engine, ["a", "b"], stopped_holder, 30)
    for process in (stopped_holder.jvm, stopped_holder.python):
        os.kill(process.pid, signal.SIGSTOP)
    with database.transaction(engine) as connection:
        connection.execute(update(leases).values(expires_at=database.now(connection) - 1))
    return stopped_holder


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Runs an action once, while a former holder is fenced."""
    original_fence = Holder.fence

    def arrange(action: Callable[[], None]) -> None:
        results = []

        def fence(self: Holder) -> None:
            if not results:
                results.append(action())
            original_fence(self)

        monkeypatch.setattr(Holder, "fence", fence)

    return arrange


def test_ending_a_former_holder_may_take_longer_than_a_transaction_and_holds_up_nobody(
    engine, holder, former, meanwhile
):
    snapshots = []

    def wait_two_seconds() -> None:
        begin = time.monotonic()
        wait_until(lambda: snapshots.append(lease_holders(engine)) or time.monotonic() > begin + 2, 10)
        assert time.monotonic() - begin < 3
        assert former.jvm.is_alive

    meanwhile(wait_two_seconds)
    new_holder = holder()
    assert lease.acquire(engine, ["a", "b"], new_holder, 30) == [Lease("a", 2), Lease("b", 2)]
    assert all(snapshot == {"a": (1, former), "b": (1, former)} for snapshot in snapshots)
    assert not former.jvm.is_alive
    assert not former.python.is_alive
    assert lease_holders(engine) == {"a": (2, new_holder), "b": (2, new_holder)}


def test_ending_a_former_holder_keeps_no_lease_of_its_follower_from_being_renewed(engine, holder, former, meanwhile):
    def expires_at(flow: str) -> float:
        with database.transaction(engine) as connection:
            return connection.execute(select(leases.c.expires_at).where(leases.c.flow == flow)).scalar_one()

    def wait_for_renewal() -> None:
        expiry_before = expires_at("c")
        wait_until(lambda: expires_at("c") > expiry_before, 10)

    halt_reasons: list[str] = []
    renewer = LeaseRenewer(engine, holder(), 1.5, halt_reasons.append)
    renewer.take(["c"])
    renewer.start()
    meanwhile(wait_for_renewal)
    renewer.take(["a", "b"])
    renewer.stop()
    assert halt_reasons == []


def test_a_former_holder_that_cannot_be_ended_keeps_its_leases(engine, holder, former, monkeypatch):
    def fail(self: Holder) -> None:
        raise SluiceError("it outlives SIGKILL")

    monkeypatch.setattr(Holder, "fence", fail)
    with pytest.raises(SluiceError, match="outlives"):
        lease.acquire(engine, ["a", "b"], holder(), 30)
    assert lease_holders(engine) == {"a": (1, former), "b": (1, former)}


def test_whoever_finds_one_lease_taken_meanwhile_takes_none(engine, holder, former, meanwhile):
    faster_holder = holder()

    def acquire_first() -> None:
        with database.transaction(engine) as connection:
            values = {"epoch": 2, "holder": faster_holder.to_json(), "expires_at": database.now(connection) + 30}
            connection.execute(update(leases).where(leases.c.flow == "b").values(values))

    meanwhile(acquire_first)
    with pytest.raises(LeaseHeld, match="^b changed hands at this very moment"):
        lease.acquire(engine, ["a", "b"], holder(), 30)
    assert lease_holders(engine) == {"a": (1, former), "b": (2, faster_holder)}
    assert faster_holder.jvm.is_alive


def test_whoever_finds_a_lease_renewed_meanwhile_takes_none(engine, holder, former, meanwhile):
    def renew() -> None:
        with database.transaction(engine) as connection:
            lease.renew(connection, [Lease("a", 1)], 30)

    meanwhile(renew)
    with pytest.raises(LeaseHeld, match="^a changed hands"):
        lease.acquire(engine, ["b", "a"], holder(), 30)
    assert lease_holders(engine) == {"a": (1, former), "b": (1, former)}


def test_a_server_lost_while_the_former_holder_is_ended_leaves_nothing_half_taken(
    postgresql, on_postgresql, holder, meanwhile
):
    former_holder, new_holder = holder(), holder()
    lease.acquire(on_postgresql, ["a", "b"], former_holder, 0)
    meanwhile(postgresql.stop)
    try:
        with pytest.raises(Unreachable):
            lease.acquire(on_postgresql, ["a", "b"], new_holder, 30)
    finally:
        postgresql.start()
    assert lease_holders(on_postgresql) == {"a": (1, former_holder), "b": (1, former_holder)}
    meanwhile(lambda: None)
    assert lease.acquire(on_postgresql, ["a", "b"], new_holder, 30) == [Lease("a", 2), Lease("b", 2)]
