"""Taking a lease over: the former holder is dead before anybody follows it, however long that takes."""

import os
import signal
import time
from collections.abc import Callable

import pytest
from sqlalchemy import Engine, select, update

from include.control import lease
from include.control.lease import Lease
from include.control.lease_renewer import LeaseRenewer
from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import leases
from include.errors import LeaseHeld, SluiceError, Unreachable
from tests.support.waiting import wait_until


def held_by(engine: Engine) -> dict[str, tuple[int, Holder]]:
    with database.transaction(engine) as connection:
        rows = connection.execute(select(leases))
        return {row.flow: (row.epoch, Holder.from_json(row.holder)) for row in rows}


@pytest.fixture
def former(engine: Engine, holder: Callable[[], Holder]) -> Holder:
    """Holds two leases that have expired, and is asleep."""
    asleep = holder()
    lease.acquire(engine, ["a", "b"], asleep, 30)
    for process in (asleep.jvm, asleep.python):
        os.kill(process.pid, signal.SIGSTOP)
    with database.transaction(engine) as connection:
        connection.execute(update(leases).values(expires_at=database.now(connection) - 1))
    return asleep


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Has something happen once, while a former holder is being ended."""
    end = Holder.fence

    def arrange(happen: Callable[[], None]) -> None:
        happened = []

        def fence(self: Holder) -> None:
            if not happened:
                happened.append(happen())
            end(self)

        monkeypatch.setattr(Holder, "fence", fence)

    return arrange


def test_ending_a_former_holder_may_take_longer_than_a_transaction_and_holds_up_nobody(
    engine, holder, former, meanwhile
):
    seen = []

    def last_long() -> None:
        begin = time.monotonic()
        wait_until(lambda: seen.append(held_by(engine)) or time.monotonic() > begin + 2, 10)
        assert time.monotonic() - begin < 3
        assert former.jvm.is_alive

    meanwhile(last_long)
    me = holder()
    assert lease.acquire(engine, ["a", "b"], me, 30) == [Lease("a", 2), Lease("b", 2)]
    assert all(one == {"a": (1, former), "b": (1, former)} for one in seen)
    assert not former.jvm.is_alive
    assert not former.python.is_alive
    assert held_by(engine) == {"a": (2, me), "b": (2, me)}


def test_ending_a_former_holder_keeps_no_lease_of_its_follower_from_being_renewed(engine, holder, former, meanwhile):
    def until(flow: str) -> float:
        with database.transaction(engine) as connection:
            return connection.execute(select(leases.c.expires_at).where(leases.c.flow == flow)).scalar_one()

    def last_long() -> None:
        before = until("c")
        wait_until(lambda: until("c") > before, 10)

    halted: list[str] = []
    keeper = LeaseRenewer(engine, holder(), 1.5, halted.append)
    keeper.take(["c"])
    keeper.start()
    meanwhile(last_long)
    keeper.take(["a", "b"])
    keeper.stop()
    assert halted == []


def test_a_former_holder_that_cannot_be_ended_keeps_its_leases(engine, holder, former, monkeypatch):
    def outlive(self: Holder) -> None:
        raise SluiceError("it outlives SIGKILL")

    monkeypatch.setattr(Holder, "fence", outlive)
    with pytest.raises(SluiceError, match="outlives"):
        lease.acquire(engine, ["a", "b"], holder(), 30)
    assert held_by(engine) == {"a": (1, former), "b": (1, former)}


def test_whoever_finds_one_lease_taken_meanwhile_takes_none(engine, holder, former, meanwhile):
    quicker = holder()

    def come_first() -> None:
        with database.transaction(engine) as connection:
            values = {"epoch": 2, "holder": quicker.to_json(), "expires_at": database.now(connection) + 30}
            connection.execute(update(leases).where(leases.c.flow == "b").values(values))

    meanwhile(come_first)
    with pytest.raises(LeaseHeld, match="^b changed hands at this very moment"):
        lease.acquire(engine, ["a", "b"], holder(), 30)
    assert held_by(engine) == {"a": (1, former), "b": (2, quicker)}
    assert quicker.jvm.is_alive


def test_whoever_finds_a_lease_renewed_meanwhile_takes_none(engine, holder, former, meanwhile):
    def renew() -> None:
        with database.transaction(engine) as connection:
            lease.renew(connection, [Lease("a", 1)], 30)

    meanwhile(renew)
    with pytest.raises(LeaseHeld, match="^a changed hands"):
        lease.acquire(engine, ["b", "a"], holder(), 30)
    assert held_by(engine) == {"a": (1, former), "b": (1, former)}


def test_a_server_lost_while_the_former_holder_is_ended_leaves_nothing_half_taken(
    postgresql, on_postgresql, holder, meanwhile
):
    asleep, me = holder(), holder()
    lease.acquire(on_postgresql, ["a", "b"], asleep, 0)
    meanwhile(postgresql.stop)
    try:
        with pytest.raises(Unreachable):
            lease.acquire(on_postgresql, ["a", "b"], me, 30)
    finally:
        postgresql.start()
    assert held_by(on_postgresql) == {"a": (1, asleep), "b": (1, asleep)}
    meanwhile(lambda: None)
    assert lease.acquire(on_postgresql, ["a", "b"], me, 30) == [Lease("a", 2), Lease("b", 2)]
