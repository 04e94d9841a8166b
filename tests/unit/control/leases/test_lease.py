"""Leases: one holder at a time, whoever asks, and however the former holder ended."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine, select, update

from include.control.leases import lease
from include.control.leases.lease import Lease
from include.control.leases.process import Holder, Process
from include.control.store import database
from include.control.store.schema import leases
from include.errors import LeaseHeld, LeaseLost
from tests.conftest import ROOT
from tests.support.waiting import wait_until

FLOW = "silver.readings"


def rows(engine: Engine) -> dict:
    with database.transaction(engine) as connection:
        return {row.flow: row for row in connection.execute(select(leases))}


def expire(engine: Engine, seconds_ago: float) -> None:
    """Lets all leases expire this many seconds ago by the clock of the database. Below 0, they expire later."""
    with database.transaction(engine) as connection:
        connection.execute(update(leases).values(expires_at=database.now(connection) - seconds_ago))


def renew(engine: Engine, held_leases: list[Lease], ttl_seconds: float = 30) -> None:
    with database.transaction(engine) as connection:
        lease.renew(connection, held_leases, ttl_seconds)


def test_a_free_lease_is_had_at_once_for_as_long_as_asked(engine, holder):
    assert lease.acquire(engine, [FLOW], holder(), 30) == [Lease(FLOW, 1)]
    with database.transaction(engine) as connection:
        remaining_seconds = connection.execute(select(leases.c.expires_at)).scalar_one() - database.now(connection)
    assert 25 < remaining_seconds <= 30


def test_a_lease_that_a_live_process_holds_is_refused_with_its_holder_and_nothing_changes(engine, holder):
    other = holder("nightly")
    lease.acquire(engine, [FLOW], other, 30)
    rows_before = rows(engine)
    with pytest.raises(LeaseHeld) as refusal:
        lease.acquire(engine, [FLOW], holder(), 30)
    assert str(refusal.value).startswith(
        f"{FLOW} is already written by driver 'nightly' on here (pid {other.python.pid}, JVM {other.jvm.pid}), whose "
        f"lease runs for another "
    )
    assert str(refusal.value).endswith(" s: stop that driver first, or leave it to its work")
    assert rows(engine) == rows_before
    assert other.python.is_alive
    assert other.jvm.is_alive


@pytest.mark.parametrize(("dead", "left"), [("python", "jvm"), ("jvm", "python")])
def test_a_dead_holder_is_followed_at_once_and_what_is_left_of_it_is_ended_first(engine, holder, dead: str, left: str):
    former = holder()
    lease.acquire(engine, [FLOW], former, 3600)
    getattr(former, dead).kill()
    assert lease.acquire(engine, [FLOW], holder(), 30) == [Lease(FLOW, 2)]
    assert not getattr(former, left).is_alive


def test_a_stopped_process_whose_lease_ran_out_is_killed_by_whoever_takes_over(engine, sleeper, holder):
    python, jvm = sleeper(), sleeper()
    former = Holder("here", "asleep", Process.of(python.pid), Process.of(jvm.pid))
    [held_lease] = lease.acquire(engine, [FLOW], former, 1)
    for child in (python, jvm):
        os.kill(child.pid, signal.SIGSTOP)
        wait_until(lambda child=child: psutil.Process(child.pid).status() == psutil.STATUS_STOPPED, 10)
    with database.transaction(engine) as connection:
        expiry = connection.execute(select(leases.c.expires_at)).scalar_one()

    def is_over() -> bool:
        with database.transaction(engine) as connection:
            return database.now(connection) > expiry

    wait_until(is_over, 10)
    assert lease.acquire(engine, [FLOW], holder(), 30) == [Lease(FLOW, 2)]
    assert python.wait(10) == -signal.SIGKILL
    assert jvm.wait(10) == -signal.SIGKILL
    with pytest.raises(LeaseLost):
        renew(engine, [held_lease])


def test_a_holder_elsewhere_is_waited_for_until_its_lease_is_over(engine, holder):
    former = holder()
    former.fence()
    holder_json = former.to_json().replace(former.python.boot, "another machine")
    lease.acquire(engine, [FLOW], Holder.from_json(holder_json), 3600)
    with pytest.raises(LeaseHeld):
        lease.acquire(engine, [FLOW], holder(), 30)
    expire(engine, 0.1)
    assert lease.acquire(engine, [FLOW], holder(), 0.5) == [Lease(FLOW, 2)]


def test_a_clock_of_the_database_that_is_set_forward_gives_away_no_lease_that_is_in_use(engine, holder, monkeypatch):
    monkeypatch.setattr(lease, "SIGHTING_SECONDS", 0.05)
    local = holder()
    elsewhere = Holder.from_json(local.to_json().replace(local.python.boot, "another machine"))
    held_leases = lease.acquire(engine, [FLOW, "other"], elsewhere, 1)
    real_now = database.now
    monkeypatch.setattr(database, "now", lambda connection: real_now(connection) + 3_600)
    renewal = threading.Timer(0.3, renew, [engine, held_leases, 1])
    renewal.start()
    with pytest.raises(LeaseHeld):
        lease.acquire(engine, [FLOW], holder(), 1)
    renewal.join()
    # It renews no more, so it has ended itself by the time that another follows it.
    monkeypatch.setattr(database, "now", lambda connection: real_now(connection) + 7_200)
    began_at = database.boottime()
    sightings = lease.Sightings(1)
    lease.fence_former_holders(engine, [FLOW], holder(), sightings)
    assert 1 <= database.boottime() - began_at < 3
    lease.fence_former_holders(engine, ["other"], holder(), sightings)
    assert database.boottime() - began_at < 3, "what was seen counts for all leases of the holder"


def test_all_leases_are_had_or_none(engine, holder):
    lease.acquire(engine, ["b"], holder(), 30)
    with pytest.raises(LeaseHeld, match="^b is already written"):
        lease.acquire(engine, ["a", "b", "c"], holder(), 30)
    assert set(rows(engine)) == {"b"}
    assert lease.acquire(engine, ["a", "c"], holder(), 30) == [Lease("a", 1), Lease("c", 1)]


def test_the_epoch_grows_at_every_acquisition_however_the_one_before_ended(engine, holder):
    first, second, third = holder(), holder(), holder()
    lease.release(engine, lease.acquire(engine, [FLOW], first, 30))
    lease.acquire(engine, [FLOW], second, 30)
    second.fence()
    lease.acquire(engine, [FLOW], third, 30)
    expire(engine, 1)
    assert lease.acquire(engine, [FLOW], holder(), 30) == [Lease(FLOW, 4)]


def test_a_released_lease_is_free_at_once_and_its_former_holder_lives_on(engine, holder):
    former = holder()
    lease.release(engine, lease.acquire(engine, [FLOW], former, 3600))
    assert lease.acquire(engine, [FLOW], holder(), 30) == [Lease(FLOW, 2)]
    assert former.python.is_alive
    assert former.jvm.is_alive


def test_a_released_lease_cannot_be_renewed(engine, holder):
    held_leases = lease.acquire(engine, [FLOW], holder(), 30)
    lease.release(engine, held_leases)
    with pytest.raises(LeaseLost):
        renew(engine, held_leases)


def test_giving_back_a_lease_that_was_lost_does_not_free_it(engine, holder):
    former = holder()
    held_leases = lease.acquire(engine, [FLOW], former, 30)
    former.fence()
    lease.acquire(engine, [FLOW], holder(), 30)
    lease.release(engine, held_leases)
    with pytest.raises(LeaseHeld):
        lease.acquire(engine, [FLOW], holder(), 30)


def test_one_lost_lease_leaves_the_others_unrenewed(engine, holder):
    former = holder()
    held_leases = lease.acquire(engine, ["a", "b"], former, 30)
    expiry_before = rows(engine)["a"].expires_at
    former.fence()
    lease.acquire(engine, ["b"], holder(), 30)
    with pytest.raises(LeaseLost, match=r"^b was taken over by another driver \(this one held epoch 1\)$"):
        renew(engine, held_leases, 3600)
    assert rows(engine)["a"].expires_at == expiry_before


def test_a_process_that_holds_the_lease_already_does_not_end_itself(engine, holder):
    running_holder = holder()
    lease.acquire(engine, [FLOW], running_holder, 30)
    expire(engine, 1)
    assert lease.acquire(engine, [FLOW], running_holder, 30) == [Lease(FLOW, 2)]
    assert running_holder.python.is_alive
    assert running_holder.jvm.is_alive


def test_expiry_is_judged_by_the_clock_of_the_database(engine, holder, monkeypatch: pytest.MonkeyPatch):
    lease.acquire(engine, [FLOW], holder(), 30)
    real_time = time.time
    monkeypatch.setattr(time, "time", lambda: real_time() + 86_400)
    with pytest.raises(LeaseHeld):
        lease.acquire(engine, [FLOW], holder(), 30)
    monkeypatch.setattr(time, "time", lambda: real_time() - 86_400)
    expire(engine, 0.1)
    assert lease.acquire(engine, [FLOW], holder(), 30) == [Lease(FLOW, 2)]


def test_holders_are_those_whose_lease_still_runs(engine, holder):
    live_holder = holder()
    lease.acquire(engine, ["a"], holder(), 30)
    expire(engine, 1)
    lease.release(engine, lease.acquire(engine, ["b"], holder(), 30))
    lease.acquire(engine, ["c"], live_holder, 30)
    with database.transaction(engine) as connection:
        assert lease.holders(connection) == {"c": live_holder}


# Waits for a line of input, acquires the lease, prints the result, and lives until stdin ends.
CONTENDER = """
import os, sys
from include.control.leases import lease
from include.control.store import database
from include.control.leases.process import Holder
from include.errors import LeaseHeld

