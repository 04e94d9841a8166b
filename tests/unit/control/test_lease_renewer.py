"""A LeaseRenewer renews while it can, and halts its driver before another driver could begin."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sized
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import psycopg
import pytest
from sqlalchemy import Connection, Engine, event, select

from include.control import lease_renewer
from include.control.flows.orders import Order
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.lease import Lease
from include.control.leases.lock import LockRequest
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.database import BUSY_TIMEOUT_SECONDS
from include.control.store.schema import desired, leases, metadata, runs
from include.errors import LeaseHeld, LeaseLost, SluiceError, Unreachable
from tests.conftest import ROOT
from tests.support.waiting import wait_until

FLOW = "silver.readings"
# The renewing thread raises LeaseLost if the halt returns, which the real halt never does.
ignore_thread_errors = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


def clock() -> float:
    """The time of the database without a connection to it: SQLite uses the clock of this machine."""
    with closing(sqlite3.connect(":memory:")) as connection:
        return connection.execute("SELECT (julianday('now') - 2440587.5) * 86400.0").fetchone()[0]


def expires_at(engine: Engine, flow: str = FLOW) -> float:
    with database.transaction(engine) as connection:
        return connection.execute(select(leases.c.expires_at).where(leases.c.flow == flow)).scalar_one()


@contextmanager
def count_parameters(engine: Engine) -> Iterator[list[int]]:
    """Yields the number of parameters of each statement."""
    values: list[int] = []

    def count(_connection: Connection, _cursor: object, _statement: str, parameters: Sized, *_: object) -> None:
        values.append(len(parameters))

    event.listen(engine, "before_cursor_execute", count)
    try:
        yield values
    finally:
        event.remove(engine, "before_cursor_execute", count)


def passes(renewer: LeaseRenewer, since: Order, flow: str = FLOW) -> bool:
    return renewer.enter(LockRequest(flow, flow, alone=False), lambda: True, since)


class HaltRecorder:
    """Records reasons and times, and ends the thread of the flow, as the real halt ends the process."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
        self.moments: list[float] = []

    def __call__(self, reason: str) -> None:
        self.moments.append(clock())
        self.reasons.append(reason)
        if threading.current_thread() is threading.main_thread():
            raise SystemExit


@pytest.fixture
def halts() -> HaltRecorder:
    return HaltRecorder()


@pytest.fixture
def keep(engine: Engine, halts: HaltRecorder) -> Iterator[Callable[..., LeaseRenewer]]:
    """Acquires a lease for a holder, and renews it: `keep(holder, ttl_seconds)`."""
    renewers: list[LeaseRenewer] = []

    def start(holder: Holder, ttl_seconds: float) -> LeaseRenewer:
        renewers.append(LeaseRenewer(engine, holder, ttl_seconds, halts))
        renewers[-1].take([FLOW])
        renewers[-1].start()
        return renewers[-1]

    yield start
    for renewer in renewers:
        renewer.stop()


@contextmanager
def database_away(engine: Engine) -> Iterator[Callable[[], float]]:
    """Locks everybody else out of the database. Yields a function that still reads the expiry of the lease."""
    if engine.dialect.name == "sqlite":
        connection = sqlite3.connect(engine.url.database, isolation_level=None, timeout=30)
        lock_statement = "BEGIN EXCLUSIVE"
    else:
        connection = psycopg.connect(engine.url.set(drivername="postgresql").render_as_string())
        lock_statement = f"LOCK TABLE {', '.join(metadata.tables)}"
    with closing(connection):
        connection.execute(lock_statement)
        yield lambda: connection.execute("SELECT expires_at FROM lease").fetchone()[0]
        connection.execute("ROLLBACK")


def want(engine: Engine, state: str) -> None:
    with database.transaction(engine) as connection:
        connection.execute(desired.delete())
        connection.execute(desired.insert().values(flow=FLOW, state=state, reason="a test"))


