"""Counts what a batch of changes did to the keys of its table.

Of each key, one change counts as inserted, updated, deleted or unchanged: by the row of the key before and after the
batch, and for a history by its current row. The other changes of the key are stale. Tombstones are no changes. This
needs no look at the table besides that of the merge.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.engine.batch import merge_changes
from include.engine.batch.merge_changes import DELETED, IS_CURRENT, RETAINED, SEQUENCES, SHOWN, TRUNCATES
from include.spec import Upsert

CHANGED, BEFORE, AFTER, HAD, HAS = "_changed", "_before", "_after", "_had", "_has"


@dataclass(frozen=True)
class KeyOutcomes:
    """What became of the kept changes of a batch, which are as many as keys, stale, truncates and tombstones together.

    keys: how many the batch changes. stale: its further changes of these keys. truncates: its changes that delete all
    keys. tombstones: its records without a value, which change nothing. inserted: keys that had no row, or no current
    one, and have one now. deleted: the reverse. updated: keys whose rows differ otherwise. None: Delta's commit counts
    them. The other keys are unchanged.
    """

    keys: int
    stale: int
    truncates: int
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None
    tombstones: int = 0


def count_keys(write: Upsert) -> Column:
    """Returns the number of keys in a merge that has a row of each key."""
    return F.count_if(~F.col(TRUNCATES)) if write.truncates else F.count("*")


def count_tombstones(changes: DataFrame) -> int:
    """Counts the changes that are none, with the columns of `merge_changes.flags`."""
    return changes.filter(F.col(DELETED).isNull()).count()


def count(
    changes: DataFrame, result: DataFrame, write: Upsert, kept: int, may_have_tombstones: bool = True
) -> KeyOutcomes:
    """Counts the outcomes of a batch.

    changes: its good changes, `kept` in number, with the columns of `merge_changes.flags`. result: the rows of
    `merge_changes.merged`, and the stored rows of the keys, which have no value in `_shown`.
    """
    truncates = changes.filter(TRUNCATES).count() if write.truncates else 0
    tombstones = count_tombstones(changes) if may_have_tombstones else 0
    of_keys = changes.filter(F.col(DELETED).isNotNull())
    of_keys = of_keys.filter(~F.col(TRUNCATES)) if write.truncates else of_keys
    keys = [F.col(f"`{key}`") for key in write.keys]
    rows = _before_and_after(result, write).unionByName(
        of_keys.select(*keys, F.lit(True).alias(CHANGED)), allowMissingColumns=True
    )
    # Of hashes, because sorted rows would cost as much as the merge.
    per_key = rows.groupBy(*keys).agg(
        F.bool_or(CHANGED).alias(CHANGED),
        F.bit_xor(BEFORE).eqNullSafe(F.bit_xor(AFTER)).alias("is_same"),
        F.coalesce(F.bool_or(HAD), F.lit(False)).alias(HAD),
        F.coalesce(F.bool_or(HAS), F.lit(False)).alias(HAS),
    )
    had, has = F.col(HAD), F.col(HAS)
    counts = (
        per_key.filter(CHANGED)
        .agg(
            F.count("*").alias("keys"),
            F.count_if(~had & has).alias("inserted"),
            F.count_if((had == has) & ~F.col("is_same")).alias("updated"),
            F.count_if(had & ~has).alias("deleted"),
        )
        .collect()[0]
    )
    stale = kept - counts["keys"] - truncates - tombstones
    return KeyOutcomes(stale=stale, truncates=truncates, tombstones=tombstones, **counts.asDict())


def _before_and_after(result: DataFrame, write: Upsert) -> DataFrame:
    """Returns for each row the hash of what is stored, or of what will be, and whether it is current."""
    internal = (DELETED, TRUNCATES, RETAINED, SHOWN)
    floats = merge_changes.float_columns(result)
    names = [name for name in result.columns if name not in internal]
    row = F.xxhash64(*[merge_changes.zero_text(name) if name in floats else _hashable(name) for name in names])
    is_stored, is_shown = F.col(SHOWN).isNull(), F.coalesce(F.col(SHOWN), F.lit(False))
    is_current = F.col(IS_CURRENT) if write.scd == 2 else F.lit(True)
    return result.select(
        *[F.col(f"`{key}`") for key in write.keys],
        F.when(is_stored, row).alias(BEFORE),
        F.when(is_shown, row).alias(AFTER),
        (is_stored & is_current).alias(HAD),
        (is_shown & is_current).alias(HAS),
    )


def _hashable(name: str) -> Column:
    # Spark hashes no maps.
    return F.sort_array(F.map_entries(name)) if name == SEQUENCES else F.col(f"`{name}`")
