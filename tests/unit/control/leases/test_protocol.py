"""The lease protocol: TLC checks its model, and the code takes the same actions, with virtual clocks."""

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, Row, event, select, update

from include.control import lease_renewer
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease, lock
from include.control.leases.lease import Lease, Sightings
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import leases
from include.maintenance import table_survey
from tests.conftest import ROOT
from tests.support import tlc
from tests.support.flows import FULL
from tests.support.virtual_drivers import FLOW, OFTEN, OTHER_FLOW, WINDOW, Violation, World, virtual_machines

MODEL = (ROOT / "docs" / "protocol" / "Lease.tla").read_text()
STEPS, SHORT_WALKS, LONG_WALKS = 200, 40, 5_000


@pytest.fixture(params=["sqlite", "postgresql"])
def control(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty control database, which does not wait for the disk."""
    if request.param == "postgresql":
        yield request.getfixturevalue("on_postgresql")
        return
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    engine.dispose()
    event.listen(engine, "connect", lambda connection, _record: connection.execute("PRAGMA synchronous = OFF"))
    yield engine
    engine.dispose()


@contextmanager
def virtual_world(make: Callable[..., World], *arguments: object) -> Iterator[World]:
    with virtual_machines() as machines:
        world = machines.world = make(*arguments)
        try:
            yield world
        finally:
            world.close()


def test_no_two_drivers_may_write_whatever_clocks_pauses_and_messages_do(control):
    is_long = FULL and control.dialect.name == "sqlite"

    # Short runs are all the same, as nobody can look into a failure of one in a thousand that goes away.
    walks = LONG_WALKS if is_long else SHORT_WALKS

    @settings(max_examples=walks, deadline=None, database=None, derandomize=not is_long)
    @given(chance=st.randoms(use_true_random=True))
    def walk(chance: random.Random) -> None:
        with virtual_world(World.by_chance, control, chance) as world:
            world.walk(STEPS)

    walk()


# The breaks of docs/protocol/LeaseBreaks.tla, each as a change of the code.


def deadline_from_answer(patch: pytest.MonkeyPatch) -> None:
    postpone = LeaseRenewer._postpone
    patch.setattr(LeaseRenewer, "_postpone", lambda self, _sent_at: postpone(self, database.boottime()))


def no_margin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(lease_renewer, "LEASE_MARGIN", 0)


def clock_stops(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(database, "boottime", lambda: database.time.clock_gettime(database.time.CLOCK_MONOTONIC))


def no_sighting(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Sightings, "seconds_left", lambda *_: 0.0)


def no_kill(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Holder, "fence", lambda _: None)


def no_compare(patch: pytest.MonkeyPatch) -> None:
    compare_and_set = lease._compare_and_set

    def take(connection: Connection, flow: str, _row: Row | None, *values: object) -> Lease:
        row = connection.execute(select(leases).where(leases.c.flow == flow)).one_or_none()
        return compare_and_set(connection, flow, row, *values)

    patch.setattr(lease, "_compare_and_set", take)


def same_epoch(patch: pytest.MonkeyPatch) -> None:
    compare_and_set = lease._compare_and_set

    def take(connection: Connection, flow: str, row: Row | None, *values: object) -> Lease:
        compare_and_set(connection, flow, row, *values)
        connection.execute(update(leases).where(leases.c.flow == flow).values(epoch=1))
        return Lease(flow, 1)

    patch.setattr(lease, "_compare_and_set", take)


def renews_released(patch: pytest.MonkeyPatch) -> None:
    def still_held(connection: Connection, held_leases: list[Lease]) -> set[Lease]:
        names = [held.flow for held in held_leases]
        rows = connection.execute(select(leases).where(leases.c.flow.in_(names)))
        return {Lease(row.flow, row.epoch) for row in rows} & set(held_leases)

    patch.setattr(lease, "_lock", still_held)


def no_lock(patch: pytest.MonkeyPatch) -> None:
    is_in_the_way = lock._is_in_the_way

    def excludes(connection: Connection, other: Row, *rest: object) -> bool:
        return other.mode not in (lock.SHARED, lock.CONDITIONAL) and is_in_the_way(connection, other, *rest)

    patch.setattr(lock, "_is_in_the_way", excludes)


class NeverLess(set):
    def __isub__(self, _other: object) -> "NeverLess":
        return self


def leave_again(patch: pytest.MonkeyPatch) -> None:
    initialize = LeaseRenewer.__init__

    def forgets_nothing(self: LeaseRenewer, *arguments: object) -> None:
        initialize(self, *arguments)
        self._pending_leaves = NeverLess()

    patch.setattr(LeaseRenewer, "__init__", forgets_nothing)


def shared_where_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(table_survey, "needs_exclusive_write", lambda *_: False)


@dataclass(frozen=True)
class Schedule:
    """Actions that do harm only if the code is broken. store, machines, wants: as for `World`."""

    store: str
    machines: list[str]
    wants: list[list[str]]
    actions: list[tuple[str, float]]


def here(*actions: list[tuple[str, float]], other: str = FLOW) -> Schedule:
    return Schedule("disk", ["here", "here"], [[FLOW], [other]], sum(actions, []))


def elsewhere(*actions: list[tuple[str, float]], other: str = FLOW) -> Schedule:
    return Schedule("refuses", ["here", "there"], [[FLOW], [other]], sum(actions, []))


def by(place: int, *names: str) -> list[tuple[str, float]]:
    return [(name, place) for name in names]


def looks(place: int) -> list[tuple[str, float]]:
    return by(place, "acquire", "execute", "receive")


def takes(place: int) -> list[tuple[str, float]]:
    return looks(place) + by(place, "execute", "receive")


def renews(place: int) -> list[tuple[str, float]]:
    return by(place, "renew", "execute", "receive")


def enters(place: int) -> list[tuple[str, float]]:
    return by(place, "enter", "execute", "receive")


def ticks(*seconds: float) -> list[tuple[str, float]]:
    return [("tick", value) for value in seconds]


A, B = 0, 1
FORWARD = [("set_forward", 3600.0)]
# a is asleep beyond its lease, and b has taken it.
OVERTAKEN = takes(A) + looks(B) + by(A, "pause") + ticks(33) + takes(B) + by(A, "resume")
BREAKS = {
    deadline_from_answer: elsewhere(
        *(takes(A), by(A, "renew", "execute"), looks(B), ticks(24), by(A, "receive"), ticks(8), takes(B))
    ),
    no_margin: elsewhere(takes(A), looks(B), ticks(30.1), *[ticks(0.2) + takes(B)] * 5),
    clock_stops: elsewhere(OVERTAKEN, ticks(1)),
    no_sighting: elsewhere(takes(A), FORWARD, takes(B)),
    no_kill: here(takes(A), FORWARD, takes(B)),
    no_compare: here(by(A, "acquire", "execute"), takes(B), by(A, "receive", "execute", "receive")),
    same_epoch: elsewhere(OVERTAKEN, renews(A)),
    # a is asleep within the gate. b waits until it can expire the lease of a, and is let in.
    renews_released: elsewhere(
        *(takes(A), enters(A), takes(B), by(A, "pause"), FORWARD, enters(B)),
        *[ticks(12) + renews(B)] * 3,
        *(enters(B), by(B, "execute", "receive", "execute", "receive"), by(A, "resume"), renews(A)),
        other=WINDOW,
    ),
    no_lock: elsewhere(takes(A), enters(A), takes(B), enters(B), other=WINDOW),
    leave_again: here(
        *(takes(A), enters(A), by(A, "leave", "execute", "receive"), enters(A), renews(A), takes(B), enters(B)),
        other=WINDOW,
    ),
    shared_where_replaced: here(
        *(takes(A), enters(A), takes(B), enters(B), by(A, "commit"), by(B, "commit"), by(A, "land"), by(B, "land")),
        other=OTHER_FLOW,
    ),
}


def name(break_: Callable[[pytest.MonkeyPatch], None]) -> str:
    return break_.__name__.replace("_", " ")


def follow(engine: Engine, plan: Schedule) -> None:
    with virtual_world(World, engine, random.Random(0), plan.store, plan.machines, plan.wants) as world:
        world.follow(plan.actions)


@pytest.mark.parametrize("break_", BREAKS, ids=name)
def test_each_break_of_the_code_is_found_by_a_schedule_that_harms_only_it(control, break_, monkeypatch):
    follow(control, BREAKS[break_])
    break_(monkeypatch)
    with pytest.raises(Violation):
        follow(control, BREAKS[break_])


def test_tlc_follows_100_000_states_in_which_no_two_processes_may_write():
    said = tlc.check("Lease", "Lease.cfg")
    assert "Model checking completed. No error has been found." in said, said
    assert int(re.findall(r"(\d+) distinct states found", said)[-1]) >= 100_000


def test_tlc_finds_each_break_of_the_model():
    said = tlc.check("LeaseBreaks", "LeaseBreaks.cfg")
    assert set(re.findall(r'<<"found", "(.+)">>', said)) == {name(break_) for break_ in BREAKS}, said


ACTIONS = set(re.findall(r"\\/ (\w+)", MODEL.partition("\nNext ==")[2].partition("\nSpec ==")[0]))


def test_the_code_takes_the_actions_of_the_model():
    assert {re.sub(r"(?<!^)(?=[A-Z])", "_", action).lower() for action in ACTIONS} == set(OFTEN)


def test_the_model_has_the_breaks_of_the_code():
    [listed] = re.findall(r"Breaks = \{(.*?)\}", (tlc.FOLDER / "LeaseBreaks.cfg").read_text(), re.DOTALL)
    assert re.findall(r'"(.+?)"', listed) == [name(break_) for break_ in BREAKS]


def test_the_page_lists_actions_and_breaks():
    page = (ROOT / "docs" / "concepts" / "lease-protocol.md").read_text()
    actions = page.partition("## The actions")[2].partition("##")[0]
    cells = re.findall(r"^\| (.+?) \|", actions, re.MULTILINE)
    assert set(re.findall(r"\w+", " ".join(cells[1:]))) == ACTIONS
    breaks = page.partition("## The breaks")[2].partition("##")[0]
    assert re.findall(r"^\| ([a-z ]+) \|", breaks, re.MULTILINE) == [name(break_) for break_ in BREAKS]
