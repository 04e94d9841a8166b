"""Everything that may happen to tables at once, in random interleavings, compared with plain Python.

By default four interleavings; `make faults` makes it two hundred. SLUICE_SEED repeats the picks of an earlier run.
"""

import os
import random
import time
import uuid
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from deltalake import DeltaTable
from sqlalchemy import Engine, func, select

from include.catalog import Catalog
from include.control import commands, vacuum_holds
from include.control.commands import Action
from include.control.jobs import windows
from include.control.lease_renewer import LeaseRenewer
from include.control.process import Holder
from include.control.store import database
from include.control.store.schema import pauses, runs
from include.engine.jobs import window
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.engine.tables import maintain
from include.engine.tables.commit import USER_METADATA
from include.errors import LeaseHeld
from include.readers.delta_log import DeltaLog
from include.settings import settings
from include.spec import Maintenance, Table
from tests.support.expected import Message
from tests.support.flows import FULL, Chain, Driver, rows_of
from tests.support.waiting import sleep_through, wait_until

INTERLEAVINGS = 200 if FULL else 4
SEED = int(os.environ.get("SLUICE_SEED", "4"))
# So short that VACUUM really deletes.
PROMISE_SECONDS = 3
# What is sent together lies in a few minutes of these, so that merges change some files of gold and leave the others.
MINUTES, NEAR = 100, 10
# Each keeps VACUUM from a table; the other tables are to be vacuumed.
MOST_READERS = 1
# For how many interleavings one stays: beyond the promise.
LIVES = (2, 4)
SESSION_WIDE = (USER_METADATA, maintain.SMALLER_THAN, maintain.TARGET, maintain.LOGGING)

RETURNED, TRAVELLED = "a registered reader read again", "a time traveller read again"

Actor = Callable[[], str]


def log(table: str) -> DeltaLog:
    return DeltaLog(settings().table_path(table))


def rows_at(table: str, version: int) -> Counter:
    rows = DeltaTable(str(settings().table_path(table)), version=version).to_pyarrow_table().to_pylist()
    return Counter(map(repr, rows))


@dataclass(frozen=True)
class Reader:
    """What somebody saw of a table when that version was the newest. leaves: after so many interleavings."""

    name: str
    table: str
    version: int
    rows: Counter
    leaves: int = 0

    def read_again(self) -> None:
        assert rows_at(self.table, self.version) == self.rows, f"{self.table} has another version {self.version}"


@dataclass
class History:
    """What the logs told so far; windows shorten them."""

    seen: dict[str, int] = field(default_factory=dict)
    operations: Counter = field(default_factory=Counter)
    files: set[tuple[str, str]] = field(default_factory=set)

    def go_on(self, table: str) -> None:
        found = log(table)
        for version in found.after(self.seen.get(table, -1)):
            commit = found.commit(version)
            self.operations[commit.operation] += 1
            self.files |= {(table, action["add"]["path"]) for action in found.actions(version) if "add" in action}
            if commit.operation in ("WRITE", "MERGE"):
                assert "flow" in commit.metadata, f"{table}, version {version}: {commit.metadata}"
            if commit.operation == "OPTIMIZE":
                assert commit.metadata.keys() & {"window", "inline"}, f"{table}, version {version}: {commit.metadata}"
                self.operations["OPTIMIZE inline"] += "inline" in commit.metadata
        self.seen[table] = found.newest

    @property
    def deleted(self) -> int:
        return sum(not (settings().table_path(table) / path).exists() for table, path in self.files)


