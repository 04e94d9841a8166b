"""Classifies failures of queries by the error conditions and SQLSTATEs of Spark and Delta, never by message text.

A failure of an S3 store is recognized by the exceptions of Hadoop's S3A, by which Spark reads and writes it.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming.query import StreamingQuery

from include import personal
from include.errors import FlowBroken, FlowFailed, SluiceError, Unreachable
from include.lake import outages
from include.settings import settings
from include.spec import Table

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
PYTHON_LINE = re.compile(r"[^():]+:\d+")


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
    return settings().lake if settings().has_s3_lake else "a folder on S3"


def _call(error: Any, method: str) -> Any:
    """Calls a method of an answer's exception; returns None for other exceptions, which lack it."""
    try:
        return getattr(error, method)()
    except Py4JError:
        return None


# SQLSTATE classes (ISO 9075-2, and Spark's README of error conditions) of errors that a retry repeats: not supported,
# wrong cardinality, data exception, constraint, access rule or syntax, failed function.
INCURABLE_STATES = ("0A", "21", "22", "23", "42", "44", "39", "38")
# Other errors that a retry repeats, although their SQLSTATE does not say so.
INCURABLE = (
    "KAFKA_DATA_LOSS",
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "DELTA_MISSING_CHANGE_DATA",
    "MALFORMED_LOG_FILE",
    "STATE_STORE_",
    "DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART",
    # Raised by `fails=True`.
    "USER_RAISED_EXCEPTION",
)
# Errors that a retry may cure, although their SQLSTATE says otherwise: wrappers of a cause, and short outages.
CURABLE = (
    "FOREACH_BATCH_USER_FUNCTION_ERROR",
    "FAILED_RENAME_PATH",
    "STREAM_FAILED",
    "TASK_WRITE_FAILED",
    "PATH_NOT_FOUND",
)
# A table that a query reads has other columns than when the query started.
COLUMNS_CHANGED = "DELTA_SCHEMA_CHANGED"
# Conditions that only say where an error came up.
WRAPPERS = ("STREAM_FAILED", "FOREACH_BATCH_USER_FUNCTION_ERROR", "TASK_WRITE_FAILED")
READ_AGAIN = "move its table away and action reset checkpoint reads all of its source into a new one"
REMEDIES = {
    "KAFKA_DATA_LOSS": "action accept data loss records what is gone and goes on after it",
    "KAFKA_ACCESS": "correct the properties file of its Kafka cluster",
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE": READ_AGAIN,
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES": READ_AGAIN,
    "DELTA_SOURCE_IGNORE_DELETE": READ_AGAIN,
    "UNRESOLVED_COLUMN": "correct its name, or if files bring it later, declare it in the schema of their bronze table",
    "NULLABLE_COLUMN_OR_FIELD": "give it a value by coalesce, or declare it without NOT NULL",
    "DELTA_MISSING_CHANGE_DATA": "begin where its source keeps changes: a later since_version, or none for all",
}
# Conditions of errors that no row causes, although a retry repeats them, and the classes of such exceptions. Data is
# suspected of all others: a search tells whether they follow a row.
NOT_OF_ROWS = (
    *(name for name in INCURABLE if name != "USER_RAISED_EXCEPTION"),
    "PATH_NOT_FOUND",
    "FAILED_RENAME_PATH",
    "FAILED_READ_FILE",
    "DELTA_CONCURRENT",
    "DELTA_DUPLICATE_COLUMNS",
    "UNRESOLVED_",
)
NOT_OF_ROWS_CLASSES = (
    "java.lang.InterruptedException",
    "java.lang.OutOfMemoryError",
    "java.nio.channels.ClosedByInterruptException",
    "java.io.FileNotFoundException",
    "io.delta.exceptions.",
    "org.apache.spark.sql.AnalysisException",
    "org.apache.spark.sql.catalyst.ExtendedAnalysisException",
    "org.apache.spark.sql.catalyst.parser.ParseException",
    "org.apache.spark.sql.delta.DeltaAnalysisException",
)
# Kafka's exceptions that one record causes.
OF_RECORDS_IN_KAFKA = ("CorruptRecordException", "InvalidRecordException", "RecordDeserializationException")
# Kafka's exceptions, which have no error condition of Spark.
LOST_IN_KAFKA = ("org.apache.kafka.clients.consumer.OffsetOutOfRangeException",)
# Kafka's client was given properties that it cannot use.
UNUSABLE_IN_KAFKA = (
    "org.apache.kafka.common.errors.InvalidConfigurationException",
    "org.apache.kafka.common.config.ConfigException",
)
KAFKA_PACKAGE = "org.apache.kafka.common."
# The exception of a Python function, and where Spark notices that the process of one died.
PYTHON_EXCEPTION = "org.apache.spark.api.python.PythonException"
PYTHON_RUNNER = "org.apache.spark.api.python.BasePythonRunner"
PYTHON_FAILED = "PYTHON_EXCEPTION"
PYTHON_DIED = "its process died"
TOP_FRAMES = 5
SENTENCE_CHARACTERS = 300
MOST_CAUSES = 20


