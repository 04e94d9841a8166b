"""Readers of the control database wait for nobody, and cannot write by mistake."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine, select

from include.control.flows import orders
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.control.store.schema import pulses
from include.control.supervision import supervision, supervisor_presence
from include.errors import Unreachable
from tests.conftest import ROOT
from tests.support.waiting import wait_until

FLOW = "silver.readings"

# Writes, prints a line before it commits, and continues after a line of input.
WRITER = """
import sys
from include.control.store import database
from include.control.store.schema import pulses

with database.transaction(database.connect(sys.argv[1])) as connection:
    connection.execute(pulses.insert().values(name="a test", at=1.0))
    print("inside", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def on_sqlite(tmp_path: Path) -> Iterator[Engine]:
    sqlite_engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    yield sqlite_engine
    sqlite_engine.dispose()


@contextmanager
def client_stopped_inside_a_transaction(engine: Engine) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, engine.url.render_as_string()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout.readline() == "inside\n"
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED, 10)
        yield
    finally:
        process.kill()
        process.communicate()


def pulse_names(engine: Engine) -> list[str]:
    with database.reading(engine) as connection:
        return list(connection.execute(select(pulses.c.name)).scalars())


def test_a_client_stopped_inside_a_transaction_keeps_nobody_from_reading(
    on_sqlite: Engine, holder: Callable[[], Holder]
):
    lease.acquire(on_sqlite, [FLOW], holder(), 30)
    supervision.heartbeat(on_sqlite)
    with client_stopped_inside_a_transaction(on_sqlite):
        with pytest.raises(Unreachable):
            supervision.heartbeat(on_sqlite)
        assert pulse_names(on_sqlite) == [supervision.SUPERVISOR]
        # A process that starts now opens a new connection.
        new_engine = database.connect.__wrapped__(on_sqlite.url.render_as_string())
        assert pulse_names(new_engine) == [supervision.SUPERVISOR]
        new_engine.dispose()
        assert orders.read(on_sqlite, "main", [FLOW]).of[FLOW].state == "running"
        assert supervisor_presence.read(on_sqlite).worked_seconds_ago is not None
        assert supervision.preview(on_sqlite, "main", [FLOW])[FLOW][1].state == "STARTING"
    supervision.heartbeat(on_sqlite)


def test_a_transaction_that_only_reads_and_tries_to_write_fails_as_the_mistake_that_it_is(engine: Engine):
    insert = pulses.insert().values(name="a test", at=1.0)
    with (
        pytest.raises(RuntimeError, match="^a transaction that only reads was to write: INSERT INTO pulse"),
        database.reading(engine) as connection,
    ):
        connection.execute(insert)
    # The pool hands out the same connection again.
    with database.transaction(engine) as connection:
        connection.execute(insert)
    assert pulse_names(engine) == ["a test"]


def test_all_that_one_transaction_reads_is_of_one_moment(on_sqlite: Engine):
    with database.reading(on_sqlite) as connection:
        first_names = connection.execute(select(pulses.c.name)).all()
        supervision.heartbeat(on_sqlite)
        assert connection.execute(select(pulses.c.name)).all() == first_names == []
    assert pulse_names(on_sqlite) == [supervision.SUPERVISOR]


def test_a_process_that_connects_while_another_one_creates_the_database_waits_for_it(tmp_path):
    file = tmp_path / "control.db"
    with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE pulse (name TEXT)")
        end = threading.Timer(0.2, lambda: other.execute("ROLLBACK"))
        end.start()
        engine = database.connect(f"sqlite:///{file}")
        end.join()
    with database.reading(engine) as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
    engine.dispose()
