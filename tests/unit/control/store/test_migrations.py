"""A control database of an older build is migrated to the current schema, and keeps all its rows."""

import json
import os
import sqlite3
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Connection, Engine, create_engine, inspect, select, text

from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import incidents, orders, queue
from include.control.jobs import all_kinds, stale_rows, store, windows
from include.control.jobs.backfills import Backfill
from include.control.jobs.rewinds import RestorePoint, Rewind
from include.control.jobs.stale_rows import Outdated, Stale
from include.control.jobs.windows import TableSize, Window
from include.control.store import database, job_id, migrations, schema
from include.control.store.job_schema import metadata
from include.errors import UsageError
from include.project.ranges import Slice, from_stored_texts
from tests.conftest import ROOT
from tests.support.postgresql import Server

UPGRADES = ROOT / "tests" / "upgrades"
# A later build may change a released table like this.
NEXT_MIGRATION = {
    "the audit gets the host of each command": (
        "ALTER TABLE audit ADD COLUMN host VARCHAR",
        "CREATE INDEX audit_of_host ON audit (host)",
    )
}


@pytest.fixture(params=["sqlite", "postgresql"])
def first(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    """A control database of the first release. Returns a function that connects to it as a new process does."""
    if request.param == "sqlite":
        with tarfile.open(UPGRADES / "home-1.tar.gz") as home:
            home.extract("control.db", tmp_path, filter="data")
        url = f"sqlite:///{tmp_path / 'control.db'}"
    else:
        server: Server = request.getfixturevalue("postgresql")
        with server.connection() as connection:
            connection.execute("DROP DATABASE IF EXISTS first")
            connection.execute("CREATE DATABASE first")
        url = server.url.replace("/postgres", "/first")
        server_engine = create_engine(url)
        with server_engine.begin() as connection:
            for statement in (UPGRADES / "control-1.sql").read_text().split(";\n"):
                connection.execute(text(statement))
        server_engine.dispose()
    engines = []

    def connect() -> Engine:
        # The cached `connect` would return an earlier engine.
        engines.append(database.connect.__wrapped__(url))
        return engines[-1]

    connect.url = url
    yield connect
    for engine in engines:
        engine.dispose()


def columns(engine: Engine) -> dict[str, dict[str, tuple[str, bool]]]:
    """Type and nullability of each column, by table."""
    inspector = inspect(engine)
    return {
        table: {column["name"]: (str(column["type"]), column["nullable"]) for column in inspector.get_columns(table)}
        for table in inspector.get_table_names()
    }


def version(engine: Engine) -> int:
    with database.transaction(engine) as connection:
        return connection.execute(select(schema.versions.c.version)).scalar_one()


def count(connection: Connection, table: str) -> int:
    return connection.exec_driver_sql(f"SELECT COUNT(*) FROM {table}").scalar_one()


def test_a_database_of_the_first_release_gets_the_schema_of_a_new_one(first, tmp_path: Path):
    migrated_engine = first()
    new_engine = database.connect(f"sqlite:///{tmp_path / 'fresh.db'}")
    if migrated_engine.dialect.name == "sqlite":
        fresh = columns(new_engine)
        assert {table: columns(migrated_engine)[table] for table in fresh} == fresh
    migrated = {table: found for table, found in columns(migrated_engine).items() if table not in migrations.MOVED}
    assert {table: set(table_columns) for table, table_columns in migrated.items()} == {
        table.name: {column.name for column in table.columns} for table in metadata.tables.values()
    }
    indexes = {index.name for table in metadata.tables.values() for index in table.indexes}
    inspector = inspect(migrated_engine)
    assert indexes <= {index["name"] for table in inspector.get_table_names() for index in inspector.get_indexes(table)}
    assert version(migrated_engine) == version(new_engine) == migrations.newest_version()


def test_what_the_first_release_has_written_is_understood(tmp_path: Path):
    with tarfile.open(UPGRADES / "home-1.tar.gz") as home:
        home.extract("control.db", tmp_path, filter="data")
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    [backfill], [rewind] = store.newest(engine, Backfill), store.newest(engine, Rewind)
    assert backfill.stopped == {"gold.other": ("running", "")}
    assert rewind.is_begun
    assert rewind.stopped == {"silver.third": ("running", "")}
    driver_orders = orders.read(engine, "main", ["silver.other", "gold.other", "silver.of_an_older_build"])
    assert {flow: order.state for flow, order in driver_orders.of.items()} == {
        "silver.other": "stopped",
        "gold.other": "stopped",
        "silver.of_an_older_build": "running",
    }
    assert driver_orders.failed == {"silver.other"}
    open_incidents = incidents.open_of(engine, "silver.of_an_older_build")
    assert open_incidents and open_incidents.state == "STUCK"
    commands.execute(engine, Command(Action.START, ("silver.other",), "ann", "a reason"))
    engine.dispose()


def test_the_backfill_that_a_sentence_named_becomes_a_value(tmp_path: Path):
    with tarfile.open(UPGRADES / "home-1.tar.gz") as home:
        home.extract("control.db", tmp_path, filter="data")
    with closing(sqlite3.connect(tmp_path / "control.db")) as older, older:
        (root,) = older.execute("SELECT root FROM backfill").fetchone()
        for why in (f"a cause: backfill {root} is to make it again", "another: backfill 77 is to make it again"):
            older.execute("INSERT INTO stale (target, why, since) VALUES ('gold.other', ?, 1)", [why])
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    with database.transaction(engine) as connection:
        stale_rows.mark_given_up(connection, "gold.other", root)
    reasons = [mark.why for mark in stale_rows.stale_ranges(engine) if mark.since == 1]
    assert reasons == [
        f"a cause: backfill {root} was given up: backfill gold.other",
        "another: backfill 77 is to make it again",
    ]
    engine.dispose()


def test_the_table_that_the_target_of_an_alarm_named_becomes_a_value(tmp_path: Path):
    with tarfile.open(UPGRADES / "home-1.tar.gz") as home:
        home.extract("control.db", tmp_path, filter="data")
    with closing(sqlite3.connect(tmp_path / "control.db")) as older, older:
        older.execute("DELETE FROM incident")
        for target, state in (
            ("definition silver.a", "INVALID DEFINITION"),
            ("window silver.a", "WINDOW FAILED"),
            ("vacuum silver.a", "HELD BACK"),
            ("silver.a", "STUCK"),
        ):
            row = (target, state)
            older.execute("INSERT INTO incident (target, state, reason, error, began_at) VALUES (?, ?, '', '', 1)", row)
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    alarms = incidents.unsent(engine)
    assert {alarm.first.subject for alarm in alarms} == {"silver.a"}
    assert len({alarm.first.target for alarm in alarms}) == 4
    with database.transaction(engine) as connection:
        for alarm in alarms:
            incidents.begin(connection, alarm.first.subject, alarm.first.state, "it lasts")
    assert incidents.unsent(engine) == alarms
    engine.dispose()


def test_a_changed_table_is_migrated_once_by_whoever_comes_first(first, monkeypatch):
    first()
    monkeypatch.setattr(migrations, "MIGRATIONS", {**migrations.MIGRATIONS, **NEXT_MIGRATION})
    with ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(lambda _: first(), range(4)))
    assert "host" in columns(engines[0])["audit"]
    assert {version(engine) for engine in engines} == {migrations.newest_version()}