@pytest.fixture
def idle(engine: Engine, holder: Callable[..., Holder], halts: HaltRecorder, monkeypatch) -> LeaseRenewer:
    """Holds a lease, without threads that renew it."""
    monkeypatch.setattr(lease_renewer, "GATE_SECONDS", 0.001)
    renewer = LeaseRenewer(engine, holder(), 6, halts)
    renewer.take([FLOW])
    return renewer


def test_a_wait_before_the_gate_lasts_until_it_is_over_or_the_writer_must_stop(idle):
    answers = iter([False, False, True])
    assert idle.wait(FLOW, lambda: next(answers), lambda: True)
    assert not idle.wait("silver.other", lambda: True, lambda: True)
    assert not idle.wait(FLOW, lambda: True, lambda: False)
    idle.close()
    assert not idle.wait(FLOW, lambda: True, lambda: True)


def test_a_writer_at_the_gate_passes_in_place_of_one_that_has_died(engine, idle, holder, halts):
    job, window = holder(), lease.window_lease(FLOW)
    alone = LeaseRenewer(engine, job, 30, halts)
    alone.take([window])
    assert alone.enter(LockRequest(window, FLOW, alone=True), lambda: True)
    looks = iter([True, True, False])
    assert not idle.enter(LockRequest(FLOW, FLOW, alone=False), lambda: next(looks))
    job.python.kill()
    assert idle.enter(LockRequest(FLOW, FLOW, alone=False), lambda: True)
    assert expires_at(engine, window) == 0


def test_whoever_has_left_keeps_nobody_out_even_if_the_database_was_away_then(engine, idle, holder, halts, monkeypatch):
    assert idle.enter(LockRequest(FLOW, FLOW, alone=False), lambda: True)
    window, looks = lease.window_lease(FLOW), iter([True, False, True])
    alone = LeaseRenewer(engine, holder(), 30, halts)
    alone.take([window])
    request = LockRequest(window, FLOW, alone=True)
    with monkeypatch.context() as away:
        away.setattr(lease, "renew", raise_unreachable)
        idle.leave(FLOW)
    assert not alone.enter(request, lambda: next(looks))
    idle.leave("silver.other")
    assert alone.enter(request, lambda: next(looks))


def raise_unreachable(*_: object) -> None:
    raise Unreachable("the database is away")


def test_a_keeper_that_stops_while_the_database_is_away_lets_its_lease_expire(keep, holder, monkeypatch):
    renewer = keep(holder(), 30)
    with monkeypatch.context() as away:
        away.setattr(lease, "release", raise_unreachable)
        renewer.stop()
    assert not renewer.holds(FLOW)


@pytest.fixture
def check_deadline(idle: LeaseRenewer, monkeypatch) -> Callable[[float], None]:
    """Checks the deadline once, so many seconds after the lease was acquired, and halts if it is over."""
    began = database.boottime()

    def check(seconds: float) -> None:
        with monkeypatch.context() as clocks:
            clocks.setattr(database, "boottime", lambda: idle._stopped.set() or began + seconds)
            idle._stopped.clear()
            idle._watch()

    return check


def test_the_deadline_stands_until_the_last_lease_is_given_back(idle, halts, check_deadline):
    idle.take(["silver.other"])
    idle.give_back(["silver.other"])
    with pytest.raises(SystemExit):
        check_deadline(1_000)
    assert halts.reasons == ["the control database did not answer for 5 s"]
    idle.give_back([FLOW])
    check_deadline(1_000)
    idle.leave(FLOW)
    check_deadline(1_000)
    assert len(halts.reasons) == 1


def test_a_renewal_of_all_leases_postpones_the_deadline(idle, check_deadline, monkeypatch):
    later = database.boottime() + 4
    with monkeypatch.context() as clocks:
        clocks.setattr(database, "boottime", lambda: later)
        idle.leave(FLOW)
    check_deadline(8)
    with pytest.raises(SystemExit):
        check_deadline(12)


