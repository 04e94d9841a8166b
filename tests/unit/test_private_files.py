"""Only their owner may read files that may hold a secret, new ones and those of an earlier build."""

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest
from sqlalchemy import Engine

from include import private_files
from include.control.store import database
from include.control.supervision import supervision, supervisor_presence
from include.local import environment, java
from include.settings import from_environment


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def database_files(engine: Engine) -> list[Path]:
    """The database file, and the files that SQLite adds to it."""
    supervision.heartbeat(engine)
    files = [Path(engine.url.database + suffix) for suffix in ("", "-wal", "-shm")]
    assert all(file.exists() for file in files)
    return files


@pytest.fixture
def open_to_all() -> Iterator[None]:
    former_umask = os.umask(0)
    yield
    os.umask(former_umask)


@pytest.mark.usefixtures("open_to_all")
def test_the_control_database_is_its_owners_alone_also_where_it_was_open(tmp_path: Path):
    url = f"sqlite:///{tmp_path / 'control.db'}"
    connect = database.connect.__wrapped__
    engine = connect(url)
    files = database_files(engine)
    assert [mode(file) for file in files] == [0o600] * 3
    for file in files:
        file.chmod(0o644)
    second_engine = connect(url)
    assert [mode(file) for file in files] == [0o600] * 3
    assert supervisor_presence.read(second_engine).worked_seconds_ago is not None
    engine.dispose()
    second_engine.dispose()


@pytest.mark.usefixtures("open_to_all")
def test_the_environment_with_the_password_is_its_owners_alone_also_where_it_was_open(tmp_path: Path):
    url = "postgresql+psycopg://ada:secret@127.0.0.1/control"
    settings = from_environment({"SLUICE_HOME": str(tmp_path), "SLUICE_CONTROL_URL": url})
    environment.write(settings, java.home())
    file, airflow = settings.home / "env.sh", settings.home / "airflow"
    assert "secret" in file.read_text()
    assert (mode(file), mode(airflow)) == (0o600, 0o700)
    file.chmod(0o644)
    airflow.chmod(0o755)
    environment.write(settings, java.home())
    assert (mode(file), mode(airflow)) == (0o600, 0o700)


@pytest.mark.usefixtures("open_to_all")
def test_every_file_below_the_home_that_names_the_password_is_its_owners_alone(tmp_path: Path):
    url = "postgresql+psycopg://ada:a_password@127.0.0.1/control"
    settings = from_environment({"SLUICE_HOME": str(tmp_path), "SLUICE_CONTROL_URL": url})
    environment.write(settings, java.home())
    for file in settings.home.rglob("*"):
        if file.is_file() and "a_password" in file.read_text():
            assert mode(file) == 0o600, file


def keys_of_eight_at_once(file: Path) -> set[bytes]:
    gate = Barrier(8)

    def key(_: int) -> bytes:
        gate.wait()
        private_files.create_key(file)
        return file.read_bytes()

    with ThreadPoolExecutor(8) as pool:
        return set(pool.map(key, range(8)))


@pytest.mark.usefixtures("open_to_all")
def test_all_who_create_a_key_at_once_have_the_same_one_and_nobody_else_may_read_it(tmp_path: Path):
    for number in range(20):
        file = tmp_path / str(number)
        [key] = keys_of_eight_at_once(file)
        assert len(key) == private_files.KEY_BYTES and mode(file) == 0o600
    assert len(list(tmp_path.iterdir())) == 20