def test_each_change_is_named_once_before_it_is_made_and_a_new_database_has_none(first, monkeypatch, caplog, tmp_path):
    database.connect(f"sqlite:///{tmp_path / 'fresh.db'}").dispose()
    assert caplog.messages == []
    first()
    tables, *changes = caplog.messages
    assert tables.startswith("the control database is migrated: it gets the tables ")
    assert {"job", "job_event"} <= set(tables.rpartition(" tables ")[2].split(", "))
    assert changes == [
        f"the control database is migrated: version {version} to {version + 1}: {change}"
        for version, change in enumerate(migrations.MIGRATIONS, 1)
    ]
    first()
    assert caplog.messages == [tables, *changes]
    failing = {"a change that fails": ("ALTER TABLE nothing ADD COLUMN x",)}
    monkeypatch.setattr(migrations, "MIGRATIONS", {**migrations.MIGRATIONS, **failing})
    with pytest.raises(Exception, match="nothing"):
        first()
    assert caplog.messages[-1].endswith(": a change that fails")


def test_a_command_shows_on_the_terminal_what_it_changes_and_leaves_its_output_as_it_is(tmp_path: Path):
    with tarfile.open(UPGRADES / "home-1.tar.gz") as home:
        home.extract("control.db", tmp_path, filter="data")
    environment = {**os.environ, "SLUICE_CONTROL_URL": f"sqlite:///{tmp_path / 'control.db'}"}
    command = [sys.executable, "-m", "include.cli", "jobs", "--json"]
    first_run, next_run = (
        subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True) for _ in range(2)
    )
    assert len(first_run.stderr.splitlines()) == 1 + len(migrations.MIGRATIONS)
    assert next_run.stderr == ""
    assert json.loads(first_run.stdout) == json.loads(next_run.stdout) != []


