"""Lakes in an object store. `SLUICE_TEST_LAKE=s3` gives every test that opens a lake one on S3, instead of a disk.

The store is versitygw if `make store` has built it, else moto.
"""

import atexit
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3

from include.lake import paths
from include.local import object_store
from include.local.object_store import ObjectStore
from tests.support.waiting import wait_until

BUCKET = "lakes-of-tests"
IS_USED = os.environ.get("SLUICE_TEST_LAKE") == "s3"
# A line of moto has the request, and a line of versitygw the name of the operation.
REQUEST = re.compile(r'"(GET|HEAD|PUT|DELETE|POST) (\S+) HTTP| s3_(List|Get|Head|Put|Copy|Delete)')
KINDS = {"List": "LIST", "Get": "GET", "Head": "HEAD", "Put": "PUT", "Copy": "PUT", "Delete": "DELETE"}


def new() -> str:
    """The URL of an empty lake in a store that runs."""
    return f"s3a://{BUCKET}/{uuid.uuid4().hex[:8]}"


def variables() -> dict[str, str]:
    """The settings of a test's home: a lake of its own in the store, or the default."""
    return {"SLUICE_LAKE": new()} if IS_USED else {}


@contextmanager
def running(port: int, takes_any_key: bool = False) -> Iterator[Path | None]:
    """Run a store at AWS_ENDPOINT_URL during the block, unless the whole test run has one. Yields its access log.

    takes_any_key: whatever credentials a client has, as only moto does.
    """
    if IS_USED:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="sluice-store-") as directory:
        store = ObjectStore(Path(directory), port)
        server = _start(store, takes_any_key)
        yield store.access_log
        server.kill()
        server.wait()
        # Clients keep the credentials of their first request.
        for clients in (paths._bucket, paths.bucket_file_system):
            clients.cache_clear()


def run_for_all_tests(directory: Path, port: int) -> None:
    """Start a store at AWS_ENDPOINT_URL, with its data in the directory. It ends with this process."""
    atexit.register(_start(ObjectStore(directory, port)).kill)


def requests(access_log: Path) -> Counter[str]:
    """The requests so far, by kind. A copy is a PUT."""
    kinds = Counter()
    for method, path, operation in REQUEST.findall(access_log.read_text()):
        kinds["LIST" if method == "GET" and "list-type=2" in path else method or KINDS[operation]] += 1
    return kinds


def _start(store: ObjectStore, takes_any_key: bool = False) -> "subprocess.Popen[bytes]":
    store.directory.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(store.port)]
    variables = dict(os.environ)
    if object_store.program().exists() and not takes_any_key:
        store.prepare()
        command = store.command()
        # The JVM of the shared session keeps the credentials that it was started with.
        key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
        variables |= {"ROOT_ACCESS_KEY": key, "ROOT_SECRET_KEY": secret}
    # moto prints a line for each request; versitygw writes it there itself.
    with store.access_log.open("ab") as log:
        server = subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT)
    try:
        wait_until(_has_bucket, 60, store.access_log.read_text)
    except BaseException:
        server.kill()
        raise
    return server


def _has_bucket() -> bool:
    try:
        boto3.client("s3").create_bucket(Bucket=BUCKET)
    except Exception:
        return False
    return True
