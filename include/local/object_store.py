"""An S3 store on this machine, for development and tests: versitygw, which keeps each object as a file.

Of several conditional PUTs of one object (`If-None-Match: *`), exactly one succeeds.
"""

import fcntl
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyarrow.fs import S3FileSystem

from include import private_files
from include.errors import SetupError, report
from include.lake import locations
from include.lake.paths import ObjectPath
from include.local import install
from include.local.processes import Platform, StallTimer, wait_for_port
from include.settings import Settings

NAME = "object-store"
HOST = "127.0.0.1"
REGION = "us-east-1"
MODULE, VERSION = "github.com/versity/versitygw/cmd/versitygw", "v1.8.0"
OLDEST_GO = "1.25"
BUILD_BYTES = 2 * 10**9


def program() -> Path:
    """The path of the store's program, in the virtual environment."""
    return install.venv() / "bin" / f"versitygw-{VERSION}"


def fetch() -> Path:
    """Build the program from its Go module, unless that was done: 80 seconds, 61 MB. Raises SetupError."""
    if program().exists():
        return program()
    install.cache().mkdir(parents=True, exist_ok=True)
    # Two builds must not share a directory.
    with (install.cache() / "go.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program().exists():
            _build(install.cache() / "go")
    return program()


def _build(work: Path) -> None:
    go = shutil.which("go")
    if not go:
        raise SetupError(
            f"the local S3 store is built by Go, which is missing: install Go {OLDEST_GO} or later, "
            "or set AWS_ENDPOINT_URL to a store that exists"
        )
    install.require_disk(install.cache(), BUILD_BYTES)
    print(f"building the local S3 store {MODULE}@{VERSION}: a minute or two", flush=True)
    variables = {
        **os.environ,
        "GOBIN": str(work / "bin"),
        "GOCACHE": str(work / "build"),
        "GOMODCACHE": str(work / "modules"),
    }
    command = [go, "install", "-modcacherw", "-trimpath", "-ldflags=-s -w", f"{MODULE}@{VERSION}"]
    result = subprocess.run(command, env=variables, stderr=subprocess.PIPE, text=True, check=False)
    if result.returncode:
        reason = "\n".join(result.stderr.splitlines()[-15:])
        raise SetupError(
            f"the local S3 store {MODULE}@{VERSION} could not be built: check the network and `go version` "
            f"({OLDEST_GO} or later), then try again\n{reason}"
        )
    # The last step is a rename, so the program is either complete or missing.
    shutil.move(work / "bin" / "versitygw", program().with_suffix(".new"))
    program().with_suffix(".new").rename(program())
    # Modules and intermediate files are 760 MB that nothing needs again.
    shutil.rmtree(work, ignore_errors=True)


@dataclass(frozen=True)
class ObjectStore:
    """directory: data, credentials and access log of the store."""

    directory: Path
    port: int

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def access_log(self) -> Path:
        """One line for each request, in the format of S3's server access logs."""
        return self.directory / "access.log"

    def prepare(self) -> None:
        """Make the data directory, and the credentials if there are none."""
        (self.directory / "data").mkdir(parents=True, exist_ok=True)
        if not self._credentials.exists():
            private_files.create(self._credentials)
            self._credentials.write_text(f"sluice {secrets.token_urlsafe(24)}")

    def command(self) -> list[str]:
        """The command that runs the store in the foreground, with `environment()`. SIGTERM stops it cleanly."""
        options = ["--quiet", "--port", f"{HOST}:{self.port}", "--region", REGION, "--access-log", str(self.access_log)]
        return [str(program()), *options, "posix", str(self.directory / "data")]

    def environment(self) -> dict[str, str]:
        """The variables of the store's process, with the credentials, which every user could read in a command line."""
        key, secret = self._key_and_secret()
        return {**os.environ, "ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}

    def client_variables(self) -> dict[str, str]:
        """The variables by which Spark's drivers, delta-rs, DuckDB and boto3 find the store."""
        key, secret = self._key_and_secret()
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": secret,
            # delta-rs refuses an endpoint without TLS otherwise.
            "AWS_ALLOW_HTTP": "true",
        }

    def wait(self, timeout_seconds: float, check: Callable[[], None] = lambda: None) -> None:
        """Wait until the store accepts connections. Calls `check`, which may raise. Raises SetupError on timeout."""
        failure = f"the S3 store does not answer at {self.endpoint} after {timeout_seconds:.0f} s: read its log"
        # A second is enough for it, and its log says nothing of its start.
        wait_for_port(self.port, StallTimer(timeout_seconds, lambda: None), check, failure)

    @contextmanager
    def running(self) -> Iterator["ObjectStore"]:
        """Run the store during the block, and end it at once after it. Raises SetupError."""
        fetch()
        self.prepare()
        with (self.directory / "store.log").open("ab") as log:
            process = subprocess.Popen(self.command(), env=self.environment(), stdout=log, stderr=subprocess.STDOUT)
        try:
            self.wait(30)
            yield self
        finally:
            process.kill()
            process.wait()

    def create_bucket(self, name: str) -> None:
        """Create the bucket if it does not exist. Raises SetupError."""
        key, secret = self._key_and_secret()
        try:
            client = S3FileSystem(
                access_key=key,
                secret_key=secret,
                region=REGION,
                endpoint_override=self.endpoint,
                allow_bucket_creation=True,
            )
            client.create_dir(name)
        except OSError as error:
            raise SetupError(
                f"bucket {name} cannot be created at {self.endpoint} ({error}): read the store's log"
            ) from error

    @property
    def _credentials(self) -> Path:
        return self.directory / "credentials"

    def _key_and_secret(self) -> tuple[str, str]:
        self.prepare()
        key, secret = self._credentials.read_text().split()
        return key, secret


def declared(config: Settings) -> ObjectStore | None:
    """The store of `SLUICE_S3_PORT`; None if it is not set."""
    return ObjectStore(config.home / "store", config.s3_port) if config.s3_port else None


def use_declared(config: Settings) -> None:
    """Let this process reach the declared store, once `make up` has started it."""
    store = declared(config)
    if store and store.directory.exists():
        os.environ.update(store.client_variables())


def start(config: Settings, platform: Platform, timeout_seconds: float) -> None:
    """Start the declared store, unless it runs, and create the bucket of the lake.

    This process reaches it, and so do those that it starts. Raises SetupError, and Unreachable if the lake's store does
    not answer, whichever it is.
    """
    if store := declared(config):
        _start(store, config, platform, timeout_seconds)
    locations.require_lake()


def _start(store: ObjectStore, config: Settings, platform: Platform, timeout_seconds: float) -> None:
    fetch()
    store.prepare()
    os.environ.update(store.client_variables())
    if not platform.find(NAME):
        platform.start(NAME, store.command(), store.environment())
    store.wait(timeout_seconds, lambda: platform.require([NAME]))
    lake = locations.lake(config)
    if isinstance(lake, ObjectPath):
        store.create_bucket(lake.bucket)


def main() -> None:
    fetch()


if __name__ == "__main__":
    report(main)
