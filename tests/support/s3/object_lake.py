"""Lakes in an object store. `SLUICE_TEST_LAKE=s3` gives every test that opens a lake one on S3, instead of a disk."""

import atexit
import os
import re
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3

from tests.support.waiting import wait_until

BUCKET = "lakes-of-tests"
IS_USED = os.environ.get("SLUICE_TEST_LAKE") == "s3"


def new() -> str:
    """The URL of an empty lake in a store that runs."""
    return f"s3a://{BUCKET}/{uuid.uuid4().hex[:8]}"


def variables() -> dict[str, str]:
    """The settings of a test's home: a lake of its own in the store, or the default."""
    return {"SLUICE_LAKE": new()} if IS_USED else {}


def start(port: int, access_log: Path | None = None) -> "subprocess.Popen[bytes]":
    """Start a store at AWS_ENDPOINT_URL, in a process that ends with this one."""
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    with (access_log or Path(os.devnull)).open("ab") as log:
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log)
    atexit.register(server.kill)
    wait_until(_has_bucket, 60)
    return server


@contextmanager
def running(port: int, access_log: Path | None = None) -> Iterator[None]:
    """Run a store, unless the whole test run has one."""
    server = None if IS_USED else start(port, access_log)
    yield
    if server:
        server.kill()
        server.wait()


def requests(access_log: Path) -> Counter[str]:
    """The requests so far, by kind. A copy is a PUT."""
    found = re.findall(r'"(GET|HEAD|PUT|DELETE|POST) (\S+) HTTP', access_log.read_text())
    return Counter("LIST" if method == "GET" and "list-type=2" in path else method for method, path in found)


def _has_bucket() -> bool:
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
    except Exception:
        return False
    return True
