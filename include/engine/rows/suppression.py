"""Recognises rows of erased subjects. They break the rule `suppressed` alone, so that no other rule keeps a copy."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.control import suppression
from include.control.store import database
from include.rules import SUPPRESSED
from include.settings import settings
from include.spec import Table

# The columns by which `verify` looks for a record of a topic.
PLACE = ("topic", "partition", "offset")
# Of HMAC-SHA256, as RFC 2104 defines it.
BLOCK_BYTES, INNER, OUTER = 64, 0x36, 0x5C


def marked(rows: DataFrame, table: Table, rules: str) -> DataFrame:
    """Returns the rows with what those of erased subjects break. rules: the column with the rules that a row breaks.

    Raises FlowBroken without the key of the suppression list, and Unreachable.
    """
    secret, macs = suppression.listed(database.connect(settings().control_url))
    if not macs:
        return rows
    broken = F.when(is_one_of(table, secret, macs), F.array(F.lit(SUPPRESSED.name))).otherwise(F.col(rules))
    return rows.withColumn(rules, broken)


def is_one_of(table: Table, secret: bytes, macs: Collection[str]) -> Column:
    """Whether the row's subject has one of these keyed hashes."""
    inner, outer = (bytes(byte ^ pad for byte in secret.ljust(BLOCK_BYTES, b"\0")).hex() for pad in (INNER, OUTER))
    name = f"encode(CAST(({table.subject_expression}) AS STRING), 'UTF-8')"
    digest = f"unhex(sha2(concat(X'{inner}', {name}), 256))"
    return F.coalesce(F.expr(f"sha2(concat(X'{outer}', {digest}), 256)").isin(list(macs)), F.lit(False))


def places(columns: Collection[str], rows: Iterable[Any]) -> dict[str, list[int]] | None:
    """Returns the offsets of these rows by `<topic>/<partition>`; None for a table without these columns."""
    if not set(PLACE) <= set(columns):
        return None
    offsets: defaultdict[str, list[int]] = defaultdict(list)
    for row in rows:
        topic, partition, offset = (row[name] for name in PLACE)
        offsets[f"{topic}/{partition}"].append(offset)
    return {partition: sorted(found) for partition, found in offsets.items()}


def places_in(checked_rows: DataFrame, rules: str) -> dict[str, list[int]] | None:
    """Returns the same for the rows of erased subjects among these."""
    if not set(PLACE) <= set(checked_rows.columns):
        return None
    found = checked_rows.filter(F.array_contains(rules, SUPPRESSED.name)).select(*[f"`{name}`" for name in PLACE])
    return places(PLACE, found.collect())
