"""Analyses every declaration with Spark, without reading or writing a row: python -m include.engine.check

The catalog has already refused what can be known without Spark.
"""

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
from include.spec import KAFKA_SCHEMA, Delta, Table, Upsert

# Spark holds these for deterministic, because they are constant within one query; a replay is another query.
CLOCKS = ("current_timestamp", "current_date", "localtimestamp", "now", "current_time")
STATEFUL = ("Aggregate", "Deduplicate", "Window", "Limit", "Sort")


def check(spark: SparkSession, tables: Catalog) -> None:
    """Raises DeclarationError for the first table whose rows would not be what it declares."""
    for table in tables.tables.values():
        rows = _empty_source(spark, table, tables)
        if isinstance(table.write, Upsert):
            by = table.write.recompute
            rows = rows.withColumn(by.name, prune.bucket(by.of, by.unit))
        _check_shape(table, rows)
        for rule in table.expect:
            _check_rule(table, shaped(rows, table), rule.name, rule.condition)


def _empty_source(spark: SparkSession, table: Table, tables: Catalog) -> DataFrame:
    source = table.source
    ddl = tables.tables[source.table].schema if isinstance(source, Delta) else KAFKA_SCHEMA
    return spark.createDataFrame([], StructType.fromDDL(ddl))


def _check_shape(table: Table, source: DataFrame) -> None:
    try:
        declared = StructType.fromDDL(table.schema)
        rows = shaped(source, table)
    except PySparkException as error:
        raise _mistake(
            table, f"Spark cannot analyse it ({_first_line(error)}): mend its schema or transform"
        ) from error
    for want, got in zip(declared.fields, rows.schema.fields, strict=True):
        if want.dataType.simpleString() != got.dataType.simpleString():
            raise _mistake(
                table,
                f"column '{want.name}' is declared {want.dataType.simpleString().upper()}, its transform makes "
                f"{got.dataType.simpleString().upper()}: change one of them",
            )
    plan = rows._jdf.queryExecution().analyzed()
    text = plan.toString().lower()
    clock = next((name for name in CLOCKS if f"{name}(" in text), None)
    if clock or not _is_deterministic(plan):
        culprit = f"uses {clock}()" if clock else "is not deterministic"
        raise _mistake(
            table, f"its transform {culprit}, so a replayed batch would come out different: use source columns"
        )
    if not isinstance(table.write, Upsert):
        stateful = next((name for name in STATEFUL if f"\n{name.lower()} " in text.replace("+- ", "\n")), None)
        if stateful:
            raise _mistake(
                table, f"its transform needs rows of other batches ({stateful}): write it as a recomputed Upsert"
            )


def _is_deterministic(plan) -> bool:
    if not plan.deterministic():
        return False
    children = plan.children()
    return all(_is_deterministic(children.apply(position)) for position in range(children.size()))


def _check_rule(table: Table, rows: DataFrame, name: str, condition: str) -> None:
    try:
        kind = rows.select(F.expr(condition)).schema.fields[0].dataType.simpleString()
        quality.judged(rows, table.expect)
    except PySparkException as error:
        raise _mistake(table, f"rule '{name}' does not parse ({_first_line(error)}): mend its condition") from error
    if kind != "boolean":
        raise _mistake(table, f"rule '{name}' is a {kind.upper()} and not a condition: compare it with something")


def _first_line(error: PySparkException) -> str:
    return str(error).splitlines()[0][:200]


def _mistake(table: Table, sentence: str) -> DeclarationError:
    return DeclarationError(f"include/tables/{table.name.replace('.', '/')}.py: {sentence}")


def main() -> None:
    tables = catalog.load()
    check(open_session("sluice check", tables), tables)
    print(f"{len(tables.tables)} tables are as they declare")


if __name__ == "__main__":
    report(main)
