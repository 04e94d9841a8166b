"""Joins rows of a batch with the tables of its lookups, each at one version."""

import time
from collections.abc import Mapping, Sequence
from functools import reduce
from operator import and_

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.delta import stored_table
from include.engine.commit import read_table
from include.engine.rows.merge_changes import IS_CURRENT, VALID_FROM, VALID_TO
from include.errors import Unreachable
from include.lake import locations
from include.spec import Flow, Lookup, Table

KEY, ROWS = "_lookup_key_", "_lookup_rows"
# Of a joined row: whether it has a partner, by position of the lookup. Also the name of the counts.
FOUND = "_lookup_found_"


class Versions:
    """Which versions of its lookups' tables a flow reads. A version is used until it is `refresh_seconds` old."""

    def __init__(self, table: Flow) -> None:
        self._flow = table.flow
        self._refresh_seconds: dict[str, float] = {}
        for lookup in table.lookups:
            shortest = min(lookup.refresh_seconds, self._refresh_seconds.get(lookup.table, lookup.refresh_seconds))
            self._refresh_seconds[lookup.table] = shortest
        self._versions: dict[str, int] = {}
        self._read_at: dict[str, float] = {}

    def current(self) -> dict[str, int]:
        """Returns the version of each table for the next batch. Raises Unreachable if a table is not stored."""
        now = time.monotonic()
        for name, refresh_seconds in self._refresh_seconds.items():
            if name not in self._versions or now - self._read_at[name] >= refresh_seconds:
                self._versions[name], self._read_at[name] = newest_version(self._flow, name), now
        return dict(self._versions)


def newest_version(flow: str, table: str) -> int:
    """Raises Unreachable if the table is not stored."""
    if not locations.is_stored(table):
        raise Unreachable(f"{flow} looks into {table}, which is not stored yet: start the flow {table} first")
    return stored_table.open_table(table).version()


def dimensions(spark: SparkSession, table: Table, versions: Mapping[str, int] | None) -> tuple[DataFrame, ...]:
    """Returns the rows of each lookup's table. versions: by table; None for the newest. Raises Unreachable."""
    versions = versions or {lookup.table: newest_version(table.name, lookup.table) for lookup in table.lookups}
    return tuple(read_table(spark, lookup.table, versions[lookup.table]) for lookup in table.lookups)


def join(rows: DataFrame, table: Table, dimension_rows: Sequence[DataFrame]) -> DataFrame:
    """Returns `rows` plus the columns of all lookups. dimension_rows: of each lookup's table, in the same order.

    Once a query has read all rows of the result, `no_partner` tells how many have no partner.
    """
    found = [f"{FOUND}{number}" for number in range(len(table.lookups))]
    for name, lookup, dimension in zip(found, table.lookups, dimension_rows, strict=True):
        rows = _join(rows, lookup, dimension.withColumn(name, F.lit(True)), name)
    counts = [F.count_if(F.col(name).isNull()).alias(name) for name in found]
    return rows.observe(FOUND, *counts).drop(*found)


def no_partner(rows: DataFrame, table: Table) -> dict[str, int]:
    """Returns by label of a lookup how many rows have no partner. rows: made of those of `join`, persisted and read."""
    observed = rows._jdf.queryExecution().observedMetrics().get(FOUND)
    if observed.isEmpty():
        # Spark reads no rows of a query that it knows to be empty.
        return {lookup.label: 0 for lookup in table.lookups}
    return {lookup.label: int(observed.get().get(number)) for number, lookup in enumerate(table.lookups)}


def stored_columns(lookup: Lookup) -> list[str]:
    """Returns the columns of the table that a lookup reads."""
    period = [VALID_FROM, VALID_TO] if lookup.at else [IS_CURRENT] if lookup.current else []
    return list(dict.fromkeys([*lookup.keys.values(), *period, *lookup.columns]))


def _join(rows: DataFrame, lookup: Lookup, dimension: DataFrame, found: str) -> DataFrame:
    """found: a column of the dimension to keep."""
    helpers = {f"{KEY}{number}": column for number, column in enumerate(lookup.keys.values())}
    if lookup.current:
        dimension = dimension.filter(IS_CURRENT)
    if lookup.at:
        helpers |= {f"{KEY}from": VALID_FROM, f"{KEY}to": VALID_TO}
    renamed = (helpers | lookup.added | {found: found}).items()
    dimension = dimension.select(*[F.col(f"`{column}`").alias(name) for name, column in renamed])
    if not lookup.at:
        # With one row of each key, it is no matter which row is the first.
        others = [F.first(name).alias(name) for name in (*lookup.added, found)]
        dimension = dimension.groupBy(*helpers).agg(F.count("*").alias(ROWS), *others)
    is_partner = [F.col(f"`{column}`") == F.col(name) for column, name in zip(lookup.keys, helpers, strict=False)]
    if lookup.at:
        at, begin, end = F.col(f"`{lookup.at}`"), F.col(f"{KEY}from"), F.col(f"{KEY}to")
        is_partner += [begin <= at, end.isNull() | (at < end)]
    joined = rows.join(dimension, reduce(and_, is_partner), "left")
    if not lookup.at:
        # A row must never become several rows. By construction, a looked-up table has one row of each key.
        values = F.concat_ws(", ", *[F.col(f"`{column}`").cast("string") for column in lookup.keys])
        problem = F.concat(
            F.lit(f"{lookup.table} holds several rows of the {', '.join(lookup.keys.values())} "),
            values,
            F.lit(", and a lookup finds one: rebuild the whole table (jobs/backfill.py --full)"),
        )
        joined = joined.filter(F.when(F.col(ROWS) > 1, F.raise_error(problem).cast("boolean")).otherwise(F.lit(True)))
    return joined.drop(*helpers, ROWS)
