"""Analyses every declaration with Spark, without reading or writing a row: python -m include.engine.check

The catalog has already refused what can be known without Spark.
"""

from collections.abc import Mapping
from dataclasses import replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include import catalog
from include.catalog import Catalog
from include.declaration import mistake
from include.engine import prune, quality, read
from include.engine.batch import shaped
from include.engine.plans import Plan
from include.engine.session import open_session
from include.engine.transform import SOURCE, joined, tables_read, transformed
from include.errors import DeclarationError, report
from include.settings import settings
from include.spec import (
    FILES_SCHEMA,
    Append,
    Bucket,
    Delta,
    Expect,
    Files,
    References,
    Table,
    Unique,
    Upsert,
)


def check(spark: SparkSession, tables: Catalog) -> None:
    """Raises DeclarationError for the first table whose rows would not be what it declares."""
    # A temporary step first, so that what is wrong with it is not said of its readers.
    for table in (*tables.steps.values(), *tables.flows.values()):
        if isinstance(table.source, Files):
            _check_schema(table)
        elif not _is_unknown(table, tables):
            _check_flow(spark, table, tables)
    for view in tables.views.values():
        if not any(_is_unknown(reader, tables) for reader in view.readers):
            _check_view(spark, view, tables)


def _check_flow(spark: SparkSession, table: Table, tables: Catalog) -> None:
    source = _empty_source(spark, table, tables)
    _check_sources(spark, table, {SOURCE})
    if isinstance(table.write, Upsert) and table.write.recompute:
        source = _with_bucket(source, table, table.write.recompute)
    rows = _shaped(source, table)
    _check_types(table, rows)
    _check_plan(table, rows, (source,), "its transform", "write it as a recomputed Upsert")
    if table.watermark:
        _check_timestamp(table, rows, "watermark", table.watermark.of)
    for rule in table.expect:
        if not isinstance(rule, Expect):
            _check_reference(table, rows, rule, tables)
            continue
        judged = _judged(rows, table, rule)
        _check_plan(table, judged, (source,), f"rule '{rule.name}'", "let it speak of one row")


def _check_view(spark: SparkSession, view: Table, tables: Catalog) -> None:
    frames = {reader.branch or SOURCE: _empty_source(spark, reader, tables) for reader in view.readers}
    sources = tuple(frames.values())
    _check_sources(spark, view, set(frames))
    flat = view
    if isinstance(view.source, Mapping) and (transform := view.transform):
        flat = replace(view, transform=lambda _: joined(frames, transform))
    rows = _shaped(sources[0], flat)
    _check_types(view, rows)
    _check_plan(view, rows, sources, "its transform", "")
    for rule in view.expect:
        if isinstance(rule, Expect):
            _check_plan(view, _judged(rows, view, rule), sources, f"rule '{rule.name}'", "")


def _is_unknown(table: Table, tables: Catalog) -> bool:
    """Whether the columns of its source come with files that nobody has read yet."""
    if table.steps or not isinstance(table.source, Delta):
        return False
    above = tables.tables[table.source.table]
    return above.schema == FILES_SCHEMA and not settings().is_stored(above.name)


def _check_schema(table: Table) -> None:
    try:
        StructType.fromDDL(table.schema)
    except PySparkException as error:
        raise mistake(table, f"Spark cannot analyse it ({_first_line(error)}): mend its schema") from error


def _empty_source(spark: SparkSession, table: Table, tables: Catalog) -> DataFrame:
    source = table.source
    if table.steps:
        return spark.createDataFrame([], StructType.fromDDL(table.steps[-1].schema))
    # What is recomputed is computed from rows.
    changes = isinstance(source, Delta) and source.changes and isinstance(table.write, Append)
    return spark.createDataFrame([], read.columns(spark, source, tables, changes))


def _check_sources(spark: SparkSession, table: Table, names: set[str]) -> None:
    """Refuses SQL that reads anything but its sources, by their names in it, or not all of them."""
    if not isinstance(table.transform, str):
        return
    try:
        read = tables_read(spark, table.transform)
    except PySparkException as error:
        raise mistake(
            table, f"its SQL does not parse ({_first_line(error)}): mend it, it has to be one SELECT"
        ) from error
    if others := sorted(read - names):
        raise _hidden_source(table, f"its SQL reads '{others[0]}'")
    if unread := sorted(names - read):
        what = "a source of the view" if table.is_view else "the rows of its batch"
        raise mistake(table, f"its SQL never reads `{unread[0]}`, {what}: select from it")