class Story:
    """Four tables and who may come to them. gathered: a second gold, which is merged in windows only."""

    def __init__(self, chain: Chain, spark, engine: Engine, ask: Callable[..., str], dice: random.Random) -> None:
        keep = Maintenance(target_file_mb=0.01, time_travel_hours=PROMISE_SECONDS / 3600, every_batches=2)
        self.bronze, self.silver, gold = (replace(one, maintain=keep, interval_seconds=0.5) for one in chain.all)
        self.gold = replace(gold, maintain=replace(keep, target_file_mb=0.005))
        gathers = replace(gold.write, in_windows=True)
        self.gathered = replace(self.gold, name=f"gold.{chain.name}_gathered", write=gathers)
        self.flows = (self.bronze, self.silver, self.gold)
        self.tables = (*self.flows, self.gathered)
        self.stored = [*(table.name for table in self.tables), self.silver.quarantine]
        self.chain, self.engine, self.ask, self.dice, self.spark = chain, engine, ask, dice, spark
        # A window's job is a process with a session of its own.
        self.sessions = {table.name: spark.newSession() for table in self.tables}
        self.readers: list[Reader] = []
        self.history, self.came, self.compared = History(), Counter(), 0

    def pick(self, number: int) -> dict[str, Actor]:
        """The actors of one interleaving, by what they do."""
        kinds = {self.sends: 4, self.opens_window: 7, self.stops_and_starts: 1, self.restarts: 1, self.travels: 2}
        if len(self.readers) < MOST_READERS:
            kinds[self.registers] = 4
        chosen = self.dice.choices(list(kinds), list(kinds.values()), k=self.dice.randint(2, 5))
        return dict(self._late(kind(number)) for kind in chosen) | dict(map(self._late, self.returns(number)))

    def _late(self, actor: tuple[str, Actor]) -> tuple[str, Actor]:
        name, act = actor
        offset = self.dice.uniform(0, 1)

        def act_late() -> str:
            sleep_through(offset)
            return act()

        return f"{name} after {offset:.2f} s", act_late

    def sends(self, number: int) -> tuple[str, Actor]:
        batches = [self._values(self.dice.randint(1, 12)) for _ in range(self.dice.randint(1, 2))]

        def act() -> str:
            for values in batches:
                self.chain.topic.send(*values)
                sleep_through(0.5)
            return "sent"

        return f"sends {batches}", act

    def _values(self, count: int) -> list[str]:
        start = 60 * self.dice.randrange(MINUTES)
        numbers = [str(start + self.dice.randrange(60 * NEAR)) for _ in range(count)]
        return [number if self.dice.random() < 0.85 else f"not {number}" for number in numbers]

    def opens_window(self, number: int) -> tuple[str, Actor]:
        # Rather where it could do harm.
        read = {one.table for one in self.readers}
        table = self.dice.choice([*self.tables, *(one for one in self.tables if read & {one.name, one.quarantine})])
        # Of what was removed a moment ago VACUUM may delete nothing.
        seconds = self.dice.choice([0, PROMISE_SECONDS])

        def act() -> str:
            sleep_through(seconds)
            return self.maintain(table)

        return f"window of {table.name} after {seconds} s and", act

    def stops_and_starts(self, number: int) -> tuple[str, Actor]:
        table, seconds = self.dice.choice(self.flows), self.dice.uniform(0, 2)

        def act() -> str:
            self.ask(Action.STOP, table)
            sleep_through(seconds)
            self.ask(Action.START, table)
            return "a flow stopped and started"

        return f"stops {table.name} for {seconds:.2f} s", act

    def restarts(self, number: int) -> tuple[str, Actor]:
        table = self.dice.choice(self.flows)

        def act() -> str:
            self.ask(Action.RESTART, table)
            return "a flow restarted"

        return f"restarts {table.name}", act

    def registers(self, number: int) -> tuple[str, Actor]:
        # Rather for one whose files are replaced all the time.
        table = self.dice.choice([*self.stored, self.gold.name, self.gathered.name])
        leaves = number + self.dice.randint(*LIVES)
        return f"registers for {table}", lambda: self.register(table, leaves)

    def register(self, table: str, leaves: int) -> str:
        name, version = f"reader {uuid.uuid4().hex[:6]} of {table}", log(table).newest
        vacuum_holds.register(self.engine, name, table, version, hours=1)
        self.readers.append(Reader(name, table, version, rows_at(table, version), leaves))
        return "a reader registered"

    def returns(self, number: int) -> list[tuple[str, Actor]]:
        """The registered ones read again, and some let go."""

        def act(reader: Reader) -> str:
            reader.read_again()
            if reader.leaves <= number:
                vacuum_holds.unregister(self.engine, reader.name, reader.table)
                self.readers.remove(reader)
            return RETURNED

        return [(f"{one.name} returns", lambda one=one: act(one)) for one in self.readers]

    def travels(self, number: int) -> tuple[str, Actor]:
        table, seconds = self.dice.choice(self.stored), self.dice.uniform(0.2, 0.8) * PROMISE_SECONDS

        def act() -> str:
            since = time.monotonic()
            version = log(table).newest
            reader = Reader("time travel", table, version, rows_at(table, version))
            sleep_through(since + seconds - time.monotonic())
            try:
                reader.read_again()
            except Exception:
                # Longer than that nobody was promised anything.
                if time.monotonic() < since + PROMISE_SECONDS:
                    raise
                return "a time traveller came too late"
            return TRAVELLED

        return f"travels to {table} of {seconds:.2f} s ago", act

    def maintain(self, table: Table) -> str:
        """A window, as `jobs/maintain.py` does it."""
        number = windows.plan(self.engine, table.name, "a test", "a test", is_worth_it=True)
        keeper = LeaseRenewer(
            self.engine, Holder.here(f"maintain {table.name}", jvm_pid()), 60, lambda reason: os.abort()
        )
        try:
            keeper.take(window.leases(table))
        except LeaseHeld as error:
            windows.close_unfinished(self.engine, number, "skipped", str(error))
            return f"refused {table.name}"
        keeper.start()
        try:
            spark, tables = self.sessions[table.name], Catalog({one.name: one for one in self.tables})
            host = Host(spark, self.engine, keeper, "maintain")
            window.Window(self.engine, keeper, host, spark, table, tables, number).run(lambda reason: os.abort())
        finally:
            keeper.stop()
        found = windows.find(self.engine, number)
        assert found and found.state == "done", found
        assert_had_it_alone(found, table.merges_in_windows)
        return "a window"

    def interleave(self, number: int) -> None:
        """Raises what went wrong, and says who else was there."""
        actors = self.pick(number)
        with ThreadPoolExecutor(len(actors)) as pool:
            running = {name: pool.submit(act) for name, act in actors.items()}
        for name, one in running.items():
            if error := one.exception():
                error.add_note(f"'{name}' among {list(actors)}")
                raise error
        came = Counter(one.result() for one in running.values())
        for table in self.tables:
            met = sum(name.startswith(f"window of {table.name} ") for name in actors) > 1
            refused = came.pop(f"refused {table.name}", 0)
            assert met or not refused, f"nobody else had a window of {table.name}: {list(actors)}"
            came["a second window refused"] += refused
        self.came += came

    def end(self, running: Driver) -> None:
        """A reader of what no version holds any more: VACUUM waits for it alone, and begins when it has left."""
        self.readers_leave()
        self.register(self.gathered.name, INTERLEAVINGS)
        # Twice, so that enough is replaced for VACUUM to be worth it.
        for _ in range(2):
            self.chain.topic.send(*range(0, 60 * (MINUTES + NEAR), 60))
            self.check(running)
        # Small batches of their own, so that there is something to compact, whatever came together before.
        for number in range(3):
            self.chain.topic.send(str(number))
            self.check(running)
        assert self.maintain(self.bronze) == "a window"
        sleep_through(PROMISE_SECONDS)
        for _ in ("it is there", "it has left"):
            self.came[self.maintain(self.gathered)] += 1
            self.readers_leave()
        self.check(running)

    def readers_leave(self) -> None:
        self.came += Counter(act() for _, act in self.returns(INTERLEAVINGS + max(LIVES)))

    def settle(self, running: Driver) -> list[Message]:
        """Wait until the flows have caught up and run; returns all that was sent."""
        messages = self.chain.topic.messages()
        good = sum(one.value.isdigit() for one in messages)
        wanted = [len(messages), good, len(messages) - good, good]
        wait_until(lambda: self._stored() == wanted, 120, lambda: f"{self._stored()} of {wanted}, {running.error}")
        wait_until(lambda: all((query := running.query(one)) and query.isActive for one in self.flows), 60)
        assert running.error is None
        with database.transaction(self.engine) as connection:
            failed = (runs.c.flow.in_([table.name for table in self.tables])) & runs.c.failure.is_not(None)
            assert connection.execute(select(runs.c.flow, runs.c.failure).where(failed)).all() == []
        return messages

    def _stored(self) -> list[int]:
        names = (self.bronze.name, self.silver.name, self.silver.quarantine)
        counts = [DeltaTable(str(settings().table_path(name))).count() for name in names]
        return [*counts, sum(row["rows"] for row in rows_of(self.gold.name))]

    def compare(self, messages: list[Message]) -> None:
        """Every table holds what plain Python makes of what was sent, no row more."""
        self.chain.assert_holds(messages)
        groups: dict[datetime, list[int]] = {}
        for number in [int(one.value) for one in messages if one.value.isdigit()]:
            groups.setdefault(datetime.fromtimestamp(number - number % 60, UTC), []).append(number)
        wanted = Counter((minute, len(group), sum(group)) for minute, group in groups.items())
        for table in (self.gold, self.gathered):
            assert Counter((row["minute"], row["rows"], row["total"]) for row in rows_of(table.name)) == wanted
        self.compared += 2 * len(messages) + 2 * len(groups)

    def check(self, running: Driver) -> None:
        """All that has to hold between two interleavings."""
        messages = self.settle(running)
        assert self.maintain(self.gathered) == "a window"
        self.came["a window"] += 1
        self.compare(messages)
        for table in self.stored:
            self.history.go_on(table)
        # By the flow that compacts its table, too: in its driver's session.
        wait_until(lambda: all(self.spark.conf.get(key, None) is None for key in SESSION_WIDE), 30)

    @property
    def gate_waits(self) -> int:
        """How often a flow stood before a window."""
        mine = pauses.c.target.in_([table.name for table in self.flows])
        with database.transaction(self.engine) as connection:
            return connection.execute(select(func.count()).select_from(pauses).where(mine)).scalar_one()

    def told(self) -> str:
        did = self.history.operations
        acts = ", ".join(f"{times} times {what}" for what, times in sorted(self.came.items()) if times)
        return (
            f"{acts}: {did['MERGE']} merges, {did['OPTIMIZE']} optimizes ({did['OPTIMIZE inline']} inline), "
            f"{did['VACUUM END']} vacuums, {self.history.deleted} files deleted, {self.gate_waits} waits at a gate, "
            f"{self.compared:,} rows compared: 0 lost, 0 doubled, no reader missed a file"
        )

    def assert_was_busy(self) -> None:
        assert {"MERGE", "OPTIMIZE", "VACUUM END"} <= self.history.operations.keys()
        assert self.history.deleted and self.came[RETURNED]
        # In a few, that is left to chance.
        assert INTERLEAVINGS < 100 or (self.gate_waits and self.came[TRAVELLED])