def test_a_renewal_of_one_lease_of_two_postpones_no_deadline(idle, monkeypatch):
    idle.take(["silver.other"])
    deadline = idle._deadline
    # Less than half the TTL has passed, so that only the lease at the gate is renewed.
    monkeypatch.setattr(database, "boottime", lambda: deadline - 4)
    assert idle.enter(LockRequest(FLOW, FLOW, alone=False), lambda: True)
    assert idle._deadline == deadline
    idle.give_back(["silver.other"])
    monkeypatch.setattr(database, "boottime", lambda: deadline - 3.5)
    idle.leave(FLOW)
    assert idle.enter(LockRequest(FLOW, FLOW, alone=False), lambda: True)
    assert idle._deadline > deadline


def test_renewals_come_every_third_of_the_ttl_and_ten_times_as_often_while_the_database_is_away(idle, monkeypatch):
    pauses: list[float] = []
    answers = iter([True, False, False, True])

    def wait(seconds: float) -> bool:
        pauses.append(seconds)
        return len(pauses) == 5

    monkeypatch.setattr(lease, "renew", lambda *renewal: next(answers) or raise_unreachable())
    idle._stopped = SimpleNamespace(wait=wait)
    idle._renew_forever()
    assert pauses == [2, 2, 0.2, 0.2, 2]


def test_a_writer_waits_at_the_gate_until_the_database_answers(idle, monkeypatch):
    answers, renew = iter([False, False, True]), lease.renew
    monkeypatch.setattr(lease, "renew", lambda *renewal: renew(*renewal) if next(answers) else raise_unreachable())
    assert idle.enter(LockRequest(FLOW, FLOW, alone=False), lambda: True)


def test_a_lease_outlives_its_ttl_many_times_while_it_is_kept(engine, holder, keep, halts):
    keep(holder(), 1)
    begin = clock()
    wait_until(lambda: clock() > begin + 2.5, 20)
    with pytest.raises(LeaseHeld):
        lease.acquire(engine, [FLOW], holder(), 1)
    assert halts.reasons == []


def test_a_stopped_keeper_gives_its_lease_back(engine, holder, keep):
    keep(holder(), 30).stop()
    assert lease.acquire(engine, [FLOW], holder(), 30) == [Lease(FLOW, 2)]


def test_the_gate_lets_a_wanted_flow_pass_and_renews_its_lease(engine, holder, keep):
    renewer = keep(holder(), 30)
    first_expiry = expires_at(engine)
    wait_until(lambda: clock() > first_expiry - 29.9, 10)
    assert passes(renewer, Order()) is True
    assert expires_at(engine) > first_expiry


def test_the_gate_turns_a_stopped_flow_away_and_lets_it_pass_when_it_is_wanted_again(engine, holder, keep, halts):
    renewer = keep(holder(), 30)
    want(engine, "stopped")
    assert passes(renewer, Order()) is False
    renewer.take(["another flow"])
    assert passes(renewer, Order(), "another flow") is True
    want(engine, "running")
    assert passes(renewer, Order()) is True
    assert halts.reasons == []


def test_the_gate_turns_a_flow_away_that_is_to_start_anew_and_lets_its_next_run_pass(engine, holder, keep, halts):
    renewer = keep(holder(), 30)
    with database.transaction(engine) as connection:
        connection.execute(runs.insert().values(flow=FLOW, turn=1, attempts=0, needs_person=False))
    assert passes(renewer, Order()) is False
    assert passes(renewer, Order(turn=1)) is True
    want(engine, "draining")
    assert passes(renewer, Order(turn=1)) is False
    assert passes(renewer, Order("draining", 1)) is True
    assert halts.reasons == []


def test_the_gate_of_a_stopped_keeper_is_shut(holder, keep):
    renewer = keep(holder(), 30)
    renewer.stop()
    assert passes(renewer, Order()) is False


def test_a_closed_keeper_takes_nothing_more_lets_nobody_in_and_holds_what_it_has(engine, holder, keep):
    renewer = keep(holder(), 30)
    renewer.close()
    assert passes(renewer, Order()) is False
    with pytest.raises(SluiceError, match="^silver.more: not begun any more"):
        renewer.take(["silver.more"])
    with pytest.raises(LeaseHeld):
        lease.acquire(engine, [FLOW], holder(), 30)


