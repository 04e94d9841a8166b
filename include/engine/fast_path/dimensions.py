"""Keeps the tables of a flow's lookups in memory, and finds the rows that a small batch needs."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from include.engine.batch import lookup
from include.engine.fast_path.features import NotSupported
from include.readers import stored_table
from include.spec import Lookup, Table

# Most bytes of a lookup's columns in memory. Spark joins the batches with larger tables.
MOST_BYTES = 512_000_000
# Bytes of columns in memory for each byte of their files. A high estimate.
BYTES_PER_STORED_BYTE = 10


class Dimensions:
    """The tables of a flow's lookups, each at the version of the newest batch."""

    def __init__(self, table: Table) -> None:
        self._lookups = table.lookups
        self._loaded: dict[int, tuple[int, pa.Table]] = {}

    def frames(self, spark: SparkSession, versions: dict[str, int], parsed_rows: pa.Table) -> list[DataFrame]:
        """Returns for each lookup the rows of its table that may be partners of these rows.

        versions: by table. Raises NotSupported for a table that is too large.
        """
        return [
            local_frame(spark, _with_keys(self._rows(number, versions[item.table]), item, parsed_rows))
            for number, item in enumerate(self._lookups)
        ]

    def _rows(self, number: int, version: int) -> pa.Table:
        if number not in self._loaded or self._loaded[number][0] != version:
            # Frees the old rows before it reads the new ones.
            self._loaded.pop(number, None)
            self._loaded[number] = version, _read(self._lookups[number], version)
        return self._loaded[number][1]


def local_frame(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """Returns the rows as a DataFrame of one partition."""
    # As one Arrow batch: Spark takes an empty batch between others for the end, and ignores what follows.
    return spark.createDataFrame(rows.combine_chunks(), from_arrow_schema(rows.schema)).coalesce(1)


def _read(item: Lookup, version: int) -> pa.Table:
    opened = stored_table.open_table(item.table, version)
    size = sum(pa.table(opened.get_add_actions()).column("size_bytes").to_pylist())
    if size * BYTES_PER_STORED_BYTE > MOST_BYTES:
        raise NotSupported(f"{item.table}, which it looks into, is too large to keep in memory")
    condition = ds.field(lookup.IS_CURRENT) if item.current else None
    return stored_table.dataset(item.table, opened).to_table(lookup.stored_columns(item), filter=condition)


def _with_keys(rows: pa.Table, item: Lookup, parsed_rows: pa.Table) -> pa.Table:
    """Returns the rows whose first key is one of those of the batch."""
    column, key = next(iter(item.keys.items()))
    values = pc.unique(parsed_rows.column(column)).cast(rows.schema.field(key).type)
    return rows.filter(pc.is_in(rows.column(key), value_set=values.drop_null()))
