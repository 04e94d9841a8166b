"""The paths of the lake: of a local disk, or of a bucket in an object store; `SLUICE_LAKE` says where it lies."""

import importlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from include.errors import UsageError


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
        return f"s3a://{self.bucket}/{self.key}".rstrip("/")

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
        content: bytes = _store().get(self)
        return content

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Raises FileNotFoundError."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, content: bytes | IO[bytes]) -> None:
        """Writes the object as a whole. A large file takes a request for each part."""
        _store().put(self, content)

    def create(self, content: bytes) -> bool:
        """Writes the object unless it exists. Returns whether it was written. Some stores replace it all the same."""
        return bool(_store().put_new(self, content))

    def write_text(self, text: str) -> None:
        self.write_bytes(text.encode())

    def stat(self) -> ObjectStat:
        """Raises FileNotFoundError."""
        status: ObjectStat = _store().head(self)
        return status

    def exists(self) -> bool:
        """Whether there is such an object; False for a directory."""
        try:
            self.stat()
        except FileNotFoundError:
            return False
        return True

    def is_dir(self) -> bool:
        return bool(_store().holds_any(self))

    def entries(self) -> dict[str, ObjectStat | None]:
        """Returns the names in this directory, each with its status; None for a subdirectory."""
        found: dict[str, ObjectStat | None] = _store().list_directory(self)
        return found

    def iterdir(self) -> Iterator["ObjectPath"]:
        """Yields objects and directories; nothing if there is no such directory."""
        return (self / name for name in self.entries())

    def probe(self) -> None:
        """Lists this directory with little patience. Raises Unreachable if the store does not answer in seconds."""
        _store().probe(self)

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Does nothing."""

    def unlink(self, missing_ok: bool = True) -> None:
        """Deletes the object. A store does not say whether there was one."""
        _store().delete(self)


LakePath = Path | ObjectPath


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
        _store().delete_directory(directory)
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _store() -> Any:
    """Imports the client on use, because most lakes need none."""
    return importlib.import_module("include.lake.object_store")


NAME = "SLUICE_LAKE"


def parse(value: str) -> LakePath:
    """Returns the path of the lake. Raises UsageError for a value that is neither a path nor such a URL."""
    if "://" not in value:
        return Path(value).resolve()
    # Hadoop calls the scheme s3a, others call it s3.
    scheme, bucket, path, query, fragment = urlsplit(value)
    if scheme == "file" and not bucket and path.startswith("/"):
        return Path(unquote(path)).resolve()
    key = path.strip("/")
    if scheme not in ("s3", "s3a") or not bucket or not key or query or fragment:
        raise UsageError(
            f"{NAME} is {value!r}, which is no place for tables: set it to a path, to file:///PATH or to "
            f"s3a://BUCKET/PREFIX"
        )
    return ObjectPath(bucket, key)
