"""A table's transform: a function of Spark frames, or a SQL query that calls them by their names."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from include.engine.batch.determinism import items

SOURCE = "source"


def transformed(rows: DataFrame, transform: Callable[[Any], Any] | str) -> Any:
    """What the transform makes of `rows`."""
    return _query({SOURCE: rows}, transform) if isinstance(transform, str) else transform(rows)


def joined(frames: Mapping[str, DataFrame], transform: Callable[..., Any] | str) -> Any:
    """What the transform of a view makes of its several sources, by name."""
    return _query(frames, transform) if isinstance(transform, str) else transform(**frames)


def tables_read(spark: SparkSession, text: str) -> set[str]:
    """The names of all tables that a query reads, `source` among them, whether or not there are any of that name."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(_nested(text))
    return set(_relations(plan, frozenset()))


def _query(frames: Mapping[str, DataFrame], text: str) -> DataFrame:
    # A query of a stream has a session of its own, and a view is known in its session only.
    spark = next(iter(frames.values())).sparkSession
    for name, rows in frames.items():
        rows.createOrReplaceTempView(name)
    try:
        return spark.sql(_nested(text))
    finally:
        for name in frames:
            spark.catalog.dropTempView(name)


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
