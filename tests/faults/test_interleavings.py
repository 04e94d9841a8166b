"""Random interleavings of everything that can happen to tables at once, compared with plain Python.

The default is four interleavings. `make faults` runs two hundred, and fifty on S3. SLUICE_SEED repeats the choices of
an earlier run.
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

from sqlalchemy import Engine, func, select

from include.catalog import Catalog
from include.control import commands, vacuum_holds
from include.control.commands import Action
from include.control.jobs import store, windows
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import pauses, runs
from include.delta import stored_table
from include.delta.delta_log import DeltaLog
from include.engine.commit import USER_METADATA
from include.engine.jobs.maintenance_window import Window
from include.engine.jobs.worker import leases
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.engine.tables import maintain
from include.errors import LeaseHeld
from include.lake import locations
from include.maintenance import table_survey
from include.maintenance.table_survey import CompactionPlace
from include.spec import Maintenance, Table
from tests.support.expected import Message
from tests.support.flows import FULL, Chain, Driver, rows_of
from tests.support.s3 import object_lake
from tests.support.waiting import sleep_through, wait_until

INTERLEAVINGS = (50 if object_lake.IS_USED else 200) if FULL else 4
SEED = int(os.environ.get("SLUICE_SEED", "4"))
# VACUUM deletes files only after this time.
RETENTION_SECONDS = 3
# The numbers of one send lie within a few of these minutes, so that a merge changes only some files of gold.
MINUTES, MINUTES_PER_SEND = 100, 10
# Each registered reader blocks VACUUM of its table. VACUUM must run on the other tables.
MAX_READERS = 1
# The number of interleavings for which a reader stays registered: longer than RETENTION_SECONDS.
READER_LIFETIMES = (2, 4)
SESSION_WIDE = (USER_METADATA, maintain.SMALLER_THAN, maintain.TARGET, maintain.LOGGING)

RETURNED, TIME_TRAVELLED = "a registered reader read again", "a time traveller read again"

Actor = Callable[[], str]


def log(table: str) -> DeltaLog:
    return DeltaLog(locations.table_path(table))


def rows_at(table: str, version: int) -> Counter:
    rows = stored_table.dataset(table, stored_table.open_table(table, version)).to_table().to_pylist()
    return Counter(map(repr, rows))


@dataclass(frozen=True)
class Reader:
    """The rows of a table at one version. ends_after: the number of the interleaving after which the reader ends."""

    name: str
    table: str
    version: int
    rows: Counter
    ends_after: int = 0

    def read_again(self) -> None:
        assert rows_at(self.table, self.version) == self.rows, f"{self.table} has another version {self.version}"


@dataclass
class History:
    """The commits so far. Windows delete old log entries, so the test records them."""

    newest_versions: dict[str, int] = field(default_factory=dict)
    operations: Counter = field(default_factory=Counter)
    files: set[tuple[str, str]] = field(default_factory=set)

    def read_new_commits(self, table: str) -> None:
        table_log = log(table)
        for version in table_log.after(self.newest_versions.get(table, -1)):
            commit = table_log.commit(version)
            self.operations[commit.operation] += 1
            self.files |= {(table, action["add"]["path"]) for action in table_log.actions(version) if "add" in action}
            if commit.operation in ("WRITE", "MERGE"):
                assert "flow" in commit.metadata, f"{table}, version {version}: {commit.metadata}"
            if commit.operation == "OPTIMIZE":
                assert commit.metadata.keys() & {"window", "inline"}, f"{table}, version {version}: {commit.metadata}"
                self.operations["OPTIMIZE inline"] += "inline" in commit.metadata
        self.newest_versions[table] = table_log.newest

    @property
    def deleted(self) -> int:
        return sum(not (locations.table_path(table) / path).exists() for table, path in self.files)


class Scenario:
    """Four tables and their actors. gold_in_windows: a second gold table, which is merged only in windows."""

    def __init__(self, chain: Chain, spark, engine: Engine, ask: Callable[..., str], rng: random.Random) -> None:
        policy = Maintenance(target_file_mb=0.01, time_travel_hours=RETENTION_SECONDS / 3600, every_batches=2)
        self.bronze, self.silver, gold = (replace(table, maintain=policy, interval_seconds=0.5) for table in chain.all)
        self.gold = replace(gold, maintain=replace(policy, target_file_mb=0.005))
        merge_in_windows = replace(gold.write, in_windows=True)
        self.gold_in_windows = replace(self.gold, name=f"gold.{chain.name}_gathered", write=merge_in_windows)
        self.flows = (self.bronze, self.silver, self.gold)
        self.tables = (*self.flows, self.gold_in_windows)
        self.stored = [*(table.name for table in self.tables), self.silver.quarantine]
        self.chain, self.engine, self.ask, self.rng, self.spark = chain, engine, ask, rng, spark
        # A maintenance job is a separate process with its own session.
        self.sessions = {table.name: spark.newSession() for table in self.tables}
        self.readers: list[Reader] = []
        self.history, self.result_counts, self.compared_rows = History(), Counter(), 0

    def pick(self, number: int) -> dict[str, Actor]:
        """Random actors for one interleaving, by description."""
        kinds = {
            self.send_batches: 4,
            self.open_window: 7,
            self.stop_and_start: 1,
            self.restart: 1,
            self.time_travel: 2,
        }
        if len(self.readers) < MAX_READERS:
            kinds[self.register_reader] = 4
        chosen_kinds = self.rng.choices(list(kinds), list(kinds.values()), k=self.rng.randint(2, 5))
        return dict(self._delay(kind(number)) for kind in chosen_kinds) | dict(
            map(self._delay, self.read_registered(number))
        )

    def _delay(self, actor: tuple[str, Actor]) -> tuple[str, Actor]:
        name, act = actor
        offset = self.rng.uniform(0, 1)

        def act_late() -> str:
            sleep_through(offset)
            return act()

        return f"{name} after {offset:.2f} s", act_late

    def send_batches(self, number: int) -> tuple[str, Actor]:
        batches = [self._random_values(self.rng.randint(1, 12)) for _ in range(self.rng.randint(1, 2))]

        def act() -> str:
            for values in batches:
                self.chain.topic.send(*values)
                sleep_through(0.5)
            return "sent"

        return f"sends {batches}", act

    def _random_values(self, count: int) -> list[str]:
        start = 60 * self.rng.randrange(MINUTES)
        numbers = [str(start + self.rng.randrange(60 * MINUTES_PER_SEND)) for _ in range(count)]
        return [number if self.rng.random() < 0.85 else f"not {number}" for number in numbers]

    def open_window(self, number: int) -> tuple[str, Actor]:
        # Tables with a registered reader are more likely, because a window can harm the reader.
        registered = {reader.table for reader in self.readers}
        table = self.rng.choice(
            [*self.tables, *(table for table in self.tables if registered & {table.name, table.quarantine})]
        )
        # Without a wait, VACUUM must not delete the files that were just removed.
        seconds = self.rng.choice([0, RETENTION_SECONDS])

        def act() -> str:
            sleep_through(seconds)
            return self.maintain(table)

        return f"window of {table.name} after {seconds} s and", act

    def stop_and_start(self, number: int) -> tuple[str, Actor]:
        table, seconds = self.rng.choice(self.flows), self.rng.uniform(0, 2)

        def act() -> str:
            self.ask(Action.STOP, table)
            sleep_through(seconds)
            self.ask(Action.START, table)
            return "a flow stopped and started"

        return f"stops {table.name} for {seconds:.2f} s", act

    def restart(self, number: int) -> tuple[str, Actor]:
        table = self.rng.choice(self.flows)

        def act() -> str:
            self.ask(Action.RESTART, table)
            return "a flow restarted"

        return f"restarts {table.name}", act

    def register_reader(self, number: int) -> tuple[str, Actor]:
        # The gold tables are more likely, because their files are replaced often.
        table = self.rng.choice([*self.stored, self.gold.name, self.gold_in_windows.name])
        ends_after = number + self.rng.randint(*READER_LIFETIMES)
        return f"registers for {table}", lambda: self.register(table, ends_after)

    def register(self, table: str, ends_after: int) -> str:
        name, version = f"reader {uuid.uuid4().hex[:6]} of {table}", log(table).newest
        vacuum_holds.register(self.engine, name, table, version, hours=1, requester="ann")
        self.readers.append(Reader(name, table, version, rows_at(table, version), ends_after))
        return "a reader registered"

    def read_registered(self, number: int) -> list[tuple[str, Actor]]:
        """Actors: each registered reader reads again, and unregisters if its time is over."""

        def act(reader: Reader) -> str:
            reader.read_again()
            if reader.ends_after <= number:
                vacuum_holds.unregister(self.engine, reader.name, reader.table, "ann")
                self.readers.remove(reader)
            return RETURNED

        return [(f"{reader.name} returns", lambda reader=reader: act(reader)) for reader in self.readers]

    def time_travel(self, number: int) -> tuple[str, Actor]:
        table, seconds = self.rng.choice(self.stored), self.rng.uniform(0.2, 0.8) * RETENTION_SECONDS

        def act() -> str:
            started_at = time.monotonic()
            version = log(table).newest
            reader = Reader("time travel", table, version, rows_at(table, version))
            sleep_through(started_at + seconds - time.monotonic())
            try:
                reader.read_again()
            except Exception:
                # After RETENTION_SECONDS, the version may be gone.
                if time.monotonic() < started_at + RETENTION_SECONDS:
                    raise
                return "a time traveller came too late"
            return TIME_TRAVELLED

        return f"travels to {table} of {seconds:.2f} s ago", act

    def maintain(self, table: Table) -> str:
        """Run a maintenance window as `jobs/maintain.py` does."""
        number = windows.plan(self.engine, table.name, "a test", "a test", is_worth_it=True)
        lease_renewer = LeaseRenewer(
            self.engine, Holder.here(f"maintain {table.name}", jvm_pid()), 60, lambda reason: os.abort()
        )
        try:
            lease_renewer.take(leases(table))
        except LeaseHeld as error:
            windows.close_unfinished(self.engine, number, "skipped", str(error))
            return f"refused {table.name}"
        lease_renewer.start()
        try:
            spark, tables = self.sessions[table.name], Catalog({member.name: member for member in self.tables})
            host = Host(spark, self.engine, lease_renewer, "maintain")
            Window(self.engine, lease_renewer, host, spark, table, tables, number).run(lambda reason: os.abort())
        finally:
            lease_renewer.stop()
        completed_window = store.get(self.engine, windows.Window, number)
        assert completed_window and completed_window.state == "done", completed_window
        assert_exclusive(completed_window, table)
        return "a window"

    def run_interleaving(self, number: int) -> None:
        """Run random actors at once. Raises the error of an actor with a note about the other actors."""
        actors = self.pick(number)
        with ThreadPoolExecutor(len(actors)) as pool:
            futures = {name: pool.submit(act) for name, act in actors.items()}
        for name, future in futures.items():
            if error := future.exception():
                error.add_note(f"'{name}' among {list(actors)}")
                raise error
        results = Counter(future.result() for future in futures.values())
        for table in self.tables:
            had_other_window = sum(name.startswith(f"window of {table.name} ") for name in actors) > 1
            refusals = results.pop(f"refused {table.name}", 0)
            assert had_other_window or not refusals, f"nobody else had a window of {table.name}: {list(actors)}"
            results["a second window refused"] += refusals
        self.result_counts += results

    def check_vacuum(self, running_driver: Driver) -> None:
        """Assert that VACUUM waits for the last reader of an old version, and deletes files when the reader ends."""
        self.end_readers()
        self.register(self.gold_in_windows.name, INTERLEAVINGS)
        # VACUUM is planned only if enough files were replaced, so the numbers are sent twice.
        for _ in range(2):
            self.chain.topic.send(*range(0, 60 * (MINUTES + MINUTES_PER_SEND), 60))
            self.check(running_driver)
        # These small batches leave small files to compact, even if earlier values arrived in few batches.
        for number in range(3):
            self.chain.topic.send(str(number))
            self.check(running_driver)
        assert self.maintain(self.bronze) == "a window"
        sleep_through(RETENTION_SECONDS)
        for _ in ("it is there", "it has left"):
            self.result_counts[self.maintain(self.gold_in_windows)] += 1
            self.end_readers()
        self.check(running_driver)

    def end_readers(self) -> None:
        self.result_counts += Counter(act() for _, act in self.read_registered(INTERLEAVINGS + max(READER_LIFETIMES)))

    def wait_until_idle(self, running_driver: Driver) -> list[Message]:
        """Wait until the flows run and have read everything. Returns all messages."""
        messages = self.chain.topic.messages()
        number_count = sum(message.value.isdigit() for message in messages)
        expected_counts = [len(messages), number_count, len(messages) - number_count, number_count]
        wait_until(
            lambda: self._stored() == expected_counts,
            120,
            lambda: f"{self._stored()} of {expected_counts}, {running_driver.error}",
        )
        wait_until(lambda: all((query := running_driver.query(flow)) and query.isActive for flow in self.flows), 60)
        assert running_driver.error is None
        with database.transaction(self.engine) as connection:
            has_failed = (runs.c.flow.in_([table.name for table in self.tables])) & runs.c.failure.is_not(None)
            assert connection.execute(select(runs.c.flow, runs.c.failure).where(has_failed)).all() == []
        return messages

    def _stored(self) -> list[int]:
        names = (self.bronze.name, self.silver.name, self.silver.quarantine)
        counts = [stored_table.open_table(name).count() for name in names]
        return [*counts, sum(row["rows"] for row in rows_of(self.gold.name))]

    def compare(self, messages: list[Message]) -> None:
        """Assert that each table holds exactly the rows that plain Python computes from the messages."""
        self.chain.assert_holds(messages)
        groups: dict[datetime, list[int]] = {}
        for number in [int(message.value) for message in messages if message.value.isdigit()]:
            groups.setdefault(datetime.fromtimestamp(number - number % 60, UTC), []).append(number)
        expected_rows = Counter((minute, len(group), sum(group)) for minute, group in groups.items())
        for table in (self.gold, self.gold_in_windows):
            assert Counter((row["minute"], row["rows"], row["total"]) for row in rows_of(table.name)) == expected_rows
        self.compared_rows += 2 * len(messages) + 2 * len(groups)

    def check(self, running_driver: Driver) -> None:
        """Assert all invariants between two interleavings."""
        messages = self.wait_until_idle(running_driver)
        assert self.maintain(self.gold_in_windows) == "a window"
        self.result_counts["a window"] += 1
        self.compare(messages)
        for table in self.stored:
            self.history.read_new_commits(table)
        # A flow that compacts its own table sets these in the session of its driver, and must unset them.
        wait_until(lambda: all(self.spark.conf.get(key, None) is None for key in SESSION_WIDE), 30)

    @property
    def gate_waits(self) -> int:
        """The number of times that a flow waited for a window."""
        is_of_flow = pauses.c.target.in_([table.name for table in self.flows])
        with database.transaction(self.engine) as connection:
            return connection.execute(select(func.count()).select_from(pauses).where(is_of_flow)).scalar_one()

    def summary(self) -> str:
        ops = self.history.operations
        results = ", ".join(f"{count} times {result}" for result, count in sorted(self.result_counts.items()) if count)
        return (
            f"{results}: {ops['MERGE']} merges, {ops['OPTIMIZE']} optimizes ({ops['OPTIMIZE inline']} inline), "
            f"{ops['VACUUM END']} vacuums, {self.history.deleted} files deleted, {self.gate_waits} waits at a gate, "
            f"{self.compared_rows:,} rows compared: 0 lost, 0 doubled, no reader missed a file"
        )

    def assert_was_busy(self) -> None:
        assert {"MERGE", "OPTIMIZE", "VACUUM END"} <= self.history.operations.keys()
        assert self.history.deleted and self.result_counts[RETURNED]
        # With few interleavings, these events may not occur.
        assert INTERLEAVINGS < 100 or (self.gate_waits and self.result_counts[TIME_TRAVELLED])


def test_whatever_meets_nothing_is_lost_doubled_stuck_or_missed(
    chain, driver, engine, ask, spark, monkeypatch, caplog, capsys
):
    # Otherwise, a command that repeats a recent command has no effect.
    monkeypatch.setattr(commands, "REPEAT_SECONDS", 0)
    scenario, begin = Scenario(chain, spark, engine, ask, random.Random(SEED)), time.monotonic()
    chain.topic.create(partitions=2).send("1", "2", "not a number")
    with driver(*scenario.flows) as running_driver:
        wait_until(lambda: all(locations.is_stored(table.name) for table in scenario.flows), 60)
        scenario.check(running_driver)
        for number in range(1, INTERLEAVINGS + 1):
            with capsys.disabled():
                print(f"\rinterleaving {number} of {INTERLEAVINGS}, seed {SEED}", end="", flush=True)
            scenario.run_interleaving(number)
            scenario.check(running_driver)
            problems = [
                record.message for record in caplog.records if record.name == "sluice" and record.levelname != "INFO"
            ]
            assert (problems, capsys.readouterr().err) == ([], ""), "a user reads that"
        scenario.check_vacuum(running_driver)
    with capsys.disabled():
        print(f"\n{INTERLEAVINGS} interleavings (seed {SEED}, {time.monotonic() - begin:.0f} s), {scenario.summary()}")
    scenario.assert_was_busy()


def assert_exclusive(entry: windows.Window, table: Table) -> None:
    """Assert that between the start and the end of the window, only the window commits.

    Its flow may commit, too, if the window merges what it gathers, or compacts the table online.
    """
    place, _ = table_survey.place_of_compaction(table, late_commits_fail=object_lake.IS_USED)
    may_flow_commit = table.merges_in_windows or place is CompactionPlace.ONLINE
    table_log, last_version = log(table.name), entry.after.version
    for version in table_log.after(entry.before.version if entry.before else last_version):
        commit = table_log.commit(version)
        is_of_window = commit.metadata.get("window") == entry.number
        is_of_flow = may_flow_commit and commit.metadata.get("flow") == table.name
        assert version > last_version or is_of_window or is_of_flow, f"{table.name}, in window {entry.number}: {commit}"
