"""Drivers whose machines, clocks, threads and network are virtual, over the real code of leases and the real control
database. Each action does what the action of that name does in docs/protocol/Lease.tla.

A thread of a driver is a greenlet. It stops where it waits, and before and after each transaction, until an action lets
it go on.
"""

import itertools
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from greenlet import GreenletExit, getcurrent, greenlet
from sqlalchemy import Engine

from include.control import lease_renewer
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease, process
from include.control.leases.lock import LockRequest
from include.control.leases.process import Holder, Process
from include.control.store import database
from include.control.store.schema import leases
from include.errors import LeaseHeld, LeaseLost, Unreachable
from include.maintenance import table_survey
from include.settings import HALT_SECONDS, LEASE_CHECK_INTERVAL
from include.spec import Delta, Flow

TTL_SECONDS = 30.0
TABLE = "silver.orders"
FLOWS = {
    flow.flow: flow
    for flow in (Flow(name=TABLE, branch=branch, comment="", source=Delta("bronze.orders")) for branch in "ab")
}
FLOW, OTHER_FLOW = FLOWS
WINDOW = lease.window_lease(TABLE)
LEASES = FLOW, OTHER_FLOW, WINDOW
# "disk" is on one machine. The others are in a network: one refuses to replace a version, the other replaces it.
STORES = ("disk", "refuses", "replaces")
# How much slower or faster than real time a clock may run, and how late a thread may wake up.
DRIFT, LATENESS_SECONDS = 0.04, 0.1
# How long a store that replaces may take to execute a request whose sender has ended.
FLIGHT_SECONDS = 0.5
# What a thread does while it is suspended.
WAITS, LOCKED, SENT, ANSWERED, WRITES, HALTED = "waits", "locked", "sent", "answered", "writes", "halted"


class Violation(AssertionError):
    """Two processes could write of which one harms the other, or a commit was overwritten."""


class Thread(greenlet):
    """A thread of a driver. request: the function whose transaction is on its way. wakes_at: by its machine's clock."""

    def __init__(self, driver: "Driver", work: Callable[[], object]) -> None:
        super().__init__(work)
        self.driver, self.state, self.request = driver, "", ""
        self.wakes_at = self.sent_at = 0.0

    def suspend(self, state: str) -> Any:
        """Give up control. Returns what `resume` passes on, once it is called."""
        self.state = state
        return self.parent.switch()

    def resume(self, value: object = None) -> None:
        self.state = ""
        # The first switch passes the arguments of the work.
        self.switch(*([value] if self else []))


def own_thread() -> Thread:
    thread = getcurrent()
    assert isinstance(thread, Thread)
    return thread


class Event:
    """`threading.Event` for virtual threads. No action sets one."""

    def is_set(self) -> bool:
        return False

    def wait(self, timeout: float) -> bool:
        thread = own_thread()
        thread.wakes_at = thread.driver.machine.clock_seconds + timeout
        thread.suspend(WAITS)
        return False


class Lock:
    """`threading.Lock` for virtual threads."""

    def __init__(self) -> None:
        self.owner: Thread | None = None

    def __enter__(self) -> None:
        while self.owner:
            own_thread().suspend(LOCKED)
        self.owner = own_thread()

    def __exit__(self, *_: object) -> None:
        self.owner = None


class StartedThread:
    """`threading.Thread` for virtual threads."""

    def __init__(self, target: Callable[[], None], daemon: bool) -> None:
        self._target = target

    def start(self) -> None:
        self.thread = own_thread().driver.start_thread(self._target)


VIRTUAL_THREADING = SimpleNamespace(Event=Event, Lock=Lock, Thread=StartedThread)


@dataclass
class Machine:
    """clock_seconds: of a clock that runs on through suspension, at a rate of its own."""

    name: str
    clock_seconds: float = 0.0


@dataclass
class Commit:
    """A commit on its way to the store, which makes the version after `base`."""

    base: int
    seconds: float = 0.0


