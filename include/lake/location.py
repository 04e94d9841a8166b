"""Where the lake lies: `SLUICE_LAKE`, a path or a URL."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from include.errors import UsageError
from include.lake.object_path import LakePath, ObjectPath

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