def test_a_look_at_the_gate_costs_the_same_however_many_leases_the_driver_holds(engine, holder, halts):
    renewer = LeaseRenewer(engine, holder(), 300, halts)

    def parameter_counts() -> list[int]:
        with count_parameters(engine) as values:
            assert passes(renewer, Order()) is True
            renewer.leave(FLOW)
        return values

    renewer.take([FLOW])
    counts_of_one_lease = parameter_counts()
    renewer.take([f"silver.flow_{number}" for number in range(299)])
    assert parameter_counts() == counts_of_one_lease
    assert halts.reasons == []


def test_all_leases_of_a_driver_are_renewed_and_given_back_by_as_many_statements_as_two(engine, holder):
    few = lease.acquire(engine, ["a", "b"], holder(), 30)
    many = lease.acquire(engine, [f"silver.flow_{number}" for number in range(300)], holder(), 30)

    def statements(held_leases: list[Lease]) -> int:
        with count_parameters(engine) as values:
            with database.transaction(engine) as connection:
                lease.renew(connection, held_leases, 30)
            lease.release(engine, held_leases)
        return len(values)

    assert statements(many) == statements(few)


def test_whoever_looks_at_the_gate_again_and_again_keeps_its_other_leases_too(engine, holder, halts):
    renewer = LeaseRenewer(engine, holder(), 1.5, halts)
    renewer.take([FLOW, "silver.more"])
    begin = clock()
    wait_until(lambda: passes(renewer, Order()) and clock() > begin + 2, 20)
    assert expires_at(engine, "silver.more") > clock()
    assert halts.reasons == []


def test_whoever_lost_another_lease_in_its_sleep_is_halted_at_the_gate_before_it_writes(engine, holder, halts):
    former = holder()
    renewer = LeaseRenewer(engine, former, 1.5, halts)
    renewer.take([FLOW, "silver.more"])
    expiry = expires_at(engine)
    former.fence()
    lease.acquire(engine, ["silver.more"], holder(), 30)
    wait_until(lambda: clock() > expiry - 0.9, 10)
    with pytest.raises(SystemExit):
        passes(renewer, Order())
    assert halts.reasons == ["silver.more was taken over by another driver (this one held epoch 1)"]


def test_a_keeper_that_could_give_nothing_back_halts_nothing(engine, holder, keep, halts):
    renewer = keep(holder(), 2)
    expiry = expires_at(engine)
    with database_away(engine), pytest.raises(Unreachable):
        renewer.give_back([FLOW])
    wait_until(lambda: clock() > expiry, 10)
    assert halts.reasons == []


def test_whoever_was_taken_over_is_halted_at_the_gate_before_it_writes(engine, holder, keep, halts):
    former = holder()
    renewer = keep(former, 30)
    former.fence()
    lease.acquire(engine, [FLOW], holder(), 30)
    with pytest.raises(SystemExit):
        passes(renewer, Order())
    assert halts.reasons == [f"{FLOW} was taken over by another driver (this one held epoch 1)"]


def test_a_gate_whose_halt_comes_back_still_lets_nobody_pass(engine, holder):
    former = holder()
    reasons: list[str] = []
    renewer = LeaseRenewer(engine, former, 30, reasons.append)
    renewer.take([FLOW])
    former.fence()
    lease.acquire(engine, [FLOW], holder(), 30)
    with pytest.raises(LeaseLost):
        passes(renewer, Order())
    assert len(reasons) == 1


@ignore_thread_errors
def test_whoever_was_taken_over_is_halted_by_the_next_renewal_without_a_batch(engine, holder, keep, halts):
    former = holder()
    keep(former, 1.5)
    former.fence()
    lease.acquire(engine, [FLOW], holder(), 30)
    wait_until(lambda: halts.reasons, 10)
    assert halts.reasons[0] == f"{FLOW} was taken over by another driver (this one held epoch 1)"


