"""The requests of `include.lake.object_path` to an S3 store.

Credentials, region and address come from the `AWS_*` variables.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import lru_cache
from typing import IO, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from include.errors import Unreachable
from include.lake import clients
from include.lake.clients import CONNECT_SECONDS, MOST_RETRIES, RETRY_SECONDS
from include.lake.object_path import ObjectPath, ObjectStat

PROCESS = os.getpid()


def get(path: ObjectPath) -> bytes:
    with _named(path, "read"):
        return bytes(obstore.get(_bucket(path.bucket), path.key).bytes())


def put(path: ObjectPath, content: bytes | IO[bytes]) -> None:
    with _named(path, "written"):
        obstore.put(_bucket(path.bucket), path.key, content)


def put_new(path: ObjectPath, content: bytes) -> bool:
    with _named(path, "written"):
        try:
            obstore.put(_bucket(path.bucket), path.key, content, mode="create")
        except AlreadyExistsError:
            return False
        return True


def head(path: ObjectPath) -> ObjectStat:
    with _named(path, "read"):
        return _status(obstore.head(_bucket(path.bucket), path.key))


def delete(path: ObjectPath) -> None:
    with _named(path, "deleted"):
        obstore.delete(_bucket(path.bucket), path.key)


def holds_any(path: ObjectPath) -> bool:
    with _named(path, "listed"), _in_bucket(path):
        return any(obstore.list(_bucket(path.bucket), path.key, chunk_size=1))


def list_directory(path: ObjectPath) -> dict[str, ObjectStat | None]:
    """Returns the objects and, without a status, the subdirectories of a directory, by name."""
    with _named(path, "listed"), _in_bucket(path):
        found = obstore.list_with_delimiter(_bucket(path.bucket), path.key)
    directories = {_name(prefix): None for prefix in found["common_prefixes"]}
    # Hadoop marks a directory by an empty object, which the client names as the directory.
    objects = (entry for entry in found["objects"] if entry["path"] != path.key)
    return directories | {_name(entry["path"]): _status(entry) for entry in objects}


def delete_directory(path: ObjectPath) -> None:
    """Deletes all objects of a directory, with those by which Hadoop marks directories; the client cannot name them."""
    try:
        clients.bucket_file_system(path.bucket).delete_dir(f"{path.bucket}/{path.key}")
    except FileNotFoundError:
        return
    except OSError as error:
        raise clients.unreachable(path, "deleted", error) from error


@lru_cache
def _bucket(name: str) -> S3Store:
    return S3Store(
        name,
        client_options={"allow_http": True, "connect_timeout": timedelta(seconds=CONNECT_SECONDS)},
        retry_config={"max_retries": MOST_RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)},
    )


@contextmanager
def _named(path: ObjectPath, what: str) -> Iterator[None]:
    if os.getpid() != PROCESS:
        raise RuntimeError(f"{path}: a forked process would wait forever for the client's threads: start a new one")
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} does not exist") from error
    except (BaseError, OSError) as error:
        raise clients.unreachable(path, what, error) from error


@contextmanager
def _in_bucket(path: ObjectPath) -> Iterator[None]:
    """A listing finds nothing or something; only that of a bucket that does not exist fails."""
    try:
        yield
    except FileNotFoundError as error:
        raise Unreachable(f"{path} cannot be listed: there is no bucket {path.bucket}, create it") from error


def _status(entry: Any) -> ObjectStat:
    return ObjectStat(entry["size"], entry["last_modified"].timestamp(), entry["e_tag"] or "")


def _name(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]
