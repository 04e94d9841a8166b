"""The requests of `include.lake.paths` to an S3 store.

Credentials, region and address come from the `AWS_*` variables.
delta-rs and Arrow, which open files of tables, too, get their options here. So do those who wait for a store that is
away.
"""

import os
import re
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import IO, Any

import obstore
import pyarrow as pa
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store
from pyarrow import fs

from include.errors import Unreachable
from include.lake.paths import LakePath, ObjectPath, ObjectStat
from include.settings import settings

# A reader waits up to this long for a store that is away. Its caller tries again, or a person does. The delays between
# the retries double, beginning with 0.1 s.
CONNECT_SECONDS, RETRY_SECONDS, MOST_RETRIES = 2, 10, 8
# Credentials, region and address are in the `AWS_*` variables, which all these libraries read.
STORAGE_OPTIONS = {
    "allow_http": "true",
    "connect_timeout": f"{CONNECT_SECONDS}s",
    "retry_timeout": f"{RETRY_SECONDS}s",
    "max_retries": str(MOST_RETRIES),
}


def delta_rs(path: LakePath) -> tuple[str, dict[str, str] | None]:
    """Returns the URI and the storage options of a table."""
    if isinstance(path, Path):
        return str(path), None
    return f"s3://{path.bucket}/{path.key}", STORAGE_OPTIONS


def file_system(path: LakePath) -> fs.FileSystem:
    """Returns an Arrow file system whose paths are relative to this directory."""
    if isinstance(path, Path):
        return fs.SubTreeFileSystem(str(path), fs.LocalFileSystem())
    return fs.SubTreeFileSystem(f"{path.bucket}/{path.key}", bucket_file_system(path.bucket))


@lru_cache
def bucket_file_system(bucket: str) -> fs.FileSystem:
    """Returns the file system of a bucket, whose paths begin with the bucket."""
    return fs.FileSystem.from_uri(f"s3://{bucket}")[0]


def readable(path: LakePath) -> Any:
    """Returns what pyarrow reads as a Parquet file. It fetches an object with one request, and holds it in memory."""
    return path if isinstance(path, Path) else pa.BufferReader(path.read_bytes())


def seekable(path: LakePath) -> Any:
    """Returns what pyarrow reads as a Parquet file of any size, part by part."""
    return path if isinstance(path, Path) else file_system(path.parent).open_input_file(path.name)


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
    system, directory = bucket_file_system(path.bucket), f"{path.bucket}/{path.key}"
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
    raise_known(path)
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{path} does not exist") from error
    except (BaseError, OSError) as error:
        raise of_text(str(path), str(error)) from error


@contextmanager
def _in_bucket(path: ObjectPath) -> Iterator[None]:
    """A listing finds nothing or something; only that of a bucket that does not exist fails."""
    try:
        yield
    except FileNotFoundError as error:
        raise error_of(str(path), NO_BUCKET, is_refused=False) from error


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


AWAY, REFUSED = "UNREACHABLE", "ACCESS"
# Error codes of S3 that only other credentials cure. Their HTTP status is 400 or 403.
REFUSAL_CODES = (
    *("AccessDenied", "AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken"),
    *("InvalidAccessKeyId", "InvalidToken", "RequestTimeTooSkewed", "SignatureDoesNotMatch", "TokenRefreshRequired"),
)
# Without a body, as in the answer to HEAD, 400 means a token that is expired or for another region.
REFUSAL_STATUS = (400, 401, 403)
# Where the libraries look for credentials that no variable has.
METADATA_SERVICE = "169.254.169.254"
NO_BUCKET = "NoSuchBucket"
CODE, STATUS = re.compile(r"<Code>(\w+)</Code>"), re.compile(r"(?:status code:?|HTTP status) (\d{3})\b")
# Arrow spells `AccessDenied` as ACCESS_DENIED.
ARROW_CODE = re.compile(r"AWS Error (\w+)")
CAUSE = re.compile(r"Connection refused|timed out|TimedOut|dns error|certificate")
# delta-rs colours its messages.
COLOUR = re.compile("\x1b\\[[0-9;]*m")
REASON_CHARACTERS = 120
# A process that looks at every table waits once, and not at each table again.
KNOWN_SECONDS = 5


def error_of(path: str, reason: str, is_refused: bool) -> Unreachable:
    """Returns the error for a path of a store, `s3a://bucket/key`. reason: what the store or its client says.

    A path outside the lake, such as a landing folder, is named as itself.
    """
    lake = str(settings().lake)
    is_lake = f"{path}/".startswith(f"{lake}/") or f"{lake}/".startswith(f"{path}/")
    place, where = f"the lake {lake}" if is_lake else path, os.environ.get("AWS_ENDPOINT_URL") or "Amazon S3"
    name = f"{'LAKE' if is_lake else 'SOURCE'}_{REFUSED if is_refused else AWAY}"
    if is_refused:
        return Unreachable(
            f"{place} cannot be used, because the store at {where} refuses the credentials ({reason} for {path}): "
            f"renew them, or permit them to use the bucket",
            name,
        )
    if reason == NO_BUCKET:
        return Unreachable(f"{place} lies in a bucket that does not exist at {where}: create it", name)
    return Unreachable(
        f"{place} cannot be used, because the store at {where} does not answer ({reason}): start it, or correct "
        f"AWS_ENDPOINT_URL",
        name,
    )


def of_text(path: str, text: str) -> Unreachable:
    """Returns the error for a message of delta-rs, obstore or Arrow. path: as for `error_of`."""
    plain = " ".join(COLOUR.sub("", text).replace("↳", "").split())
    if METADATA_SERVICE in plain:
        return error_of(path, "none were found", is_refused=True)
    code, status, cause = CODE.search(plain) or ARROW_CODE.search(plain), STATUS.search(plain), CAUSE.search(plain)
    named = code[1].title().replace("_", "") if code and code.re is ARROW_CODE else code[1] if code else ""
    if named == "Unknown":
        named = ""
    reason = named or (f"HTTP status {status[1]}" if status else cause[0] if cause else plain)
    return error_of(path, reason[:REASON_CHARACTERS], is_refusal(int(status[1]) if status else 0, named))


def is_refusal(status: int, code: str) -> bool:
    """Whether an answer refuses the credentials. status: of HTTP, 0 if unknown. code: empty without a body."""
    return code in REFUSAL_CODES or (not code and status in REFUSAL_STATUS)


def of_lake() -> Unreachable | None:
    """Asks the store once, with little patience, and returns its error; None if it answers or the lake is a disk.

    After an error, the lake's other readers in this process fail at once for some seconds.
    """
    global _known
    lake, _known = settings().lake, None
    try:
        if isinstance(lake, ObjectPath):
            lake.probe()
    except Unreachable as error:
        _known = (error, time.monotonic() + KNOWN_SECONDS)
        return error
    return None


def require_lake() -> None:
    """Raises Unreachable if the lake's store does not answer."""
    if outage := of_lake():
        raise outage


def raise_known(path: ObjectPath) -> None:
    """Raises the error that `of_lake` has found a moment ago."""
    if _known and time.monotonic() < _known[1] and str(path).startswith(f"{settings().lake}/"):
        raise _known[0]


_known: tuple[Unreachable, float] | None = None
