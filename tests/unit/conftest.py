"""Real processes and a real control database for the tests of who may write."""

import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from include.control.process import Holder, Process
from include.control.store import database, schema
from include.control.store.job_schema import metadata
from include.settings import settings
from tests.conftest import free_port
from tests.support.postgresql import Server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """One server for all tests."""
    server = Server(free_port())
    server.start()
    yield server
    server.remove()


@pytest.fixture
def on_postgresql(postgresql: Server) -> Iterator[Engine]:
    """A control database on PostgreSQL, empty."""
    made = database.connect(postgresql.url)
    with database.transaction(made) as connection:
        # TRUNCATE makes new files, and takes five times as long.
        for table in set(metadata.tables.values()) - {schema.versions}:
            connection.execute(table.delete())
    yield made
    made.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """A control database of the test's own, on each of the two."""
    if request.param == "postgresql":
        yield request.getfixturevalue("on_postgresql")
        return
    made = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    yield made
    made.dispose()


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`own_settings(SLUICE_KAFKA="...")` changes them for the test; everywhere else they are read once."""

    def change(**variables: object) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))
        settings.cache_clear()

    yield change
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def home(tmp_path: Path, own_settings: Callable[..., None]) -> Path:
    """A home of the test's own, empty."""
    made = tmp_path / "home"
    made.mkdir()
    own_settings(SLUICE_HOME=made)
    return made


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Where somebody listens and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen]]:
    """Starts a process that lives until somebody ends it."""
    started: list[subprocess.Popen] = []

    def start() -> subprocess.Popen:
        started.append(subprocess.Popen(["sleep", "600"]))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture
def holder(sleeper: Callable[[], subprocess.Popen]) -> Callable[[str], Holder]:
    """A driver whose two halves are real processes that live until somebody ends them."""

    def make(driver: str = "other") -> Holder:
        return Holder("here", driver, Process.of(sleeper().pid), Process.of(sleeper().pid))

    return make