def _hidden_source(table: Table, what: str) -> DeclarationError:
    if table.is_view:
        return mistake(
            table,
            f"{what} besides its sources, at a version that nobody fixes: name that table in source, and read it "
            f"by that name",
        )
    return mistake(
        table,
        f"{what} besides its source, which a replayed batch would find changed: "
        f"read `{SOURCE}` alone, or give the other rows a table of their own",
    )


def _with_bucket(source: DataFrame, table: Table, by: Bucket) -> DataFrame:
    _check_timestamp(table, source, "bucket", by.of)
    return source.withColumn(by.name, prune.bucket(by.of, by.unit))


def _check_timestamp(table: Table, rows: DataFrame, what: str, column: str) -> None:
    kind = rows.schema[column].dataType.simpleString().upper()
    # Spark would cast a text or a date silently.
    if not kind.startswith("TIMESTAMP"):
        where = " in its source" if what == "bucket" else ""
        raise mistake(table, f"{what} of '{column}', which is {kind}{where}: name a TIMESTAMP")


def _check_reference(table: Table, rows: DataFrame, rule: Unique | References, tables: Catalog) -> None:
    """Spark would cast one of two types silently, and find nothing."""
    if isinstance(rule, References):
        keys = StructType.fromDDL(tables.tables[rule.table].schema)
        mine, theirs = (one[name].dataType for one, name in ((rows.schema, rule.column), (keys, rule.key)))
        if mine != theirs:
            raise mistake(
                table,
                f"rule '{rule.name}' compares {rule.column}, which is {mine.simpleString().upper()}, with {rule.key}, "
                f"which is {theirs.simpleString().upper()}: give them one type",
            )


def _shaped(source: DataFrame, table: Table) -> DataFrame:
    def transform(rows: DataFrame) -> DataFrame:
        assert table.transform
        try:
            made = transformed(rows, table.transform)
        except PySparkException:
            raise
        except Exception as error:
            raise mistake(
                table, f"its transform fails ({type(error).__name__}: {_first_line(error)}): mend it"
            ) from error
        if not isinstance(made, DataFrame):
            raise mistake(table, f"its transform returns {type(made).__name__} and no DataFrame: return its rows")
        return made

    try:
        return shaped(source, replace(table, transform=transform) if table.transform else table)
    except PySparkException as error:
        raise mistake(table, f"Spark cannot analyse it ({_first_line(error)}): mend its schema or transform") from error
    except Py4JJavaError as error:
        why = error.java_exception.getMessage()
        raise mistake(table, f"its parse or transform cannot be analysed ({why}): mend it") from error


def _check_types(table: Table, rows: DataFrame) -> None:
    for want, got in zip(StructType.fromDDL(table.schema).fields, rows.schema.fields, strict=True):
        if want.dataType.simpleString() != got.dataType.simpleString():
            raise mistake(
                table,
                f"column '{want.name}' is declared {want.dataType.simpleString().upper()}, its transform makes "
                f"{got.dataType.simpleString().upper()}: change one of them",
            )


def _judged(rows: DataFrame, table: Table, rule: Expect) -> DataFrame:
    try:
        kind = rows.select(F.expr(rule.condition)).schema.fields[0].dataType.simpleString().upper()
        if kind != "BOOLEAN":
            raise mistake(table, f"rule '{rule.name}' is a {kind} and not a condition: compare it with something")
        return quality.judged(rows, (rule,))
    except PySparkException as error:
        raise mistake(table, f"rule '{rule.name}' does not parse ({_first_line(error)}): mend its condition") from error


def _check_plan(table: Table, rows: DataFrame, sources: tuple[DataFrame, ...], what: str, instead: str) -> None:
    """Refuses what would not come out the same from the same rows, or would from other batches of them."""
    plan = Plan(rows, *sources)
    if plan.runs_python:
        raise mistake(
            table, f"{what} runs a Python function, and executors have none of our code: use Spark's own functions"
        )
    if plan.clock or not plan.is_deterministic:
        culprit = f"uses {plan.clock}()" if plan.clock else "is not deterministic"
        again = "a run that is begun again" if table.is_view else "a replayed batch"
        raise mistake(table, f"{what} {culprit}, so {again} would come out different: use source columns")
    if not isinstance(table.write, Append):
        if plan.reads_stored_rows:
            raise _hidden_source(table, f"{what} reads a stored table")
    elif name := plan.needs_other_rows:
        raise mistake(table, f"{what} needs rows of other batches ({name}): {instead}")


def _first_line(error: Exception) -> str:
    # A syntax error's text begins with an empty line.
    return next(iter(str(error).strip().splitlines()), "")[:200]


def main() -> None:
    tables = catalog.load()
    check(open_session("sluice check", tables), tables)
    print(f"{len(tables.tables)} tables are as they declare")


if __name__ == "__main__":
    report(main)
