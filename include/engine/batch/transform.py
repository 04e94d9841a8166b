"""Applies a table's transform: a function of DataFrames, or a SQL query that refers to them by name."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from include.engine.batch.determinism import items
from include.spec import Transform

SOURCE = "source"


def apply(rows: DataFrame, transform: Transform | Mapping[str, Transform]) -> Any:
    """Returns what the transform computes from `rows`; a SQL query names them `source`."""
    assert not isinstance(transform, Mapping), "a flow has the transform of its branch"
    return _query({SOURCE: rows}, transform) if isinstance(transform, str) else transform(rows)


def apply_join(frames: Mapping[str, DataFrame], transform: Callable[..., Any] | str | Mapping[str, Transform]) -> Any:
    """Returns what the transform of a view computes from its sources, by name."""
    assert not isinstance(transform, Mapping), "a view has no branches"
    return _query(frames, transform) if isinstance(transform, str) else transform(**frames)


def tables_read(spark: SparkSession, text: str) -> set[str]:
    """Returns the names of all tables that a query reads, `source` among them, whether or not they exist."""
    plan = spark._jsparkSession.sessionState().sqlParser().parsePlan(_as_subquery(text))
    return set(_relations(plan, frozenset()))


def _query(frames: Mapping[str, DataFrame], text: str) -> DataFrame:
    # Each streaming query has its own session, and a temporary view exists in one session only.
    spark = next(iter(frames.values())).sparkSession
    for name, rows in frames.items():
        rows.createOrReplaceTempView(name)
    try:
        return spark.sql(_as_subquery(text))
    finally:
        for name in frames:
            spark.catalog.dropTempView(name)


def _as_subquery(text: str) -> str:
    """Wraps the text in a subquery, where Spark accepts only a query: it would execute a command."""
    return f"SELECT * FROM (\n{text}\n)"


def _relations(plan: Any, cte_names: frozenset[str]) -> Iterator[str]:
    """Yields the tables of a parsed plan. cte_names: the names that WITH defines."""
    if plan.nodeName() == "UnresolvedWith":
        for pair in items(plan.cteRelations()):
            yield from _relations(pair._2(), cte_names)
            cte_names = cte_names | {pair._1().lower()}
    if plan.nodeName() == "UnresolvedRelation":
        name = ".".join(items(plan.multipartIdentifier())).lower()
        yield from () if name in cte_names else (name,)
    for child in (*items(plan.children()), *items(plan.subqueries())):
        yield from _relations(child, cte_names)
