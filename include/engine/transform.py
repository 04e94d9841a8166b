"""A table's transform: a function of a Spark frame, or a SQL query over `source`."""

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from include.engine.plans import items

SOURCE = "source"


def transformed(rows: DataFrame, transform: Callable[[Any], Any] | str) -> Any:
    """What the transform makes of `rows`."""
    return _query(rows, transform) if isinstance(transform, str) else transform(rows)


def tables_read(spark: SparkSession, text: str) -> set[str]:
    """The names of all tables that a query reads, `source` among them, whether or not there are any of that name."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(_nested(text))
    return set(_relations(plan, frozenset()))


def _query(rows: DataFrame, text: str) -> DataFrame:
    # A query of a stream has a session of its own, and a view is known in its session only.
    rows.createOrReplaceTempView(SOURCE)
    try:
        return rows.sparkSession.sql(_nested(text))
    finally:
        rows.sparkSession.catalog.dropTempView(SOURCE)


def _nested(text: str) -> str:
    """Where a subquery stands only a query can: a command would be carried out."""
    return f"SELECT * FROM (\n{text}\n)"


def _relations(plan: Any, named: frozenset[str]) -> Iterator[str]:
    """Of a parsed plan. named: the queries that WITH gave a name to."""
    if plan.nodeName() == "UnresolvedWith":
        for pair in items(plan.cteRelations()):
            yield from _relations(pair._2(), named)
            named = named | {pair._1().lower()}
    if plan.nodeName() == "UnresolvedRelation":
        name = ".".join(items(plan.multipartIdentifier())).lower()
        yield from () if name in named else (name,)
    for below in (*items(plan.children()), *items(plan.subqueries())):
        yield from _relations(below, named)