class Driver:
    """A driver that wants one lease: the process of Python, the JVM, and the real renewer of its leases."""

    def __init__(self, world: "World", machine: Machine, name: str, pid: int) -> None:
        self.world, self.machine, self.wants = world, machine, name
        self.pids = pid, pid + 1
        self.holder = Holder(machine.name, name, Process(pid, 1.0, machine.name), Process(pid + 1, 1.0, machine.name))
        self.threads: list[Thread] = []
        self.is_dead = self.is_paused = self.is_late = False
        self.suspended_seconds = self.renewed_at = 0.0
        self.halts_by: float | None = None
        self.commit: Commit | None = None
        self.base = 0
        self.take_thread: Thread | None = None
        self.flow_thread: Thread | None = None
        self.start_thread(self._begin)
        self.settle()

    def _begin(self) -> None:
        self.renewer = LeaseRenewer(self.world.engine, self.holder, TTL_SECONDS, self._halt)
        self.renewer._renewal_lock = Lock()
        self.renewer.start()
        self.renewing_thread, self.watching_thread = (started.thread for started in self.renewer._threads)

    def start_thread(self, work: Callable[[], object]) -> Thread:
        thread = Thread(self, work)
        # Its parent is the scheduler, whoever starts it.
        thread.parent = self.world.scheduler
        self.threads.append(thread)
        # Not from within another thread, which has to go on first.
        thread.state = LOCKED
        return thread

    def _halt(self, _reason: str) -> None:
        if self.is_dead:
            raise GreenletExit
        self.halts_by = self.machine.clock_seconds + HALT_SECONDS
        own_thread().suspend(HALTED)

    @property
    def runs(self) -> bool:
        return not self.is_dead and not self.is_paused

    @property
    def holds(self) -> bool:
        return self.renewer.holds(self.wants)

    @property
    def writes(self) -> bool:
        return self.flow_thread is not None and self.flow_thread.state == WRITES

    @property
    def is_in_time(self) -> bool:
        """Whether it may rely on its lease: it was not paused for too long since its last renewal."""
        return self.runs and self.holds and not self.is_late

    @property
    def age_seconds(self) -> float:
        return self.machine.clock_seconds - self.renewed_at

    @property
    def lock_request(self) -> LockRequest:
        """As the flow of include.engine.stream.flow and the window of include.engine.jobs.maintenance_window ask."""
        if self.wants == WINDOW:
            return LockRequest(WINDOW, TABLE, alone=True)
        refuses = self.world.store == "refuses"
        is_alone = table_survey.needs_exclusive_write(FLOWS[self.wants], refuses)
        return LockRequest(self.wants, TABLE, is_alone, refuses)

    def take(self) -> None:
        try:
            self.renewer.take([self.wants])
        except (LeaseHeld, Unreachable):
            pass
        finally:
            self.take_thread = None

    def give_back(self) -> None:
        try:
            self.renewer.give_back([self.wants])
        except Unreachable:
            pass
        finally:
            self.take_thread = None

    def write(self) -> None:
        """Write one batch, as `write` in include.engine.stream.flow does."""
        try:
            if self.renewer.enter(self.lock_request, lambda: True):
                self.base = max(self.world.log, default=0)
                own_thread().suspend(WRITES)
        except LeaseLost:
            pass
        finally:
            if not self.is_dead:
                self.renewer.leave(self.wants)
            self.flow_thread = None

    def kill(self) -> None:
        """End it. What it has sent may still be executed.

        A store that replaces is safe only if that happens before another driver of the machine has read the table.
        """
        self.is_dead = True
        is_among_others = self.world.places.count(self.machine) > 1
        if self.world.store == "disk" or (self.world.store == "replaces" and is_among_others):
            self.commit = None
        for thread in [thread for thread in self.threads if thread.state != SENT]:
            end(thread)
        self.threads = [thread for thread in self.threads if thread.state == SENT]

    def settle(self) -> None:
        """Let go on what waits for nothing but a lock."""
        while ready := [thread for thread in self.threads if thread.state == LOCKED and self.may_lock(thread)]:
            ready[0].resume()
        self.threads = [thread for thread in self.threads if not thread.dead]

    def may_lock(self, thread: Thread) -> bool:
        return self.runs and (not thread or self.renewer._renewal_lock.owner is None)


