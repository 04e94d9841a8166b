"""Real processes and a real control database for the unit tests."""

import importlib
import itertools
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from include.control.leases.process import Holder, Process
from include.control.store import database, schema
from include.control.store.job_schema import metadata
from include.settings import settings
from tests.conftest import free_port
from tests.support.postgresql import Server
from tests.support.s3 import object_lake


@pytest.fixture(scope="session")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server for all tests."""
    server = Server(free_port())
    server.start()
    yield server
    server.remove()


@pytest.fixture
def on_postgresql(postgresql: Server) -> Iterator[Engine]:
    """An empty control database on PostgreSQL."""
    control_engine = database.connect(postgresql.url)
    with database.transaction(control_engine) as connection:
        # TRUNCATE creates new files and takes five times as long.
        for table in set(metadata.tables.values()) - {schema.versions}:
            connection.execute(table.delete())
    yield control_engine
    control_engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    """An empty control database, on SQLite and on PostgreSQL."""
    if request.param == "postgresql":
        yield request.getfixturevalue("on_postgresql")
        return
    control_engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    yield control_engine
    control_engine.dispose()


@pytest.fixture
def own_settings(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`own_settings(SLUICE_KAFKA="...")` changes settings for one test. A process reads them only once."""

    def change(**variables: object) -> None:
        # Another home has another lake.
        lake = object_lake.variables() if "SLUICE_HOME" in variables else {}
        for name, value in {**lake, **variables}.items():
            monkeypatch.setenv(name, str(value))
        settings.cache_clear()

    yield change
    monkeypatch.undo()
    settings.cache_clear()


@pytest.fixture
def home(tmp_path: Path, own_settings: Callable[..., None]) -> Path:
    """An empty home directory for one test."""
    directory = tmp_path / "home"
    directory.mkdir()
    own_settings(SLUICE_HOME=directory)
    return directory


KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "hush", "AWS_REGION": "eu-west-1"}
CATALOG_NUMBERS = itertools.count(1)


@pytest.fixture(scope="session")
def glue_url() -> Iterator[str]:
    """A server with the API of Glue for all tests, which has answered once: its first answer can take minutes."""
    # Most runs need neither, and their import takes a second.
    glue, moto = importlib.import_module("include.monitoring.glue"), importlib.import_module("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    keys = dict(zip(("aws_access_key_id", "aws_secret_access_key", "region_name"), KEYS.values(), strict=True))
    patient = glue.Config(read_timeout=300)
    glue.session.get_session().create_client("glue", endpoint_url=url, config=patient, **keys).get_databases()
    yield url
    server.stop()


@pytest.fixture
def prefix(glue_url: str, home: Path, own_settings: Callable[..., None]) -> str:
    """What the names of databases of one test begin with, in the catalog of all tests."""
    prefix = f"t{next(CATALOG_NUMBERS)}_"
    own_settings(SLUICE_CATALOG=f"glue:{prefix}", AWS_ENDPOINT_URL_GLUE=glue_url, **KEYS)
    return prefix


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def sleeper() -> Iterator[Callable[[], subprocess.Popen]]:
    """Start a process that runs until the test kills it or ends."""
    processes: list[subprocess.Popen] = []

    def start() -> subprocess.Popen:
        processes.append(subprocess.Popen(["sleep", "600"]))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture
def holder(sleeper: Callable[[], subprocess.Popen]) -> Callable[[str], Holder]:
    """Create a lease holder with two real processes, which run until the test kills them or ends."""

    def make(driver: str = "other") -> Holder:
        return Holder("here", driver, Process.of(sleeper().pid), Process.of(sleeper().pid))

    return make
