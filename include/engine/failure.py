"""Why a query failed, told by the error classes and SQLSTATEs of Spark and Delta, never by message text."""

from collections.abc import Iterator
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql.streaming import StreamingQuery

from include.errors import Broken, FlowFailed, SluiceError

# Classes of SQLSTATE (ISO 9075-2, and Spark's README of error conditions) that say that the same batch will fail again:
# not supported, wrong cardinality, data exception, constraint, access rule or syntax, failed function.
INCURABLE_STATES = ("0A", "21", "22", "23", "42", "44", "39", "38")
# Incurable as well, although their states say less.
INCURABLE = (
    "KAFKA_DATA_LOSS",
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE",
    "FAILED_READ_FILE.FILE_NOT_EXIST",
    "DELTA_MISSING_CHANGE_DATA",
    "MALFORMED_LOG_FILE",
    "STATE_STORE_",
    "DELTA_STREAMING_SCHEMA_MISMATCH_ON_RESTART",
    # What `fails=True` raises.
    "USER_RAISED_EXCEPTION",
)
# Curable, although their states say otherwise: wrappers around the cause, and what is away for a moment.
CURABLE = (
    "FOREACH_BATCH_USER_FUNCTION_ERROR",
    "FAILED_RENAME_PATH",
    "STREAM_FAILED",
    "TASK_WRITE_FAILED",
    "PATH_NOT_FOUND",
)
READ_AGAIN = "move its table away and action reset checkpoint reads all of its source into a new one"
REMEDIES = {
    "KAFKA_DATA_LOSS": "action accept data loss records what is gone and goes on after it",
    "DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE": READ_AGAIN,
    "DELTA_SOURCE_TABLE_IGNORE_CHANGES": READ_AGAIN,
    "DELTA_SOURCE_IGNORE_DELETE": READ_AGAIN,
    "DELTA_MISSING_CHANGE_DATA": "begin where its source keeps changes: a later since_version, or none for all",
}
# Of Kafka's own exceptions, which carry no class of Spark's.
LOST_IN_KAFKA = ("org.apache.kafka.clients.consumer.OffsetOutOfRangeException",)
SENTENCE_CHARACTERS = 300
CAUSES = 20


def of_query(flow: str, query: StreamingQuery, seen: Exception | None) -> SluiceError:
    """What ended the query. seen: the exception its batch function raised, which Spark wraps in a page of text."""
    if seen:
        return of_exception(flow, seen)
    thrown = query._jsq.exception()
    return _failed(flow, list(_causes(thrown.get())) if thrown.isDefined() else [], query.exception())


def of_exception(flow: str, error: Exception) -> SluiceError:
    """What kept a query from being started, or what its batch function raised."""
    return error if isinstance(error, SluiceError) else _failed(flow, list(_causes(_origin(error))), error)


def _failed(flow: str, chain: list[Any], error: Exception | None) -> SluiceError:
    classes = [(_ask(cause, "getCondition"), _ask(cause, "getSqlState")) for cause in chain]
    named = [name for name, _ in classes if name] or [cause.getClass().getName() for cause in chain]
    sentence = f"{flow}: {_sentence(error)} (the log has the rest)"
    for name, state in classes:
        if name and _is_incurable(name, state or ""):
            return _broken(sentence, name)
    if any(cause.getClass().getName() in LOST_IN_KAFKA for cause in chain):
        return _broken(sentence, "KAFKA_DATA_LOSS")
    return FlowFailed(sentence, named[-1] if named else type(error).__name__)


def _broken(sentence: str, name: str) -> Broken:
    remedy = next((remedy for start, remedy in REMEDIES.items() if name.startswith(start)), None)
    return Broken(f"{sentence}: {remedy}" if remedy else sentence, name)


def _is_incurable(name: str, state: str) -> bool:
    if name.startswith(CURABLE):
        return False
    return name.startswith(INCURABLE) or state.startswith(INCURABLE_STATES)


def _origin(error: Exception | None) -> Any:
    """The Java exception behind a Python one."""
    if isinstance(error, Py4JJavaError):
        return error.java_exception
    return getattr(error, "_origin", None) if isinstance(error, PySparkException) else None


def _causes(throwable: Any) -> Iterator[Any]:
    for _ in range(CAUSES):
        if throwable is None:
            return
        yield throwable
        throwable = throwable.getCause()


def _ask(throwable: Any, question: str) -> str | None:
    """What a SparkThrowable answers; another one has no such method."""
    try:
        return getattr(throwable, question)()
    except Py4JError:
        return None


def _sentence(error: Exception | None) -> str:
    """Its innermost cause in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    causes = [line for line in lines if line.startswith("Caused by:")]
    return (causes[-1].removeprefix("Caused by:").strip() if causes else lines[0])[:SENTENCE_CHARACTERS]
