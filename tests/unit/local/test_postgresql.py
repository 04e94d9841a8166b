"""The embedded PostgreSQL: it keeps its rows, its port and its password, and asks for that."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from include.control.ports import is_free
from include.errors import SetupError
from include.local import postgresql
from include.local.connect import HOST
from include.local.postgresql import Server
from tests.support.waiting import wait_until


@contextmanager
def running(server: Server) -> Iterator[psycopg.Connection]:
    server.prepare()
    process = subprocess.Popen(server.command(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: not is_free(HOST, server.port), 60)
        wait_until(lambda: answers(server), 60)
        with psycopg.connect(server.address, autocommit=True) as connection:
            yield connection
    finally:
        process.terminate()
        assert process.wait(30) == 0


def answers(server: Server) -> bool:
    try:
        psycopg.connect(server.address).close()
    except psycopg.OperationalError:
        return False
    return True


def test_rows_port_and_password_outlive_a_stop_and_changes_are_kept_for_connectors(tmp_path: Path):
    server = Server(tmp_path / "Zoë's shop")
    with running(server) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS number")
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)
    port, address = server.port, server.address
    with running(server) as connection:
        assert connection.execute("SELECT number FROM kept").fetchone() == (1,)
    assert (server.port, server.address) == (port, address)


def test_nobody_gets_in_without_the_password_and_no_other_user_can_read_it(tmp_path: Path):
    server = Server(tmp_path / "shop")
    with running(server), pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"host={HOST} port={server.port} user=sluice dbname=postgres passfile=/dev/null")
    for path in (server.directory, server.directory / "passwords"):
        assert path.stat().st_mode & 0o077 == 0
    assert " ".join(server.command()).count((server.directory / "passwords").read_text().split(":")[-1].strip()) == 0


def test_a_port_that_another_process_took_meanwhile_is_replaced(tmp_path: Path):
    server = Server(tmp_path / "shop")
    with running(server):
        taken = server.port
        other = Server(tmp_path / "other")
        other.directory.mkdir()
        (other.directory / "port").write_text(str(taken))
        other.prepare()
        assert other.port != taken


def test_a_database_that_was_never_made_has_no_address(tmp_path: Path):
    with pytest.raises(SetupError, match=r"shop holds no database: `make up` makes it$"):
        _ = Server(tmp_path / "shop").address


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs PostgreSQL as another user")
def test_it_runs_as_nobody_where_no_namespace_is_allowed(tmp_path: Path, monkeypatch):
    monkeypatch.setattr(postgresql, "other_user", lambda: postgresql.AS_NOBODY)
    tmp_path.chmod(0o755)
    server = Server(tmp_path / "shop")
    for parent in server.directory.parents:
        if not parent.stat().st_mode & 0o001:
            with pytest.raises(SetupError, match="that every user may enter, or run `make up` as another user$"):
                server.prepare()
            return
    with running(server) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