def end(thread: Thread) -> None:
    """Unwind a thread of a dead process."""
    if not thread.dead:
        thread.parent = getcurrent()
        thread.throw(GreenletExit)


# How often each action is drawn among those that are possible.
OFTEN = {
    "start": 6,
    "die": 0.05,
    "pause": 0.3,
    "resume": 0.5,
    "stop": 2,
    "acquire": 5,
    "renew": 1.5,
    "enter": 6,
    "leave": 2.5,
    "give_back": 0.5,
    "execute": 10,
    "receive": 12,
    "lose": 0.6,
    "commit": 3,
    "land": 3,
    "tick": 3,
    "set_forward": 0.4,
    "set_back": 0.1,
}
# By how many seconds time passes, and a clock is set.
SECONDS = {"tick": (0.3, 2.0, 6.0, 12.0, 31.0), "set_forward": (6.0, 31.0, 3600.0), "set_back": (6.0, 31.0, 3600.0)}
OF_TIME = tuple(SECONDS)


class World:
    """Places for drivers, one control database, and one table."""

    def __init__(
        self, engine: Engine, chance: random.Random, store: str, machines: Sequence[str], wants: Sequence[Sequence[str]]
    ) -> None:
        self.engine, self.chance, self.store, self.wants = engine, chance, store, wants
        self.scheduler = getcurrent()
        by_name = {name: Machine(name) for name in machines}
        self.places = [by_name[name] for name in machines]
        self.log: dict[int, object] = {}
        self.drift = DRIFT
        self.database_seconds = 1_000_000.0
        self.pids = itertools.count(100, 2)
        self.trace: list[str] = []
        # Some behaviours have many pauses, others many late answers, and so on.
        self.often = {name: often * chance.choice([0.25, 1, 3]) for name, often in OFTEN.items()}
        self.drivers: list[Driver] = []
        for place in range(len(machines)):
            self.drivers.append(self._new_driver(place))

    @classmethod
    def by_chance(cls, engine: Engine, chance: random.Random) -> "World":
        """A world by chance. machines: of each driver. wants: of which leases each driver wants one."""
        store = chance.choice(STORES)
        machines = chance.choice([["here", "here"], ["here", "there"], ["here", "there", "there"]])
        leases = chance.choice([[FLOW], [FLOW, WINDOW], LEASES])
        return cls(engine, chance, store, ["here"] * 2 if store == "disk" else machines, [leases] * len(machines))

    def close(self) -> None:
        for driver in self.drivers:
            driver.kill()
            for thread in driver.threads:
                end(thread)
        with real_transaction(self.engine) as connection:
            connection.execute(leases.delete())

    def walk(self, steps: int) -> None:
        """Take so many actions. Raises Violation with those that led to it."""
        try:
            for _ in range(steps):
                self.step()
        except Violation as violation:
            violation.add_note("\n".join(self.trace))
            raise

    def step(self) -> None:
        possible = [(name, None) for name in OF_TIME]
        possible += [(name, place) for name in OFTEN for place in range(len(self.drivers)) if self.can(name, place)]
        [(name, place)] = self.chance.choices(possible, [self.often[name] for name, _ in possible])
        self.act(name, *([self.chance.choice(SECONDS[name])] if place is None else [place]))

    def follow(self, schedule: list[tuple[str, float]]) -> None:
        """Take these actions, each with its place or its seconds, except those that are not possible. Clocks are right.

        Raises Violation.
        """
        self.drift = 0
        for name, argument in schedule:
            if name in OF_TIME or self.can(name, int(argument)):
                self.act(name, argument)

    def can(self, name: str, place: int) -> bool:
        return name not in OF_TIME and bool(getattr(self, f"can_{name}")(self.drivers[place]))

    def act(self, name: str, argument: float) -> None:
        self.trace.append(f"{name} {argument}")
        getattr(self, name)(argument)
        for driver in self.drivers:
            driver.settle()
        self.check()

    # What the operating system and the clocks say to the running thread.

    def process_of(self, pid: int) -> Driver | None:
        return next((driver for driver in self.drivers if pid in driver.pids), None)

    def started_at(self, pid: int) -> float:
        found = self.process_of(pid)
        if found is None or found.is_dead:
            raise ProcessLookupError(pid)
        return 1.0

    def kill_process(self, pid: int, _signal: int) -> None:
        found = self.process_of(pid)
        assert found and found.machine is own_thread().driver.machine
        found.kill()

    def clock(self, which: int) -> float:
        driver = own_thread().driver
        suspended = driver.suspended_seconds if which == time.CLOCK_MONOTONIC else 0.0
        return driver.machine.clock_seconds - suspended

    # Actions, as in docs/protocol/Lease.tla. Each is possible for the drivers that its guard names.

    def start(self, place: int) -> None:
        self.drivers[place] = self._new_driver(place)

    def can_start(self, driver: Driver) -> bool:
        return driver.is_dead and not driver.threads and driver.commit is None

    def _new_driver(self, place: int) -> Driver:
        return Driver(self, self.places[place], self.chance.choice(self.wants[place]), next(self.pids))

    def die(self, place: int) -> None:
        self.drivers[place].kill()

    def can_die(self, driver: Driver) -> bool:
        return not driver.is_dead

    def pause(self, place: int) -> None:
        self.drivers[place].is_paused = True

    def can_pause(self, driver: Driver) -> bool:
        return driver.runs

    def resume(self, place: int) -> None:
        driver = self.drivers[place]
        driver.is_paused = False
        driver.is_late = driver.holds and driver.age_seconds > limit_seconds()
        driver.settle()

    def can_resume(self, driver: Driver) -> bool:
        return not driver.is_dead and driver.is_paused

    def stop(self, place: int) -> None:
        driver = self.drivers[place]
        if driver.halts_by is None:
            driver.watching_thread.resume()
        else:
            driver.kill()

    def can_stop(self, driver: Driver) -> bool:
        is_over = driver.machine.clock_seconds > driver.renewer._deadline
        return driver.runs and (driver.halts_by is not None or (is_over and driver.watching_thread.state == WAITS))

    def acquire(self, place: int) -> None:
        driver = self.drivers[place]
        if driver.take_thread:
            driver.take_thread.resume()
        else:
            driver.take_thread = driver.start_thread(driver.take)

    def can_acquire(self, driver: Driver) -> bool:
        return driver.runs and not driver.holds and (not driver.take_thread or driver.take_thread.state == WAITS)

    def renew(self, place: int) -> None:
        self.drivers[place].renewing_thread.resume()

    def can_renew(self, driver: Driver) -> bool:
        return driver.runs and driver.holds and driver.renewing_thread.state == WAITS

    def enter(self, place: int) -> None:
        driver = self.drivers[place]
        if driver.flow_thread:
            driver.flow_thread.resume()
        else:
            driver.flow_thread = driver.start_thread(driver.write)

    def can_enter(self, driver: Driver) -> bool:
        is_ready = driver.flow_thread is None or driver.flow_thread.state == WAITS
        return driver.runs and driver.holds and not driver.take_thread and is_ready

    def leave(self, place: int) -> None:
        flow_thread = self.drivers[place].flow_thread
        assert flow_thread
        flow_thread.resume()

    def can_leave(self, driver: Driver) -> bool:
        return driver.runs and driver.writes and driver.commit is None

    def give_back(self, place: int) -> None:
        driver = self.drivers[place]
        driver.take_thread = driver.start_thread(driver.give_back)

    def can_give_back(self, driver: Driver) -> bool:
        return driver.runs and driver.holds and not driver.take_thread and not driver.flow_thread

    def execute(self, place: int) -> None:
        self._one_of(self.drivers[place], SENT).resume()

    def can_execute(self, driver: Driver) -> bool:
        return any(thread.state == SENT for thread in driver.threads)

    def receive(self, place: int) -> None:
        driver = self.drivers[place]
        thread = self._one_of(driver, ANSWERED)
        is_renewal, sent_at = thread.request in ("take", "_renew_and"), thread.sent_at
        thread.resume()
        if is_renewal and driver.holds:
            driver.renewed_at = sent_at
            driver.is_late = driver.age_seconds > limit_seconds()

    def can_receive(self, driver: Driver) -> bool:
        return driver.runs and any(thread.state == ANSWERED for thread in driver.threads)

    def lose(self, place: int) -> None:
        driver = self.drivers[place]
        thread = self._one_of(driver, SENT, ANSWERED)
        if driver.is_dead:
            end(thread)
        else:
            thread.resume("lost")

    def can_lose(self, driver: Driver) -> bool:
        return not driver.is_paused and any(thread.state in (SENT, ANSWERED) for thread in driver.threads)

    def commit(self, place: int) -> None:
        driver = self.drivers[place]
        driver.commit = Commit(driver.base)

    def can_commit(self, driver: Driver) -> bool:
        return driver.runs and driver.writes and driver.commit is None

    def land(self, place: int) -> None:
        driver = self.drivers[place]
        assert driver.commit
        version, driver.commit = driver.commit.base + 1, None
        if version in self.log and self.store != "refuses":
            raise Violation(f"version {version} was overwritten")
        # A driver whose commit is refused reads what it has missed.
        self.log.setdefault(version, driver)
        driver.base = max(self.log)

    def can_land(self, driver: Driver) -> bool:
        return driver.commit is not None and (self.store != "disk" or driver.runs)

    def tick(self, seconds: float) -> None:
        """Let time pass. What has to be done by then is done: deadlines are looked at, and halted drivers end."""
        left_seconds = seconds
        while left_seconds > 0:
            step_seconds = min([left_seconds, *map(self._next_event_seconds, self.drivers)])
            for machine in {machine.name: machine for machine in self.places}.values():
                machine.clock_seconds += step_seconds * self.chance.uniform(1 - self.drift, 1 + self.drift)
            self.database_seconds += step_seconds
            for driver in self.drivers:
                driver.suspended_seconds += step_seconds * driver.is_paused
                if driver.commit:
                    driver.commit.seconds += step_seconds
            for place in range(len(self.drivers)):
                self._do_what_is_due(place)
            left_seconds -= step_seconds

    def _next_event_seconds(self, driver: Driver) -> float:
        """How long no event of the driver is due. Clocks that run fast are late to it by no more than they drift."""
        moments = [TTL_SECONDS]
        if driver.runs:
            moments.append(driver.watching_thread.wakes_at - driver.machine.clock_seconds)
            moments += [driver.halts_by - driver.machine.clock_seconds] if driver.halts_by is not None else []
        if self.store == "replaces":
            moments += [FLIGHT_SECONDS - driver.commit.seconds] if driver.commit else []
            moments += [limit_seconds() - driver.age_seconds] if driver.is_paused and driver.holds else []
        return max(LATENESS_SECONDS, min(moments))

    def _do_what_is_due(self, place: int) -> None:
        driver = self.drivers[place]
        if self.store == "replaces":
            if driver.commit and driver.commit.seconds >= FLIGHT_SECONDS:
                self.land(place)
            if driver.is_paused and driver.holds and driver.age_seconds >= limit_seconds():
                self.resume(place)
        if not driver.runs:
            return
        if driver.halts_by is not None and driver.machine.clock_seconds >= driver.halts_by:
            driver.kill()
        elif driver.watching_thread.state == WAITS and driver.machine.clock_seconds >= driver.watching_thread.wakes_at:
            driver.watching_thread.resume()
            # It has looked at its deadline, and goes on.
            driver.is_late &= driver.halts_by is not None

    def set_forward(self, seconds: float) -> None:
        self.database_seconds += seconds

    def set_back(self, seconds: float) -> None:
        self.database_seconds -= seconds

    def check(self) -> None:
        """Raises Violation if two drivers may write of which one would harm the other."""
        in_time = [driver for driver in self.drivers if driver.is_in_time]
        for first, second in itertools.combinations(in_time, 2):
            if first.wants == second.wants:
                raise Violation(f"two drivers hold {first.wants}")
            if first.writes and second.writes and (first.lock_request.alone or second.lock_request.alone):
                raise Violation(f"{first.wants} and {second.wants} write at once")

    def _one_of(self, driver: Driver, *states: str) -> Thread:
        return self.chance.choice([thread for thread in driver.threads if thread.state in states])