def test_a_migration_that_fails_leaves_the_database_as_it_was(first, monkeypatch):
    first_engine = first()
    version_before = version(first_engine)
    failing = {**NEXT_MIGRATION, "a change that fails": ("ALTER TABLE nothing ADD COLUMN x",)}
    monkeypatch.setattr(migrations, "MIGRATIONS", {**migrations.MIGRATIONS, **failing})
    with pytest.raises(Exception, match="nothing"):
        first()
    assert "host" not in columns(first_engine)["audit"]
    assert version(first_engine) == version_before


def test_a_database_that_a_newer_build_has_migrated_is_refused(first, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", {**migrations.MIGRATIONS, **NEXT_MIGRATION})
        first()
    newest = migrations.newest_version()
    with pytest.raises(UsageError) as refusal:
        first()
    assert str(refusal.value) == (
        f"the control database has version {newest + 1} of its schema, and this build knows up to {newest}: run the "
        f"newer build again, or restore the backup of before the upgrade"
    )


def test_a_column_that_is_not_there_is_not_called_unreachable(first):
    engine = first()
    with pytest.raises(Exception, match="nothing") as error, database.transaction(engine) as connection:
        connection.execute(text("SELECT nothing FROM audit"))
    assert type(error.value).__name__ in ("OperationalError", "ProgrammingError")


# Rows of the tables that jobs had before `job`, in the schema of the first release, which had
# neither approvals nor requests of windows.
OF_SEVERAL_TABLES = """
CREATE TABLE window_request (number INTEGER PRIMARY KEY, driver VARCHAR NOT NULL, asked_at FLOAT NOT NULL);
CREATE TABLE approval (job VARCHAR PRIMARY KEY, who VARCHAR NOT NULL, at FLOAT NOT NULL);
DELETE FROM maintenance_window; DELETE FROM backfill; DELETE FROM backfill_request; DELETE FROM rewind;
INSERT INTO maintenance_window VALUES (7, 'silver.a', 'done', 'ann', 'it''s small', 'optimize silver.a', 3, 1, 2, 3, 9,
  '{"version": 1, "files": 4, "bytes": 100, "small_files": 3, "rows": 10}',
  '{"version": 2, "files": 1, "bytes": 90, "small_files": 0, "rows": null}');
INSERT INTO maintenance_window VALUES (8, 'silver.a', 'skipped', 'bob', 'why', NULL, NULL, 1, NULL, NULL, NULL,
  NULL, NULL);
INSERT INTO maintenance_window VALUES (9, 'silver.a', 'planned', 'bob', 'why', NULL, NULL, 4, NULL, NULL, NULL,
  NULL, NULL);
INSERT INTO window_request VALUES (9, 'main', 5);
INSERT INTO backfill VALUES (3, 3, 'silver.a', '2026-03-01T00:00:00.000000Z', '2026-03-02T00:00:00.000000Z', 'k3',
  'run', 'done', '1 rows before, 2 after', NULL, NULL, 5, 1, 2, 10, 11, 12);
INSERT INTO backfill VALUES (4, 3, 'gold.a', NULL, NULL, 'k4', 'run', 'draining', 'gold.b', 'no space',
  '{"gold.b": ["draining", "why"]}', NULL, NULL, NULL, 12, 13, NULL);
INSERT INTO backfill_request VALUES (3, 'main', 6, 1);
INSERT INTO rewind VALUES (2, 'silver.a', '2026-01-01T00:00:00+00:00',
  '{"silver.a": {"version": 3, "quarantine": null, "generations": {"silver.a": 1}, "at": 1.0, "retained": null}}',
  '["gold.v"]', 'k2', 'ann', 'a bug', 'planned', 'to then', NULL, NULL, 1, 1, NULL);
INSERT INTO approval VALUES ('rewind 2', 'grace', 8)
"""


def test_windows_backfills_rewinds_requests_and_approvals_of_several_tables_become_jobs(first):
    before = create_engine(first.url)
    with before.begin() as connection:
        for statement in OF_SEVERAL_TABLES.split(";\n"):
            for part in statement.split("; "):
                connection.exec_driver_sql(part)
    before.dispose()
    engine = first()
    planned, skipped, done = store.newest(engine, Window)
    assert [window.number for window in (planned, skipped, done)] == [9, 8, 7]
    assert (done.state, done.who, done.reason, done.message) == ("done", "ann", "it's small", "optimize silver.a")
    times = done.planned_at, done.asked_at, done.opened_at, done.ended_at
    assert (times, done.before, done.after) == ((1, 2, 3, 9), TableSize(1, 4, 100, 3, 10), TableSize(2, 1, 90, 0, None))
    assert (skipped.state, skipped.ended_at, skipped.before) == ("skipped", 1, None)
    follower, root = store.newest(engine, Backfill)
    assert (root.number, root.root, root.state, root.key, root.ended_at) == (3, 3, "done", "k3", 12)
    assert str(root.range) == "from 2026-03-01T00:00:00Z to 2026-03-02T00:00:00Z"
    assert root.outcome == {"version": 5, "rows_before": 1, "rows_after": 2}
    assert (follower.number, follower.root, follower.state, follower.failure) == (4, 3, "draining", "no space")
    assert (follower.range, follower.key, follower.version) == (Slice(), "k4", None)
    assert follower.stopped == {"gold.b": ("draining", "why")}
    [rewind] = store.newest(engine, Rewind)
    assert (rewind.number, rewind.moment, rewind.views) == (2, "2026-01-01T00:00:00+00:00", ("gold.v",))
    assert rewind.cut == {"silver.a": RestorePoint(3, None, {"silver.a": 1}, 1.0)}
    store.require_approved(engine, rewind)
    # The driver has begun the backfill, and is asked for the window.
    with database.reading(engine) as connection:
        assert queue.oldest(connection, "main") == job_id.window(9)
    assert not queue.withdraw_unbegun(engine, job_id.backfill(3))
    assert queue.withdraw_unbegun(engine, job_id.window(9))
    assert [queue.claim(engine, job_id.backfill(3), most_tries=2), windows.plan(engine, "t", "ann", "", True)] == [
        True,
        10,
    ]
    # A process of the previous build that goes on finds no job that it could change.
    with database.transaction(engine) as connection:
        counts = [count(connection, table) for table in migrations.MOVED]
    assert counts == [0] * len(migrations.MOVED)


# Rows of the two tables that marks had before, in the schema of the build before that move.
OF_TWO_TABLES = (
    "INSERT INTO stale (target, why, since, follows, given_up) VALUES ('gold.a', 'its source', 1, 3, TRUE)",
    "INSERT INTO stale (target, begins, ends, why, since) VALUES ('gold.b', '2026-03-01T00:00:00.000000Z',"
    " '2026-03-02T00:00:00.000000Z', 'its source', 2)",
    "INSERT INTO outdated (flow, target, generation, batch, begins, ends, since, definition, without_time) VALUES"
    " ('silver.a', 'silver.a', 1, 7, '2026-03-01T00:00:00.000000Z', '2026-03-09T00:00:00.000000Z', 3, 'new', NULL)",
    "INSERT INTO outdated (flow, target, generation, batch, since, definition, without_time) VALUES"
    " ('silver.a', 'silver.a', 1, 7, 3, 'new', TRUE)",
    "INSERT INTO outdated (flow, target, generation, batch, since) VALUES ('silver.b-two', 'silver.b', 2, 0, 4)",
)


def test_marks_of_two_tables_become_marks_of_one_and_end_as_before(first, monkeypatch):
    whole = migrations.MIGRATIONS
    with monkeypatch.context() as patch:
        patch.setattr(migrations, "MIGRATIONS", dict(list(whole.items())[:5]))
        with database.transaction(first()) as connection:
            for table in ("stale", "outdated"):
                connection.exec_driver_sql(f"DELETE FROM {table}")
            # No build of that version had it.
            connection.exec_driver_sql("DROP TABLE sample")
            for statement in OF_TWO_TABLES:
                connection.exec_driver_sql(statement)
    engine = first()
    day, week = (
        from_stored_texts("2026-03-01T00:00:00.000000Z", f"2026-03-0{last}T00:00:00.000000Z") for last in (2, 9)
    )
    assert stale_rows.stale_ranges(engine) == [
        Stale("gold.a", Slice(), "its source", 1, 3, is_given_up=True),
        Stale("gold.b", day, "its source", 2),
    ]
    assert stale_rows.outdated_ranges(engine) == [
        Outdated("silver.a", 1, 7, week, 3),
        Outdated("silver.a", 1, 7, Slice(), 3, without_time=True),
        Outdated("silver.b-two", 2, 0, Slice(), 4),
    ]
    with database.transaction(engine) as connection:
        # A process of the previous build that goes on.
        connection.exec_driver_sql("INSERT INTO stale (target, why, since) VALUES ('gold.c', 'its source', 5)")
        assert count(connection, "outdated") == 0
        stale_rows.unmark_range(connection, "silver.a", Slice(), {"silver.a": "older"}, asked_at=9)
        stale_rows.unmark_range(connection, "gold.b", day, {}, asked_at=9)
    assert [mark.table for mark in stale_rows.stale_ranges(engine)] == ["gold.a", "gold.c"]
    assert len(stale_rows.outdated_ranges(engine)) == 3
    with database.transaction(engine) as connection:
        stale_rows.unmark_range(connection, "silver.a", Slice(), {"silver.a": "new"}, asked_at=0)
    assert [mark.flow for mark in stale_rows.outdated_ranges(engine)] == ["silver.b-two"]


def test_a_mark_that_a_process_of_the_build_before_writes_after_the_move_is_read_by_the_next_process(first):
    engine = first()
    with database.transaction(engine) as connection:
        stale_rows.keep_rows(connection, "silver.a")
        assert count(connection, "outdated") == 0
        for statement in OF_TWO_TABLES[2:]:
            connection.exec_driver_sql(statement)
    later = first()
    marks = [(mark.flow, mark.batch, mark.since, mark.without_time) for mark in stale_rows.outdated_ranges(later)]
    assert set(marks) >= {("silver.a", 7, 3, False), ("silver.a", 7, 3, True), ("silver.b-two", 0, 4, False)}
    assert len(stale_rows.outdated_ranges(first())) == len(marks), "they are moved once"
    with database.transaction(later) as connection:
        assert count(connection, "outdated") == 0
        assert stale_rows.keep_rows(connection, "silver.b-two")
    assert "silver.b-two" not in {mark.flow for mark in stale_rows.outdated_ranges(first())}


def test_a_move_of_jobs_that_is_interrupted_is_made_again_from_the_beginning(first, monkeypatch):
    whole = migrations.MIGRATIONS
    [move] = [change for change, steps in whole.items() if any("INSERT INTO job " in str(step) for step in steps)]
    earlier, moved = dict(list(whole.items())[: list(whole).index(move)]), whole[move]
    monkeypatch.setattr(migrations, "MIGRATIONS", {**earlier, move: (*moved[:5], "SELECT nothing", *moved[5:])})
    with pytest.raises(Exception, match="nothing"):
        first()
    monkeypatch.setattr(migrations, "MIGRATIONS", whole)
    stored = [job.id for job in all_kinds.newest(first())]
    assert len(stored) == len(set(stored))
    assert version(first()) == migrations.newest_version()
