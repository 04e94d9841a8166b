"""Explains errors of Spark's analysis in terms of the file that declares the table."""

import re
import traceback

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.project.declaration import suggest
from include.spec import Table

TYPES = (
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "MAP", "SMALLINT", "STRING",
    "STRUCT", "TIMESTAMP", "TIMESTAMP_NTZ", "TINYINT", "VARIANT",
)  # fmt: skip
NAME = re.compile(r"`((?:[^`]|``)*)`")
# The condition and SQLSTATE around Spark's sentence.
ERROR_CODES = re.compile(r"^\[[A-Z0-9_.]+\] |\.?\s*SQLSTATE: .*$|\.$")


def sentence(error: Exception, subject: str, remedy: str = "fix it") -> str:
    """Returns a sentence about the error. subject: the part of the declaration that Spark analysed, such as `its
    transform`.
    """
    if isinstance(error, Py4JJavaError):
        return f"{subject} cannot be analysed ({plain(error)}): {remedy}"
    if not isinstance(error, PySparkException):
        return f"{subject} fails ({type(error).__name__}: {plain(error)}): {remedy}"
    values = error.getMessageParameters() or {}
    match (error.getCondition() or "").partition(".")[0]:
        case "UNRESOLVED_COLUMN":
            name, options = (
                _last_part(values["objectName"]),
                [_last_part(option) for option in values.get("proposal", "").split(", ")],
            )
            proposals = [option for option in options if option]
            hint = suggest(name, proposals) if proposals else "fix its name"
            return f"{subject} names '{name}', which is no column there: {hint}"
        case "FIELD_NOT_FOUND":
            name, options = _last_part(values["fieldName"]), NAME.findall(values["fields"])
            return f"{subject} names the field '{name}', which is none there: {suggest(name, options)}"
        case "UNRESOLVED_ROUTINE":
            name = _last_part(values["routineName"])
            return f"{subject} calls '{name}', no function of Spark: {suggest(name, dir(F), or_else='fix its name')}"
        case "TABLE_OR_VIEW_NOT_FOUND":
            name = ".".join(NAME.findall(values["relationName"]))
            return f"{subject} reads '{name}', which is no table: read its source"
        case "ATTRIBUTE_NOT_SUPPORTED":
            name = values["attr_name"]
            hint = suggest(name, [option for option in dir(DataFrame) if option[0] != "_"], or_else="fix its name")
            return f"{subject} uses '{name}', which a DataFrame has not: {hint}"
        case "UNSUPPORTED_DATATYPE":
            name = values["typeName"].strip('"')
            return f"{subject} names the type '{name}', which Spark has not: {suggest(name, list(TYPES))}"
        case "PARSE_SYNTAX_ERROR":
            return f"{subject} does not parse at {values['error']}: {remedy}"
    return f"{subject} cannot be analysed ({plain(error)}): {remedy}"


def plain(error: Exception) -> str:
    """Returns the first line of Spark's message, without condition and SQLSTATE."""
    message = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    # The message of a syntax error begins with an empty line.
    return ERROR_CODES.sub("", next(iter(str(message).strip().splitlines()), ""))[:200]


def line(error: Exception, table: Table) -> int | None:
    """Returns the line of the table's file that raised the error."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if table.file and frame.filename.endswith(table.file)]
    return lines[-1] if lines else None


def _last_part(name: str) -> str:
    """Returns the last part of a quoted name."""
    parts = NAME.findall(name)
    return parts[-1].replace("``", "`") if parts else name.strip("`")
