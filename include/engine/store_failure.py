"""Finds out whether a query failed because of an S3 store. Spark reads and writes it by Hadoop's S3A."""

import re
from typing import Any

from py4j.protocol import Py4JError

from include.errors import Unreachable
from include.lake import outages
from include.lake.paths import ObjectPath
from include.settings import settings

SDK = "software.amazon.awssdk."
S3A = "org.apache.hadoop.fs.s3a."
# Exceptions of the connection, where S3A leaves out those of the SDK. Nothing else in this JVM has this HTTP client.
SILENCE = ("org.apache.http.", f"{S3A}HttpChannelEOFException", f"{S3A}AWSApiCallTimeoutException")
# Exceptions of S3A that need no answer of the store.
NO_CREDENTIALS = (f"{S3A}auth.NoAuthWithAWSException", f"{S3A}auth.NoAwsCredentialsException")
# S3A names what it reads; of what it writes, often the key only. Its input stream spells the scheme `s3`.
PATH = re.compile(r"\bs3a?://([^\s:]+)")
# What a store answers while it is overloaded or broken. Other answers are about one request.
BUSY = (429, 500, 502, 503, 504)
NOT_FOUND = 404
REASON_CHARACTERS = 120


def of(chain: list[Any]) -> Unreachable | None:
    """Returns the error of the store behind this chain of Java exceptions, outermost first; None for other errors."""
    path = _path(chain)
    for cause in chain:
        name = cause.getClass().getName()
        if name in NO_CREDENTIALS:
            return outages.error_of(path, "none were found", is_refused=True)
        if name.startswith(SILENCE):
            return _of_silence(chain, path)
        if name.startswith(SDK):
            return _of_answer(cause, path) if _call(cause, "statusCode") else _of_silence(chain, path)
    return None


def _of_answer(error: Any, path: str) -> Unreachable | None:
    status, details = int(_call(error, "statusCode") or 0), _call(error, "awsErrorDetails")
    # An answer to HEAD has no body, and the SDK then makes up a code of the status.
    code = str(details.errorCode() or "") if details is not None else ""
    code = "" if code.isdigit() else code
    reason = code or f"HTTP status {status}"
    if outages.is_refusal(status, code):
        return outages.error_of(path, reason, is_refused=True)
    if status in BUSY or (status, code) == (NOT_FOUND, outages.NO_BUCKET):
        return outages.error_of(path, reason, is_refused=False)
    return None


def _of_silence(chain: list[Any], path: str) -> Unreachable:
    innermost = chain[-1]
    reason = f"{innermost.getClass().getSimpleName()}: {' '.join(str(innermost.getMessage()).split())}"
    return outages.error_of(path, reason[:REASON_CHARACTERS], is_refused=False)


def _path(chain: list[Any]) -> str:
    """Returns the path that the innermost message names. A message without one is of a write, thus of the lake."""
    found = (PATH.search(str(cause.getMessage())) for cause in reversed(chain))
    if match := next(filter(None, found), None):
        return f"s3a://{match[1].rstrip('.')}"
    lake = settings().lake
    return str(lake) if isinstance(lake, ObjectPath) else "a folder on S3"


def _call(error: Any, method: str) -> Any:
    """Calls a method of an answer's exception; returns None for other exceptions, which lack it."""
    try:
        return getattr(error, method)()
    except Py4JError:
        return None