def test_nobody_notices_a_database_that_is_away_for_less_than_half_a_ttl(engine, holder, keep, halts):
    renewer = keep(holder(), 3)
    with database_away(engine):
        begin = clock()
        wait_until(lambda: clock() > begin + 1.3, 10)
    assert passes(renewer, Order()) is True
    renewed_expiry = expires_at(engine)
    wait_until(lambda: expires_at(engine) > renewed_expiry, 20)
    assert halts.reasons == []


def test_a_gate_waits_while_the_database_is_away(engine, holder, keep, halts):
    renewer = keep(holder(), 20)
    results: list[bool] = []
    with database_away(engine):
        flow = threading.Thread(target=lambda: results.append(passes(renewer, Order())), daemon=True)
        flow.start()
        begin = clock()
        # SQLite waits this long for its lock, so that the first try has failed.
        wait_until(lambda: clock() > begin + BUSY_TIMEOUT_SECONDS + 0.5, 20)
        assert results == []
    wait_until(lambda: results, 20)
    assert results == [True]
    assert halts.reasons == []


def test_a_database_that_stays_away_halts_the_driver_before_its_lease_is_over(engine, holder, keep, halts):
    keep(holder(), 2)
    first_expiry = expires_at(engine)
    # After a renewal, the deadline is that of a renewed lease.
    wait_until(lambda: expires_at(engine) > first_expiry, 10)
    with database_away(engine) as read_expiry:
        expiry = read_expiry()
        wait_until(lambda: halts.reasons, 10)
    assert halts.reasons[0] == "the control database did not answer for 2 s"
    assert halts.moments[0] < expiry


def test_a_process_that_slept_between_acquisition_and_keeping_is_halted_before_its_lease_is_over(engine, holder, halts):
    renewer = LeaseRenewer(engine, holder(), 2, halts)
    renewer.take([FLOW])
    expiry = expires_at(engine)
    with database_away(engine):
        wait_until(lambda: clock() > expiry - 0.8, 10)
        renewer.start()
        wait_until(lambda: halts.reasons, 10)
    renewer.stop()
    assert halts.moments[0] < expiry


@pytest.fixture
def slow_renewals(engine: Engine) -> Iterator[None]:
    """Delays the return of each renewal by 0.8 s after the database has set the expiry."""

    def delay(_connection: Connection) -> None:
        if threading.current_thread() is not threading.main_thread():
            begin = clock()
            wait_until(lambda: clock() > begin + 0.8, 10)

    event.listen(engine, "commit", delay)
    yield
    event.remove(engine, "commit", delay)


@pytest.mark.usefixtures("slow_renewals")
def test_a_renewal_that_takes_its_time_leaves_no_deadline_behind_the_expiry(engine, holder, keep, halts):
    keep(holder(), 2)
    first_expiry = expires_at(engine)
    wait_until(lambda: expires_at(engine) > first_expiry, 10)
    with database_away(engine) as read_expiry:
        expiry = read_expiry()
        wait_until(lambda: halts.reasons, 10)
    assert halts.moments[0] < expiry


def test_a_lease_that_is_taken_later_postpones_nothing_for_those_that_were_not_renewed(engine, holder, halts):
    renewer = LeaseRenewer(engine, holder(), 2, halts)
    renewer.take([FLOW])
    expiry = expires_at(engine)
    wait_until(lambda: clock() > expiry - 1.2, 10)
    renewer.take(["silver.more"])
    with database_away(engine):
        renewer.start()
        wait_until(lambda: halts.reasons, 10)
    renewer.stop()
    assert halts.moments[0] < expiry


# A driver that renews a lease and answers each line with the result of the gate. Its halt ends the process.
DRIVER = """
import os, sys
from include.control.store import database
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.lock import LockRequest
from include.control.flows.orders import Order
from include.control.leases.process import Holder

engine = database.connect(sys.argv[1])
ttl_seconds = float(sys.argv[2])
renewer = LeaseRenewer(engine, Holder.here("asleep", os.getpid()), ttl_seconds, lambda reason: os._exit(6))
renewer.take(["silver.readings"])
renewer.start()
print("kept", flush=True)
for line in sys.stdin:
    append = LockRequest("silver.readings", "silver.readings", alone=False)
    print(renewer.enter(append, lambda: True, Order()), flush=True)
"""