engine = database.connect(sys.argv[1])
me = Holder.here("contender", os.getpid())
print("ready", flush=True)
sys.stdin.readline()
try:
    print(lease.acquire(engine, ["a", "b"], me, 30)[0].epoch, flush=True)
except LeaseHeld:
    print("held", flush=True)
sys.stdin.read()
"""


def contender(engine: Engine, *command_prefix: str) -> subprocess.Popen:
    return subprocess.Popen(
        [*command_prefix, sys.executable, "-c", CONTENDER, engine.url.render_as_string()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process: subprocess.Popen) -> str:
    process.stdin.write("go\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def end(processes: list[subprocess.Popen]) -> None:
    for process in processes:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


@pytest.mark.parametrize("former", ["nobody", "dead", "expired"])
def test_of_many_processes_that_ask_at_one_moment_one_gets_the_lease(engine, holder, former: str):
    if former != "nobody":
        former_holder = holder()
        lease.acquire(engine, ["a", "b"], former_holder, 30)
        former_holder.fence() if former == "dead" else expire(engine, 1)
    # Forked processes import nothing, so that all of them ask at the same instant.
    fork = multiprocessing.get_context("fork")
    barrier, end_event, answers = fork.Barrier(6), fork.Event(), fork.Queue()

    def contend() -> None:
        process_engine = database.connect.__wrapped__(engine.url.render_as_string())
        barrier.wait(30)
        try:
            answers.put(lease.acquire(process_engine, ["a", "b"], Holder.here("contender", os.getpid()), 30)[0].epoch)
        except LeaseHeld:
            answers.put("held")
        end_event.wait(30)

    contenders = [fork.Process(target=contend) for _ in range(6)]
    for process in contenders:
        process.start()
    results = [answers.get(timeout=30) for _ in contenders]
    end_event.set()
    for process in contenders:
        process.join(30)
    assert sorted(results, key=str) == [1 if former == "nobody" else 2, *["held"] * 5]


def has_namespaces() -> bool:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return Path("/proc/self/ns/pid").exists() and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.skipif(not has_namespaces(), reason="needs the right to make a process namespace")
def test_a_live_holder_in_another_container_of_this_machine_is_not_taken_for_dead(engine, holder):
    container = contender(engine, "unshare", "--pid", "--fork", "--mount-proc")
    try:
        assert container.stdout.readline().strip() == "ready"
        assert answer(container) == "1"
        with pytest.raises(LeaseHeld):
            lease.acquire(engine, ["a"], holder(), 30)
    finally:
        end([container])
