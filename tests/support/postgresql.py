"""A PostgreSQL server for tests, which they can suspend, stop and restart."""

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import psycopg

from include.local import postgresql
from tests.support.waiting import wait_until


class Server:
    """A server with its own data directory, which listens only on 127.0.0.1."""

    def __init__(self, port: int, *options: str) -> None:
        """options: settings, such as `wal_level=logical`."""
        self.port = port
        self._options = " ".join(f"-c {option}" for option in options)
        # Other users cannot enter the directory of pytest.
        self._directory = Path(tempfile.mkdtemp(prefix="sluice-postgresql-"))
        postgresql.give_to_other_user(self._directory)
        self._run("initdb", "--no-sync", "--auth=trust", "--username=sluice", "--no-locale", "--encoding=UTF8")

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://sluice@127.0.0.1:{self.port}/postgres"

    def add_user(self, name: str, password: str, network: str = "127.0.0.1/32") -> str:
        """Adds a user that has to show its password, from addresses of the network. Returns the URL of its connections,
        without the password.
        """
        access = self._directory / "data" / "pg_hba.conf"
        access.write_text(f"host all {name} {network} scram-sha-256\n{access.read_text()}")
        with self.connection() as connection:
            connection.execute(f"CREATE ROLE {name} SUPERUSER LOGIN PASSWORD '{password}'")
            connection.execute("SELECT pg_reload_conf()")
        return self.url.replace("sluice@", f"{name}@")

    def connection(self) -> psycopg.Connection:
        """A connection without the settings of Sluice."""
        return psycopg.connect(f"host=127.0.0.1 port={self.port} user=sluice dbname=postgres", autocommit=True)

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -p {self.port} -k '' -c fsync=off -c shared_buffers=16MB"
        options = f"{options} {self._options}"
        self._run("pg_ctl", "--wait", f"--log={self._directory / 'log'}", f"--options={options}", "start")

    def stop(self) -> None:
        self._run("pg_ctl", "--wait", "--mode=immediate", "stop")

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self._directory)

    @contextmanager
    def down(self) -> Iterator[None]:
        """Stop the server during the block."""
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Suspend all server processes during the block. The kernel still accepts connections and data."""
        postmaster = psutil.Process(int((self._directory / "data" / "postmaster.pid").read_text().split()[0]))
        # The postmaster is suspended first, so that it starts no other process.
        postmaster.suspend()
        processes = [postmaster, *postmaster.children(recursive=True)]
        try:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.suspend()
            wait_until(lambda: not any(map(_runs, processes)), 10)
            yield
        finally:
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGCONT)

    def _run(self, program: str, *arguments: str) -> None:
        path = postgresql.program(program)
        command = [*postgresql.other_user(), path, f"--pgdata={self._directory / 'data'}", *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self._directory)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