def test_whatever_meets_nothing_is_lost_doubled_stuck_or_missed(chain, driver, engine, ask, spark, monkeypatch, capsys):
    # Whoever asks again is meant to be heard.
    monkeypatch.setattr(commands, "REPEAT_SECONDS", 0)
    story, began = Story(chain, spark, engine, ask, random.Random(SEED)), time.monotonic()
    chain.topic.create(partitions=2).send("1", "2", "not a number")
    with driver(*story.flows) as running:
        wait_until(lambda: all(is_stored(table.name) for table in story.flows), 60)
        story.check(running)
        for number in range(1, INTERLEAVINGS + 1):
            with capsys.disabled():
                print(f"\rinterleaving {number} of {INTERLEAVINGS}, seed {SEED}", end="", flush=True)
            story.interleave(number)
            story.check(running)
            assert capsys.readouterr().err == "", "a user reads that"
        story.end(running)
    with capsys.disabled():
        print(f"\n{INTERLEAVINGS} interleavings (seed {SEED}, {time.monotonic() - began:.0f} s), {story.told()}")
    story.assert_was_busy()


def assert_had_it_alone(done: windows.Window, merges: bool) -> None:
    """Between its opening and its closing all commits are its own."""
    found, last = log(done.table), done.after.version
    for version in found.after(done.before.version if done.before else last):
        commit = found.commit(version)
        is_own = commit.metadata.get("window") == done.number
        is_merge = merges and commit.metadata.get("flow") == done.table
        assert version > last or is_own or is_merge, f"{done.table}, in window {done.number}: {commit}"


def is_stored(table: str) -> bool:
    return (settings().table_path(table) / "_delta_log").is_dir()
