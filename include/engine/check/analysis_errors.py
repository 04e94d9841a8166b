"""What Spark refuses when it analyses a declaration, in the words of the file that says it."""

import re
import traceback

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.spec import Table
from include.validation.declaration import suggest

TYPES = (
    "ARRAY", "BIGINT", "BINARY", "BOOLEAN", "DATE", "DECIMAL", "DOUBLE", "FLOAT", "INT", "MAP", "SMALLINT", "STRING",
    "STRUCT", "TIMESTAMP", "TIMESTAMP_NTZ", "TINYINT", "VARIANT",
)  # fmt: skip
NAME = re.compile(r"`((?:[^`]|``)*)`")
# What Spark puts around its sentence.
DECORATION = re.compile(r"^\[[A-Z0-9_.]+\] |\.?\s*SQLSTATE: .*$|\.$")


def sentence(error: Exception, what: str, remedy: str = "mend it") -> str:
    """what: the part of the declaration that Spark was given, `its transform`, say."""
    if isinstance(error, Py4JJavaError):
        return f"{what} cannot be analysed ({plain(error)}): {remedy}"
    if not isinstance(error, PySparkException):
        return f"{what} fails ({type(error).__name__}: {plain(error)}): {remedy}"
    values = error.getMessageParameters() or {}
    match (error.getCondition() or "").partition(".")[0]:
        case "UNRESOLVED_COLUMN":
            name, options = _last(values["objectName"]), [_last(one) for one in values.get("proposal", "").split(", ")]
            known = [one for one in options if one]
            hint = suggest(name, known) if known else "mend its name"
            return f"{what} names '{name}', which is no column there: {hint}"
        case "FIELD_NOT_FOUND":
            name, options = _last(values["fieldName"]), NAME.findall(values["fields"])
            return f"{what} names the field '{name}', which is none there: {suggest(name, options)}"
        case "UNRESOLVED_ROUTINE":
            name = _last(values["routineName"])
            return f"{what} calls '{name}', no function of Spark: {suggest(name, dir(F), or_else='mend its name')}"
        case "TABLE_OR_VIEW_NOT_FOUND":
            return (
                f"{what} reads '{'.'.join(NAME.findall(values['relationName']))}', which is no table: read its source"
            )
        case "ATTRIBUTE_NOT_SUPPORTED":
            name = values["attr_name"]
            hint = suggest(name, [one for one in dir(DataFrame) if one[0] != "_"], or_else="mend its name")
            return f"{what} uses '{name}', which a DataFrame has not: {hint}"
        case "UNSUPPORTED_DATATYPE":
            name = values["typeName"].strip('"')
            return f"{what} names the type '{name}', which Spark has not: {suggest(name, list(TYPES))}"
        case "PARSE_SYNTAX_ERROR":
            return f"{what} does not parse at {values['error']}: {remedy}"
    return f"{what} cannot be analysed ({plain(error)}): {remedy}"


def plain(error: Exception) -> str:
    """The first line of what Spark says, without the codes around it."""
    said = error.java_exception.getMessage() if isinstance(error, Py4JJavaError) else str(error)
    # A syntax error's text begins with an empty line.
    return DECORATION.sub("", next(iter(str(said).strip().splitlines()), ""))[:200]


def line(error: Exception, table: Table) -> int | None:
    """The line of the table's file in which it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if table.file and frame.filename.endswith(table.file)]
    return lines[-1] if lines else None


def _last(name: str) -> str:
    """Of a quoted name of several parts."""
    parts = NAME.findall(name)
    return parts[-1].replace("``", "`") if parts else name.strip("`")
