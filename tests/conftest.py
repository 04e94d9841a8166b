"""The resources that all tests share: a home directory, a Kafka broker and a Spark session."""

import atexit
import gc
import importlib.util
import json
import logging
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from include.settings import settings

ROOT = Path(__file__).resolve().parent.parent


def free_port() -> int:
    """A free port outside the range of outgoing connections, which could take the port before the test does."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


FULL_COLLECTION_AFTER = 30


def pytest_collection_finish() -> None:
    # A full garbage collection of all that the tests imported stops every thread for seconds on a busy machine, and
    # PostgreSQL ends a transaction that is idle for that long. So it runs between two tests, and without the imports.
    gc.freeze()
    gc.set_threshold(10_000, 10, 1_000_000)


def pytest_runtest_logfinish() -> None:
    if gc.get_count()[2] > FULL_COLLECTION_AFTER:
        gc.collect()


_exit_status: int | None = None


def pytest_sessionfinish(exitstatus: int) -> None:
    global _exit_status
    _exit_status = int(exitstatus)


def _exit_without_finalization() -> None:
    if _exit_status is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_status)


# Now and then a native library aborts the process while Python finalizes, although all tests have passed. Handlers run
# in reverse order, so this one runs last, and finalization is left out.
atexit.register(_exit_without_finalization)

S3_PORT = free_port()
# The project reads its settings on import.
_home = tempfile.TemporaryDirectory(prefix="sluice-tests-")
os.environ.update(
    {
        "SLUICE_HOME": _home.name,
        "SLUICE_JARS": os.environ.get("SLUICE_JARS", str(ROOT / "var" / "jars")),
        "SLUICE_VENV": sys.prefix,
        "SLUICE_KAFKA": f"127.0.0.1:{free_port()}",
        "SLUICE_AIRFLOW_PORT": str(free_port()),
        "SLUICE_LEASE_SECONDS": "10",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{S3_PORT}",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "tests",
        "AWS_SECRET_ACCESS_KEY": "of no value",
        "TZ": "UTC",
        # The shared session runs hundreds of queries. With the default of 1 GB, it gets slower with each query.
        "PYSPARK_SUBMIT_ARGS": "--driver-memory 4g pyspark-shell",
    }
)
os.environ.pop("SLUICE_CONTROL_URL", None)

from tests.support.s3 import object_lake  # noqa: E402

if object_lake.IS_USED:
    object_lake.run_for_all_tests(Path(_home.name) / "store", S3_PORT)
    os.environ.update({**object_lake.variables(), "AWS_ALLOW_HTTP": "true"})

from include.local import environment, java  # noqa: E402
from include.local.broker import Broker  # noqa: E402
from tests.support.slow import is_slow  # noqa: E402

# noqa: E402

os.environ.update(environment.write(settings(), java.home()))

# `make remove-examples` deletes these plugins.
pytest_plugins = [name for name in ("tests.support.pipeline",) if importlib.util.find_spec(name)]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if is_slow(item.nodeid):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def start_broker() -> Iterator[Callable[[Path, int], str]]:
    """`start_broker(directory, port)` starts a new broker and returns its address. The broker ends with the tests."""
    processes = []

    def start(directory: Path, port: int) -> str:
        broker = Broker(directory, settings().jars, java.home(), port, free_port())
        broker.prepare()
        with (directory / "broker.log").open("ab") as log:
            processes.append(subprocess.Popen(broker.command(), stdout=log, stderr=subprocess.STDOUT))
        broker.wait(timeout_seconds=180)
        return broker.address

    yield start
    for process in processes:
        process.kill()
        process.wait()


@pytest.fixture(scope="session")
def broker(start_broker) -> str:
    """The address of the broker that `settings().kafka` names."""
    return start_broker(settings().home / "broker", int(settings().kafka.split(":")[1]))


@pytest.fixture(scope="session")
def spark():
    """The one Spark session of the run."""
    from include import catalog
    from include.engine.session import open_session

    # py4j logs at the exit of the interpreter, when pytest has already closed the log streams.
    logging.getLogger("py4j").setLevel(logging.WARNING)
    session = open_session("sluice tests", catalog.load())
    yield session
    session.stop()


@pytest.fixture
def preview_rows(spark, tmp_path: Path) -> Callable[..., list]:
    """`preview_rows("silver.orders", {...})` returns the output rows of a table for sample rows, worst first.

    A sample row is a dict of the source's columns, or the text of a message. An output row has `row` (its columns),
    `breaks` (the rules that it breaks) and `becomes` (kept, repeated, drop, quarantine or fail).
    """
    from include import catalog
    from include.engine.preview.preview import PreviewRequest, previews

    def preview(table: str, *samples: dict | str) -> list:
        lines = [sample if isinstance(sample, str) else json.dumps(sample) for sample in samples]
        file = tmp_path / "sample.json"
        file.write_text("\n".join(lines))
        [table_preview] = previews(PreviewRequest(spark, catalog.load(), len(lines), file), table)
        return table_preview.outcome.rows

    return preview