def of_query(flow: str, query: StreamingQuery, batch_error: Exception | None, table: Table | None) -> SluiceError:
    """Returns the error that ended the query. batch_error: raised by the batch function; Spark wraps it in pages of
    text. table: as for `reason`.
    """
    if batch_error:
        return of_exception(flow, batch_error, table)
    java_exception = query._jsq.exception()
    chain = list(_causes(java_exception.get())) if java_exception.isDefined() else []
    return _flow_error(flow, chain, query.exception(), table)


def of_exception(flow: str, error: Exception, table: Table | None) -> SluiceError:
    """Returns the error that kept a query from starting, or that its batch function raised. table: as for `reason`."""
    if isinstance(error, SluiceError):
        return error
    return _flow_error(flow, list(_causes(_java_exception(error))), error, table)


def raise_outage(error: Exception) -> None:
    """Raises Unreachable if the error is one of an S3 store."""
    if outage := of(list(_causes(_java_exception(error)))):
        raise outage from error


def reason(error: Exception, table: Table | None = None) -> str:
    """Returns what is wrong, in one line: what the Java exceptions behind an error say, or else the error itself.

    table: whose personal data it does not show.
    """
    return _shown(_reason(list(_causes(_java_exception(error))), error), error, table)


def innermost_reason(error: Exception) -> str:
    """Returns the same of the innermost Java exception alone, where the others name a file that is known."""
    return _reason(list(_causes(_java_exception(error)))[-1:], error)


def expression(error: Exception) -> str:
    """Returns what of the query raised the error: its SQL, or the method and the line of Python that calls it. Empty if
    Spark does not say.
    """
    for cause in reversed(list(_causes(_java_exception(error)))):
        for context in _call_if_present(cause, "getQueryContext") or ():
            fragment = " ".join(str(context.fragment()).split())[:SENTENCE_CHARACTERS]
            if context.contextType().toString() == "SQL":
                return fragment
            site = str(context.callSite()).rpartition("/")[2]
            # A thread without an active session has the JVM's place instead, which is one of Spark's own.
            return f"{fragment} at {site}" if PYTHON_LINE.fullmatch(site) else fragment
    return ""


def may_follow_a_row(error: Exception) -> bool:
    """Whether a row of the batch may have caused the error; a search has to tell."""
    chain = list(_causes(_java_exception(error)))
    if not chain or of(chain):
        return False
    names = [str(cause.getClass().getName()) for cause in chain]
    if any(name.startswith(KAFKA_PACKAGE) for name in names):
        return any(name.endswith(OF_RECORDS_IN_KAFKA) for name in names)
    conditions = [name for cause in chain if (name := _condition(cause))]
    return not any(name.startswith(NOT_OF_ROWS_CLASSES) for name in names) and not any(
        name.startswith(NOT_OF_ROWS) for name in conditions
    )


def condition(error: Exception) -> str:
    """Returns the error class: Spark's condition that is nearest to the cause, or else the innermost class."""
    chain = list(_causes(_java_exception(error)))
    if _python_error(chain):
        return PYTHON_FAILED
    conditions = [name for cause in chain if (name := _condition(cause)) and not name.startswith(WRAPPERS)]
    classes = [cause.getClass().getName() for cause in chain]
    return (conditions or classes or [type(error).__name__])[-1]