@pytest.fixture
def driver(engine: Engine) -> Iterator[subprocess.Popen]:
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, engine.url.render_as_string(), "1.5"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "kept\n"
    yield process
    process.kill()
    process.wait()
    process.stdin.close()
    process.stdout.close()


def test_a_driver_that_was_asleep_beyond_its_lease_is_dead_when_the_next_one_may_write(engine, holder, driver):
    os.kill(driver.pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_STOPPED, 10)
    with database.transaction(engine) as connection:
        connection.execute(leases.update().values(expires_at=database.now(connection) - 1))
    assert lease.acquire(engine, [FLOW], holder(), 30) == [Lease(FLOW, 2)]
    assert driver.wait(10) == -signal.SIGKILL


def test_a_driver_that_wakes_up_overtaken_from_elsewhere_ends_itself_before_it_writes(engine, holder, driver):
    os.kill(driver.pid, signal.SIGSTOP)
    expiry = expires_at(engine)
    wait_until(lambda: clock() > expiry, 10)
    with database.transaction(engine) as connection:
        holder_json = connection.execute(select(leases.c.holder)).scalar_one()
        boot = Holder.from_json(holder_json).python.boot
        connection.execute(leases.update().values(holder=holder_json.replace(boot, "another machine")))
    assert lease.acquire(engine, [FLOW], holder(), 0.5) == [Lease(FLOW, 2)]
    driver.stdin.write("may I?\n")
    driver.stdin.flush()
    os.kill(driver.pid, signal.SIGCONT)
    assert driver.wait(10) == 6
    assert driver.stdout.read() == ""


OTHER_FLOW = "silver.readings.late"


def enters_alone(renewer: LeaseRenewer, flow: str, tries: int) -> bool:
    """Whether the flow has the table to itself after so many looks at the gate."""
    looks = iter([True] * tries)
    return renewer.enter(LockRequest(flow, FLOW, alone=True), lambda: next(looks, False))


def test_a_driver_does_not_end_itself_for_a_lease_that_it_could_not_release(engine, idle, monkeypatch):
    idle.take([OTHER_FLOW])
    assert enters_alone(idle, FLOW, tries=1)
    with monkeypatch.context() as outage:
        outage.setattr(database, "transaction", raise_unreachable)
        idle.leave(FLOW)
        with pytest.raises(Unreachable):
            idle.give_back([FLOW])
    assert not enters_alone(idle, OTHER_FLOW, tries=1)
    now_seconds = database.now
    monkeypatch.setattr(database, "now", lambda connection: now_seconds(connection) + 3_600)
    assert enters_alone(idle, OTHER_FLOW, tries=2)
    assert idle._holder.jvm.is_alive
    assert idle._holder.python.is_alive


def test_a_flow_waits_for_another_one_of_its_driver_whose_lease_seems_to_have_expired(engine, idle, monkeypatch):
    idle.take([OTHER_FLOW])
    assert enters_alone(idle, FLOW, tries=1)
    now_seconds = database.now
    monkeypatch.setattr(database, "now", lambda connection: now_seconds(connection) + 3_600)
    assert not enters_alone(idle, OTHER_FLOW, tries=3)
    assert idle._holder.jvm.is_alive
    assert idle._holder.python.is_alive
    idle.leave(FLOW)
    assert enters_alone(idle, OTHER_FLOW, tries=1)


def test_a_database_that_cannot_be_opened_is_named_with_its_setting(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'missing' / 'control.db'}"
    with pytest.raises(Unreachable) as failure:
        database.connect(url)
    assert str(failure.value) == (
        f"SLUICE_CONTROL_URL is {url}, which does not answer (unable to open database file): start that database, or "
        f"correct it"
    )