def limit_seconds() -> float:
    """By when a driver that runs has ended, by its clock, since it sent its last renewal."""
    halted_at = TTL_SECONDS * (1 - lease_renewer.LEASE_MARGIN + LEASE_CHECK_INTERVAL) + HALT_SECONDS
    return halted_at + 2 * LATENESS_SECONDS


real_transaction, real_reading = database.transaction, database.reading


def _over_the_network(real: Callable[[Engine], Any]) -> Callable[[Engine], Any]:
    @contextmanager
    def request(engine: Engine) -> Iterator[Any]:
        thread = own_thread()
        # The caller of the context manager.
        thread.request = sys._getframe(2).f_code.co_name
        thread.sent_at = thread.driver.machine.clock_seconds
        if thread.suspend(SENT) == "lost":
            raise Unreachable("the request is lost")
        with real(engine) as connection:
            yield connection
        if thread.driver.is_dead:
            raise GreenletExit
        if thread.suspend(ANSWERED) == "lost":
            raise Unreachable("the answer is lost")

    return request


@contextmanager
def virtual_machines() -> Iterator[SimpleNamespace]:
    """Replaces threads, clocks, the operating system and the network by those of the `world` of what it yields."""
    machines = SimpleNamespace(world=None)

    class VirtualProcess:
        def __init__(self, pid: int) -> None:
            self.pid = pid

        def status(self) -> str:
            return str(psutil.STATUS_RUNNING)

    def now(_connection: object) -> float:
        return machines.world.database_seconds

    clocks = SimpleNamespace(
        clock_gettime=lambda which: machines.world.clock(which),
        CLOCK_BOOTTIME=time.CLOCK_BOOTTIME,
        CLOCK_MONOTONIC=time.CLOCK_MONOTONIC,
        monotonic=time.monotonic,
    )
    with pytest.MonkeyPatch.context() as patch:
        for module in (lease, lease_renewer):
            patch.setattr(module, "threading", VIRTUAL_THREADING)
        patch.setattr(database, "time", clocks)
        patch.setattr(database, "now", now)
        patch.setattr(database, "transaction", _over_the_network(real_transaction))
        patch.setattr(database, "reading", _over_the_network(real_reading))
        patch.setattr(process, "boot_id", lambda: own_thread().driver.machine.name)
        patch.setattr(process, "_started_at", lambda pid: machines.world.started_at(pid))
        patch.setattr(process, "os", SimpleNamespace(kill=lambda pid, signal: machines.world.kill_process(pid, signal)))
        virtual_psutil = SimpleNamespace(
            Process=VirtualProcess, NoSuchProcess=psutil.NoSuchProcess, STATUS_ZOMBIE=psutil.STATUS_ZOMBIE
        )
        patch.setattr(process, "psutil", virtual_psutil)
        yield machines
