"""The paths of the lake: of a local disk, or of a bucket in an S3 store.

Credentials, region and address of a store come from the `AWS_*` variables.
"""

import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store
from pyarrow import fs

from include.lake import outages

# A reader waits up to this long for a store that is away. Its caller tries again, or a person does. The delays between
# the retries double, beginning with 0.1 s.
CONNECT_SECONDS, RETRY_SECONDS, MOST_RETRIES = 2, 10, 8
# For a question whose answer may be that the store is away. One request of many may fail by chance.
PROBE_SECONDS, PROBE_RETRIES = 3, 2
OPTIONS: Any = {"allow_http": True, "connect_timeout": timedelta(seconds=CONNECT_SECONDS)}
SCHEME = "s3a://"


@dataclass(frozen=True)
class ObjectStat:
    """The size of an object in bytes, and when it was written, in seconds since 1970. version: its ETag."""

    st_size: int
    st_mtime: float
    version: str


@dataclass(frozen=True, order=True)
class ObjectPath:
    """`s3a://bucket/key`, with the methods of `pathlib.Path` that are called on paths of the lake.

    A store has no directories: one exists while it holds an object. Each call asks the store, once if nothing else is
    said, and nothing is remembered. Every method raises Unreachable where the store does not answer.
    """

    bucket: str
    key: str

    def __str__(self) -> str:
        # As Hadoop spells it. `include.lake.clients` translates it for other libraries.
        return f"{SCHEME}{self.bucket}/{self.key}".rstrip("/")

    def __truediv__(self, name: str) -> "ObjectPath":
        return ObjectPath(self.bucket, f"{self.key}/{name}".strip("/"))

    @property
    def name(self) -> str:
        return self.key.rpartition("/")[2]

    @property
    def parent(self) -> "ObjectPath":
        return ObjectPath(self.bucket, self.key.rpartition("/")[0])

    def read_bytes(self) -> bytes:
        """Raises FileNotFoundError."""
        with _named(self):
            return bytes(obstore.get(_bucket(self.bucket), self.key).bytes())

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Raises FileNotFoundError."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, content: bytes | IO[bytes]) -> None:
        """Writes the object as a whole. A large file takes a request for each part."""
        with _named(self):
            obstore.put(_bucket(self.bucket), self.key, content)

    def create(self, content: bytes) -> bool:
        """Writes the object unless it exists. Returns whether it was written. Some stores replace it all the same."""
        with _named(self):
            try:
                obstore.put(_bucket(self.bucket), self.key, content, mode="create")
            except AlreadyExistsError:
                return False
            return True

    def write_text(self, text: str) -> None:
        self.write_bytes(text.encode())

    def stat(self) -> ObjectStat:
        """Raises FileNotFoundError."""
        with _named(self):
            return _status(obstore.head(_bucket(self.bucket), self.key))

    def exists(self) -> bool:
        """Whether there is such an object; False for a directory."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        with _named(self), _in_bucket(self):
            return any(obstore.list(_bucket(self.bucket), self.key, chunk_size=1))

    def entries(self) -> dict[str, ObjectStat | None]:
        """Returns the names in this directory, each with its status; None for a subdirectory."""
        with _named(self), _in_bucket(self):
            found = obstore.list_with_delimiter(_bucket(self.bucket), self.key)
        directories = {_name(prefix): None for prefix in found["common_prefixes"]}
        # Hadoop marks a directory by an empty object, which the client names as the directory.
        objects = (entry for entry in found["objects"] if entry["path"] != self.key)
        return directories | {_name(entry["path"]): _status(entry) for entry in objects}

    def iterdir(self) -> Iterator["ObjectPath"]:
        """Yields objects and directories; nothing if there is no such directory."""
        return (self / name for name in self.entries())

    def probe(self) -> None:
        """Lists this directory with little patience. Raises Unreachable if the store does not answer in seconds."""
        patience = timedelta(seconds=PROBE_SECONDS)
        options: Any = {**OPTIONS, "timeout": patience}
        store = S3Store(
            self.bucket, client_options=options, retry_config={"max_retries": PROBE_RETRIES, "retry_timeout": patience}
        )
        with _named(self), _in_bucket(self):
            obstore.list_with_delimiter(store, self.key)

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing."""

    def unlink(self, missing_ok: bool = True) -> None:
        """Deletes the object. A store does not say whether there was one."""
        with _named(self):
            obstore.delete(_bucket(self.bucket), self.key)

    def remove_tree(self) -> None:
        """Deletes all objects of this directory, with those by which Hadoop marks directories; obstore cannot name
        them.
        """
        system, directory = bucket_file_system(self.bucket), f"{self.bucket}/{self.key}"
        with _named(self), suppress(FileNotFoundError):
            try:
                system.delete_dir(directory)
            except FileNotFoundError:
                raise
            except OSError:
                # Arrow deletes a directory before those in it. A store that keeps objects as files refuses that,
                # deletes the others, and has no objects left.
                system.delete_dir(directory)


LakePath = Path | ObjectPath


def parse(location: str) -> LakePath:
    """Returns the path of a location as `Settings.lake` has it: an absolute path, or `s3a://bucket/key`."""
    if not location.startswith(SCHEME):
        return Path(location)
    bucket, _, key = location.removeprefix(SCHEME).partition("/")
    return ObjectPath(bucket, key)


def holds_numbered(directory: LakePath) -> bool:
    """Returns whether a directory holds a file whose name begins with a digit. In a store, any object counts."""
    if isinstance(directory, ObjectPath):
        # A writer of a store leaves neither an empty directory nor half a file.
        return directory.is_dir()
    try:
        with os.scandir(directory) as entries:
            return any(entry.name[0].isdigit() for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return False


def names(directory: LakePath) -> list[str]:
    """Returns the names in a directory; none if there is no such directory."""
    if isinstance(directory, ObjectPath):
        return [*directory.entries()]
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries]
    except (FileNotFoundError, NotADirectoryError):
        return []


def remove_tree(directory: LakePath) -> None:
    """Deletes a directory and all in it, if it is there."""
    if isinstance(directory, ObjectPath):
        directory.remove_tree()
    else:
        shutil.rmtree(directory, ignore_errors=True)


@lru_cache
def bucket_file_system(bucket: str) -> fs.FileSystem:
    """Returns Arrow's file system of a bucket, whose paths begin with the bucket."""
    return fs.FileSystem.from_uri(f"s3://{bucket}")[0]


@lru_cache
def _bucket(name: str) -> S3Store:
    retries: Any = {"max_retries": MOST_RETRIES, "retry_timeout": timedelta(seconds=RETRY_SECONDS)}
    return S3Store(name, client_options=OPTIONS, retry_config=retries)


@lru_cache
def _process_of_clients() -> int:
    """The process that made the first request; its forks inherit clients without their threads."""
    return os.getpid()


@contextmanager
def _named(path: ObjectPath) -> Iterator[None]:
    if os.getpid() != _process_of_clients():
        raise RuntimeError(f"{path}: a forked process would wait forever for the client's threads: start a new one")
    outages.raise_known(str(path))
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
