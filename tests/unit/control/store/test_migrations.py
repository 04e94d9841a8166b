"""A control database of an older build is brought to the schema of this one, with all it holds."""

import tarfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, inspect, select, text

from include.control import commands, incidents, orders
from include.control.commands import Action, Command
from include.control.jobs import backfills, rewinds
from include.control.store import database, migrations, schema
from include.control.store.job_schema import metadata
from include.errors import UsageError
from tests.conftest import ROOT
from tests.support.postgresql import Server

FIRST = ROOT / "tests" / "upgrades"
# As a build after this one may change a released table.
NEXT = ("ALTER TABLE audit ADD COLUMN host VARCHAR", "CREATE INDEX audit_of_host ON audit (host)")


@pytest.fixture(params=["sqlite", "postgresql"])
def first(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Engine]]:
    """A control database as the first release made it; returns what connects to it, as a new process does."""
    if request.param == "sqlite":
        with tarfile.open(FIRST / "home-1.tar.gz") as home:
            home.extract("control.db", tmp_path, filter="data")
        url = f"sqlite:///{tmp_path / 'control.db'}"
    else:
        server: Server = request.getfixturevalue("postgresql")
        with server.connection() as connection:
            connection.execute("DROP DATABASE IF EXISTS first")
            connection.execute("CREATE DATABASE first")
        url = server.url.replace("/postgres", "/first")
        made = create_engine(url)
        with made.begin() as connection:
            for statement in (FIRST / "control-1.sql").read_text().split(";\n"):
                connection.execute(text(statement))
        made.dispose()
    opened = []

    def connect() -> Engine:
        # Not `connect` itself, which remembers what it has connected to.
        opened.append(database.connect.__wrapped__(url))
        return opened[-1]

    yield connect
    for engine in opened:
        engine.dispose()


def columns(engine: Engine) -> dict[str, dict[str, tuple[str, bool]]]:
    """By table and column, its type and whether it may be NULL."""
    found = inspect(engine)
    return {
        table: {column["name"]: (str(column["type"]), column["nullable"]) for column in found.get_columns(table)}
        for table in found.get_table_names()
    }


def version(engine: Engine) -> int:
    with database.transaction(engine) as connection:
        return connection.execute(select(schema.versions.c.version)).scalar_one()


def test_a_database_of_the_first_release_gets_the_schema_of_a_new_one(first, tmp_path: Path):
    migrated = first()
    fresh = database.connect(f"sqlite:///{tmp_path / 'fresh.db'}")
    if migrated.dialect.name == "sqlite":
        assert columns(migrated) == columns(fresh)
    assert {table: set(found) for table, found in columns(migrated).items()} == {
        table.name: {column.name for column in table.columns} for table in metadata.tables.values()
    }
    indexes = {index.name for table in metadata.tables.values() for index in table.indexes}
    found = inspect(migrated)
    assert indexes <= {index["name"] for table in found.get_table_names() for index in found.get_indexes(table)}
    assert version(migrated) == version(fresh) == migrations.newest_version()


def test_what_the_first_release_has_written_is_understood(tmp_path: Path):
    with tarfile.open(FIRST / "home-1.tar.gz") as home:
        home.extract("control.db", tmp_path, filter="data")
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    [backfill], [rewind] = backfills.newest(engine), rewinds.newest(engine)
    assert backfill.readers == {"gold.other": ("running", "")}
    assert rewind.is_begun
    assert rewind.stopped == {"silver.third": ("running", "")}
    told = orders.read(engine, "main", ["silver.other", "gold.other", "silver.of_an_older_build"])
    assert {flow: order.state for flow, order in told.of.items()} == {
        "silver.other": "stopped",
        "gold.other": "stopped",
        "silver.of_an_older_build": "running",
    }
    assert told.failed == {"silver.other"}
    stuck = incidents.open_of(engine, "silver.of_an_older_build")
    assert stuck and stuck[0].state == "STUCK"
    commands.execute(engine, Command(Action.START, ("silver.other",), "ann", "a reason"))
    engine.dispose()


def test_a_changed_table_is_migrated_once_by_whoever_comes_first(first, monkeypatch):
    first()
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, NEXT))
    with ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(lambda _: first(), range(4)))
    assert "host" in columns(engines[0])["audit"]
    assert {version(engine) for engine in engines} == {migrations.newest_version()}


def test_a_migration_that_fails_leaves_the_database_as_it_was(first, monkeypatch):
    before = first()
    then = version(before)
    monkeypatch.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, NEXT, ("ALTER TABLE nothing ADD COLUMN x",)))
    with pytest.raises(Exception, match="nothing"):
        first()
    assert "host" not in columns(before)["audit"]
    assert version(before) == then


def test_a_database_that_a_newer_build_has_migrated_is_refused(first, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr(migrations, "MIGRATIONS", (*migrations.MIGRATIONS, NEXT))
        first()
    known = migrations.newest_version()
    with pytest.raises(UsageError) as refused:
        first()
    assert str(refused.value) == (
        f"the control database has version {known + 1} of its schema, and this build knows up to {known}: run the "
        f"newer build again, or put back the backup of before the upgrade"
    )


def test_a_column_that_is_not_there_is_not_called_unreachable(first):
    engine = first()
    with pytest.raises(Exception, match="nothing") as raised, database.transaction(engine) as connection:
        connection.execute(text("SELECT nothing FROM audit"))
    assert type(raised.value).__name__ in ("OperationalError", "ProgrammingError")