def _flow_error(flow: str, chain: list[Any], error: Exception | None, table: Table | None) -> SluiceError:
    if outage := of(chain):
        return outage
    classes = [(_condition(cause), _call_if_present(cause, "getSqlState")) for cause in chain]
    if _python_error(chain):
        why = _shown(_python_error(chain) or "", error, table)
        return FlowFailed(f"{flow}: a Python function failed ({why})", PYTHON_FAILED)
    names = [name for name, _ in classes if name] or [cause.getClass().getName() for cause in chain]
    sentence = f"{flow}: {_shown(_reason(chain, error), error, table)} (the log has the rest)"
    for name, state in classes:
        if name and _is_incurable(name, state or ""):
            return _broken_error(sentence, name)
    if any(cause.getClass().getName() in LOST_IN_KAFKA for cause in chain):
        return _broken_error(sentence, "KAFKA_DATA_LOSS")
    if any(cause.getClass().getName() in UNUSABLE_IN_KAFKA for cause in chain):
        return _broken_error(sentence, "KAFKA_ACCESS")
    return FlowFailed(sentence, names[-1] if names else type(error).__name__)


def _shown(text: str, error: Exception | None, table: Table | None) -> str:
    if table is None or not table.has_personal_data:
        return text
    # An error that no row causes quotes names and addresses.
    is_of_rows = error is None or _java_exception(error) is None or may_follow_a_row(error)
    return personal.sentence(table, text) if is_of_rows else text


def _broken_error(sentence: str, name: str) -> FlowBroken:
    remedy = next((remedy for start, remedy in REMEDIES.items() if name.startswith(start)), None)
    return FlowBroken(f"{sentence}: {remedy}" if remedy else sentence, name)


def _is_incurable(name: str, state: str) -> bool:
    if name.startswith(CURABLE):
        return False
    return name.startswith(INCURABLE) or state.startswith(INCURABLE_STATES)


def _java_exception(error: Exception | None) -> Any:
    """Returns the Java exception behind a Python one, if any."""
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None) if isinstance(error, PySparkException) else None


def _causes(throwable: Any) -> Iterator[Any]:
    for _ in range(MOST_CAUSES):
        if throwable is None:
            return
        yield throwable
        throwable = throwable.getCause()


def _call_if_present(throwable: Any, method: str) -> Any:
    """Calls a method of SparkThrowable; returns None for other exceptions, which lack it."""
    try:
        return getattr(throwable, method)()
    except Py4JError:
        return None


def _python_error(chain: list[Any]) -> str | None:
    for cause in chain:
        if cause.getClass().getName() == PYTHON_EXCEPTION:
            # The exception follows the last frame of the traceback; frames are indented.
            last_frame = str(cause.getMessage()).rpartition('\n  File "')[2].splitlines()
            lines = [line for line in last_frame[1:] if line and not line.startswith(" ")]
            return (lines or last_frame)[0][:SENTENCE_CHARACTERS]
        # Not all of its frames, because each is a call into the JVM.
        frames = islice(cause.getStackTrace(), TOP_FRAMES)
        if any(frame.getClassName().startswith(PYTHON_RUNNER) for frame in frames):
            return PYTHON_DIED
    return None


def _kafka_error(chain: list[Any]) -> str | None:
    """Returns what Kafka's client says, in one line. Its outer exceptions only say what it was about to do."""
    if not any(cause.getClass().getName().startswith(KAFKA_PACKAGE) for cause in chain):
        return None
    reason = " ".join(str(chain[-1].getMessage()).split())
    return f"{chain[-1].getClass().getSimpleName()}: {reason}"[:SENTENCE_CHARACTERS]


def _reason(chain: list[Any], error: Exception | None) -> str:
    return _python_error(chain) or _kafka_error(chain) or _java_reason(chain) or _first_line(error)


def _java_reason(chain: list[Any]) -> str | None:
    """Returns what the exception with Spark's condition nearest to the cause says, and the cause itself."""
    if not chain:
        return None
    named = [cause for cause in chain if (name := _condition(cause)) and not name.startswith(WRAPPERS)]
    reasons = [_one_line(cause) for cause in (named[-1:] + chain[-1:])]
    return ": ".join(dict.fromkeys(reasons))


def _one_line(throwable: Any) -> str:
    """Returns class and message of a Java exception; the condition of Spark's errors begins their message."""
    message = next((line.strip() for line in str(throwable.getMessage() or "").splitlines() if line.strip()), "")
    message = message[:SENTENCE_CHARACTERS]
    if message.startswith("["):
        return message
    name = str(throwable.getClass().getName()).rpartition(".")[2]
    return f"{name}: {message}" if message else name


def _condition(throwable: Any) -> str | None:
    # Delta calls it by its former name only.
    name: str | None = _call_if_present(throwable, "getCondition") or _call_if_present(throwable, "getErrorClass")
    return name


def _first_line(error: Exception | None) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] if error else []
    return (lines or [type(error).__name__])[0][:SENTENCE_CHARACTERS]
