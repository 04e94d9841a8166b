"""Keeps the tables of a flow's lookups in memory, and joins small batches with them."""

from bisect import bisect_right
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from include.delta import stored_table
from include.engine.fast_path.known_keys import Key, keys_of, not_compared
from include.engine.rows import lookup
from include.engine.rows.merge_changes import IS_CURRENT, VALID_FROM, VALID_TO
from include.engine.rows.micro_batch import Refusal
from include.spec import Lookup, Table

# Most bytes of a lookup's columns in memory. Spark joins the batches with larger tables.
MOST_BYTES = 512_000_000


class Dimensions:
    """The tables of a flow's lookups, each at the version of the newest batch."""

    def __init__(self, table: Table) -> None:
        self._lookups = table.lookups
        # By position of the lookup: a version, and its rows; None for too many.
        self._loaded: dict[int, tuple[int, pa.Table | None]] = {}

    def join(self, rows: pa.Table, versions: dict[str, int]) -> tuple[pa.Table, dict[str, int]] | Refusal:
        """Returns parsed rows of a batch plus the columns of all lookups, as `lookup.join` does. Also returns by label
        of a lookup how many rows have no partner.

        versions: by table. Refuses a table that is too large, keys that only Spark compares, and several rows of one.
        """
        no_partner = {}
        for number, item in enumerate(self._lookups):
            stored = self._rows(number, versions[item.table])
            if stored is None:
                return Refusal(f"the columns of {item.table} are too large to keep in memory")
            dimension = _with_keys(stored, item, rows)
            joined = _join(rows, item, dimension)
            if isinstance(joined, Refusal):
                return joined
            rows, no_partner[item.label] = joined
        return rows, no_partner

    def _rows(self, number: int, version: int) -> pa.Table | None:
        if number not in self._loaded or self._loaded[number][0] != version:
            # Frees the old rows before it reads the new ones.
            self._loaded.pop(number, None)
            self._loaded[number] = version, _read(self._lookups[number], version)
        return self._loaded[number][1]


def local_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Returns the rows as a DataFrame of one partition."""
    # As one Arrow batch: Spark takes an empty batch between others for the end, and ignores what follows.
    return spark.createDataFrame(rows.combine_chunks(), from_arrow_schema(rows.schema)).coalesce(1)


def _read(item: Lookup, version: int) -> pa.Table | None:
    """Returns the columns of a lookup; None if they are too large."""
    condition = ds.field(IS_CURRENT) if item.current else None
    dataset = stored_table.dataset(item.table, stored_table.open_table(item.table, version))
    scanner = dataset.scanner(columns=lookup.stored_columns(item), filter=condition)
    batches, size = [], 0
    for batch in scanner.to_batches():
        batches.append(batch)
        size += batch.nbytes
        if size > MOST_BYTES:
            return None
    return pa.Table.from_batches(batches, scanner.projected_schema)


def _with_keys(rows: pa.Table, item: Lookup, parsed_rows: pa.Table) -> pa.Table:
    """Returns the rows whose first key is one of those of the batch."""
    column, key = next(iter(item.keys.items()))
    values = pc.unique(parsed_rows.column(column)).cast(rows.schema.field(key).type)
    return rows.filter(pc.is_in(rows.column(key), value_set=values.drop_null()))


def _join(rows: pa.Table, item: Lookup, dimension: pa.Table) -> tuple[pa.Table, int] | Refusal:
    """Returns the rows plus the columns of one lookup, and how many have no partner.

    dimension: all rows of its table that may be partners.
    """
    compared = [*item.keys.values(), *([VALID_FROM] if item.at else [])]
    if refusal := not_compared(dimension.schema, compared, f"in {item.table} the column"):
        return refusal
    partners = _history_partners(rows, item, dimension) if item.at else _partners(rows, item, dimension)
    if partners is None:
        # Spark's join says so, if a row of the batch has the key.
        return Refusal(f"{item.table} holds several rows of a key")
    found = dimension.take(pa.array(partners, pa.int64()))
    for name, column in item.added.items():
        rows = rows.append_column(name, found.column(column))
    return rows, partners.count(None)


def _partners(rows: pa.Table, item: Lookup, dimension: pa.Table) -> list[int | None] | None:
    """Returns for each row the position of its partner; None if it has none. Returns None for several rows of a key."""
    keys = keys_of(dimension, item.keys.values())
    positions = {key: position for position, key in enumerate(keys)}
    if len(positions) < len(keys) and max(Counter(key for key in keys if None not in key).values(), default=0) > 1:
        return None
    return [None if None in key else positions.get(key) for key in keys_of(rows, item.keys)]


def _history_partners(rows: pa.Table, item: Lookup, dimension: pa.Table) -> list[int | None]:
    """As `_partners`, for the row of the history that was valid at the time of the row."""
    periods: dict[Key, list[tuple[Any, Any, int]]] = {}
    columns = (*item.keys.values(), VALID_FROM, VALID_TO)
    for position, (*key, begin, end) in enumerate(keys_of(dimension, columns)):
        periods.setdefault(tuple(key), []).append((begin, end, position))
    for ordered in periods.values():
        ordered.sort(key=lambda period: period[0])
    assert item.at
    return [
        None if at is None or None in key else _valid_at(periods.get(tuple(key), []), at)
        for *key, at in keys_of(rows, (*item.keys, item.at))
    ]


def _valid_at(periods: list[tuple[Any, Any, int]], at: Any) -> int | None:
    """Returns the position of the period that holds this time. periods: of one key, by their begin."""
    following = bisect_right(periods, at, key=lambda period: period[0])
    if not following:
        return None
    _, end, position = periods[following - 1]
    return position if end is None or at < end else None
