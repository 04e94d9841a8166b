"""The requests of `include.lake.paths` to an S3 store.

Credentials, region and address come from the `AWS_*` variables.
"""

import os
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from typing import IO, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from include.lake import clients, outages
from include.lake.clients import CONNECT_SECONDS, MOST_RETRIES, RETRY_SECONDS
from include.lake.paths import ObjectPath, ObjectStat

PROCESS = os.getpid()
# For a question whose answer may be that the store is away. One request of many may fail by chance.
PROBE_SECONDS, PROBE_RETRIES = 3, 2
OPTIONS: Any = {"allow_http": True, "connect_timeout": timedelta(seconds=CONNECT_SECONDS)}


def get(path: ObjectPath) -> bytes:
    with _named(path):
        return bytes(obstore.get(_bucket(path.bucket), path.key).bytes())


def put(path: ObjectPath, content: bytes | IO[bytes]) -> None:
    with _named(path):
        obstore.put(_bucket(path.bucket), path.key, content)


def put_new(path: ObjectPath, content: bytes) -> bool:
    with _named(path):
        try:
            obstore.put(_bucket(path.bucket), path.key, content, mode="create")
        except AlreadyExistsError:
            return False
        return True


def head(path: ObjectPath) -> ObjectStat:
    with _named(path):
        return _status(obstore.head(_bucket(path.bucket), path.key))


def delete(path: ObjectPath) -> None:
    with _named(path):
        obstore.delete(_bucket(path.bucket), path.key)


def holds_any(path: ObjectPath) -> bool:
    with _named(path), _in_bucket(path):
        return any(obstore.list(_bucket(path.bucket), path.key, chunk_size=1))


def list_directory(path: ObjectPath) -> dict[str, ObjectStat | None]:
    """Returns the objects and, without a status, the subdirectories of a directory, by name."""
    with _named(path), _in_bucket(path):
        found = obstore.list_with_delimiter(_bucket(path.bucket), path.key)
    directories = {_name(prefix): None for prefix in found["common_prefixes"]}
    # Hadoop marks a directory by an empty object, which the client names as the directory.
    objects = (entry for entry in found["objects"] if entry["path"] != path.key)
    return directories | {_name(entry["path"]): _status(entry) for entry in objects}


def delete_directory(path: ObjectPath) -> None:
    """Deletes all objects of a directory, with those by which Hadoop marks directories; the client cannot name them."""
    system, directory = clients.bucket_file_system(path.bucket), f"{path.bucket}/{path.key}"
    with _named(path), suppress(FileNotFoundError):
        try:
            system.delete_dir(directory)
        except FileNotFoundError:
            raise
        except OSError:
            # Arrow deletes a directory before those in it. A store that keeps objects as files refuses that, deletes
            # the others, and has no objects left.
            system.delete_dir(directory)


def probe(path: ObjectPath) -> None:
    patience = timedelta(seconds=PROBE_SECONDS)
    options: Any = {**OPTIONS, "timeout": patience}
    store = S3Store(
        path.bucket, client_options=options, retry_config={"max_retries": PROBE_RETRIES, "retry_timeout": patience}
    )
    with _named(path), _in_bucket(path):
        obstore.list_with_delimiter(store, path.key)


@lru_cache
def _bucket(name: str) -> S3Store:
    retries: Any = {"max_retries": MOST_RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
    return S3Store(name, client_options=OPTIONS, retry_config=retries)


@contextmanager
def _named(path: ObjectPath) -> Iterator[None]:
    if os.getpid() != PROCESS:
        raise RuntimeError(f"{path}: a forked process would wait forever for the client's threads: start a new one")
    outages.raise_known(path)
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} does not exist") from error
    except (BaseError, OSError) as error:
        raise outages.of_text(str(path), str(error)) from error


@contextmanager
def _in_bucket(path: ObjectPath) -> Iterator[None]:
    """A listing finds nothing or something; only that of a bucket that does not exist fails."""
    try:
        yield
    except FileNotFoundError as error:
        raise outages.error_of(str(path), outages.NO_BUCKET, is_refused=False) from error


def _status(entry: Any) -> ObjectStat:
    return ObjectStat(entry["size"], entry["last_modified"].timestamp(), entry["e_tag"] or "")


def _name(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


# A store that checks first and writes later lets two of eight through in nearly each round, and is found in the first.
WRITERS, ROUNDS = 8, 5


def has_one_winner(directory: ObjectPath) -> bool:
    """Whether each of several races for an object in the directory has exactly one winner. Raises Unreachable.

    One creation after the other proves little: some stores refuse the second one, and let both through if they overlap.
    """
    with ThreadPoolExecutor(WRITERS) as pool:
        return all(_winners(directory / f"_probe-{uuid.uuid4().hex}", pool) == 1 for _ in range(ROUNDS))


def _winners(path: ObjectPath, pool: ThreadPoolExecutor) -> int:
    start = threading.Barrier(WRITERS)

    def create(writer: int) -> bool:
        start.wait()
        return path.create(f"writer {writer}".encode())

    try:
        return sum(pool.map(create, range(WRITERS)))
    finally:
        path.unlink()
