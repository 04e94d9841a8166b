"""Analyses every declaration with Spark, without reading or writing a row: python -m include.engine.check

The catalog has already refused what can be known without Spark.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include import catalog
from include.catalog import Catalog
from include.engine import prune, quality
from include.engine.batch import shaped
from include.engine.session import open_session
from include.errors import DeclarationError, report
from include.spec import Bucket, Delta, Expect, Table, Upsert

# Spark's classes for what SQL calls so. It holds these for deterministic, because they are constant within one query;
# a replay is another query.
CLOCKS = {
    "CurrentTimestamp": "current_timestamp",
    "CurrentDate": "current_date",
    "CurrentTime": "current_time",
    "LocalTimestamp": "localtimestamp",
    "Now": "now",
}
PYTHON = {"PythonUDF", "PythonUDAF", "PythonUDTF"}
# Steps of a plan that look at one row at a time; what is not known to be one is refused.
ROW_WISE = {
    "Expand",
    "Filter",
    "Generate",
    "Project",
    "Repartition",
    "RepartitionByExpression",
    "ResolvedHint",
    "SubqueryAlias",
    "Union",
    "View",
}


def check(spark: SparkSession, tables: Catalog) -> None:
    """Raises DeclarationError for the first table whose rows would not be what it declares."""
    for table in tables.flows.values():
        _check_flow(spark, table, tables)


def _check_flow(spark: SparkSession, table: Table, tables: Catalog) -> None:
    source = _empty_source(spark, table, tables)
    if isinstance(table.write, Upsert):
        source = _with_bucket(source, table, table.write.recompute)
    rows = _shaped(source, table)
    _check_types(table, rows)
    _check_plan(table, rows, source, "its transform", "write it as a recomputed Upsert")
    for rule in table.expect:
        judged = _judged(rows, table, rule)
        _check_plan(table, judged, source, f"rule '{rule.name}'", "let it speak of one row")


def _empty_source(spark: SparkSession, table: Table, tables: Catalog) -> DataFrame:
    source = table.source
    ddl = tables.tables[source.table].schema if isinstance(source, Delta) else source.schema
    return spark.createDataFrame([], StructType.fromDDL(ddl))


def _with_bucket(source: DataFrame, table: Table, by: Bucket) -> DataFrame:
    kind = source.schema[by.of].dataType.simpleString().upper()
    # Spark would cast a text or a date silently.
    if not kind.startswith("TIMESTAMP"):
        raise _mistake(table, f"bucket of '{by.of}', which is {kind} in its source: name a TIMESTAMP")
    return source.withColumn(by.name, prune.bucket(by.of, by.unit))


def _shaped(source: DataFrame, table: Table) -> DataFrame:
    def transform(rows: DataFrame) -> DataFrame:
        assert table.transform
        try:
            made = table.transform(rows)
        except PySparkException:
            raise
        except Exception as error:
            raise _mistake(
                table, f"its transform fails ({type(error).__name__}: {_first_line(error)}): mend it"
            ) from error
        if not isinstance(made, DataFrame):
            raise _mistake(table, f"its transform returns {type(made).__name__} and no DataFrame: return its rows")
        return made

    try:
        return shaped(source, replace(table, transform=transform) if table.transform else table)
    except PySparkException as error:
        raise _mistake(
            table, f"Spark cannot analyse it ({_first_line(error)}): mend its schema or transform"
        ) from error
    except Py4JJavaError as error:
        why = error.java_exception.getMessage()
        raise _mistake(table, f"its parse or transform cannot be analysed ({why}): mend it") from error


def _check_types(table: Table, rows: DataFrame) -> None:
    for want, got in zip(StructType.fromDDL(table.schema).fields, rows.schema.fields, strict=True):
        if want.dataType.simpleString() != got.dataType.simpleString():
            raise _mistake(
                table,
                f"column '{want.name}' is declared {want.dataType.simpleString().upper()}, its transform makes "
                f"{got.dataType.simpleString().upper()}: change one of them",
            )


def _judged(rows: DataFrame, table: Table, rule: Expect) -> DataFrame:
    try:
        kind = rows.select(F.expr(rule.condition)).schema.fields[0].dataType.simpleString().upper()
        if kind != "BOOLEAN":
            raise _mistake(table, f"rule '{rule.name}' is a {kind} and not a condition: compare it with something")
        return quality.judged(rows, (rule,))
    except PySparkException as error:
        raise _mistake(
            table, f"rule '{rule.name}' does not parse ({_first_line(error)}): mend its condition"
        ) from error


def _check_plan(table: Table, rows: DataFrame, source: DataFrame, what: str, instead: str) -> None:
    """Refuses what would not come out the same from the same rows, or would from other batches of them."""
    plan = _plan(rows)
    subqueries = _items(plan.subqueriesAll())
    nodes = [node for root in (plan, *subqueries) for node in _tree(root)]
    calls = {call.nodeName() for node in nodes for root in _items(node.expressions()) for call in _tree(root)}
    if calls & PYTHON:
        raise _mistake(
            table, f"{what} runs a Python function, and executors have none of our code: use Spark's own functions"
        )
    clocks = [name for call, name in CLOCKS.items() if call in calls]
    # Which rows a sample takes hangs on how they are partitioned, whatever the seed; Spark holds it for deterministic.
    if clocks or not all(node.deterministic() and node.nodeName() != "Sample" for node in nodes):
        culprit = f"uses {clocks[0]}()" if clocks else "is not deterministic"
        raise _mistake(table, f"{what} {culprit}, so a replayed batch would come out different: use source columns")
    if isinstance(table.write, Upsert):
        return
    # The source's own leaf passes for what it is, so that rows from anywhere else do not.
    origin = _plan(source)
    strange = [node.nodeName() for node in nodes if node.nodeName() not in ROW_WISE and not node.sameResult(origin)]
    if strange or subqueries:
        name = strange[0] if strange else "Subquery"
        raise _mistake(table, f"{what} needs rows of other batches ({name}): {instead}")


def _plan(rows: DataFrame) -> Any:
    return rows._jdf.queryExecution().analyzed()


def _tree(node: Any) -> Iterator[Any]:
    """A node of a plan or of an expression, and all below it."""
    yield node
    for child in _items(node.children()):
        yield from _tree(child)


def _items(sequence: Any) -> list[Any]:
    """A Scala sequence as a list."""
    return [sequence.apply(position) for position in range(sequence.size())]


def _first_line(error: Exception) -> str:
    # A syntax error's text begins with an empty line.
    return next(iter(str(error).strip().splitlines()), "")[:200]


def _mistake(table: Table, sentence: str) -> DeclarationError:
    return DeclarationError(f"include/tables/{table.name.replace('.', '/')}.py: {sentence}")


def main() -> None:
    tables = catalog.load()
    check(open_session("sluice check", tables), tables)
    print(f"{len(tables.tables)} tables are as they declare")


if __name__ == "__main__":
    report(main)
