"""Counts what a batch of changes did to the keys of its table.

Of each key, one change counts as inserted, updated, deleted or unchanged: by the row of the key before and after the
batch, and for a history by its current row. The other changes of the key are stale. This needs no look at the table
besides that of the merge.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.engine.batch.merge_changes import DELETED, IS_CURRENT, RETAINED, SEQUENCES, SHOWN, TRUNCATES
from include.spec import Upsert

BEFORE, AFTER, HAD, HAS = "_before", "_after", "_had", "_has"


@dataclass(frozen=True)
class KeyOutcomes:
    """What became of the kept changes of a batch, which are as many as keys, stale and truncates together.

    keys: how many the batch changes. stale: its further changes of these keys, and tombstones. truncates: its changes
    that delete all keys. inserted: keys that had no row, or no current one, and have one now. deleted: the reverse.
    updated: keys whose rows differ otherwise. None: Delta's commit counts them. The other keys are unchanged.
    """

    keys: int
    stale: int
    truncates: int
    inserted: int | None = None
    updated: int | None = None
    deleted: int | None = None


def count_keys(write: Upsert) -> Column:
    """Returns the number of keys in a merge that has a row of each key."""
    return F.count_if(~F.col(TRUNCATES)) if write.truncates else F.count("*")


def count(changes: DataFrame, result: DataFrame, write: Upsert, kept: int) -> KeyOutcomes:
    """Counts the outcomes of a batch.

    changes: its good changes, `kept` in number, with the columns of `merge_changes.flags`. result: the rows of
    `merge_changes.merged`, and the stored rows of the keys, which have no value in `_shown`.
    """
    truncates = changes.filter(TRUNCATES).count() if write.truncates else 0
    of_keys = changes.filter(F.col(DELETED).isNotNull())
    of_keys = of_keys.filter(~F.col(TRUNCATES)) if write.truncates else of_keys
    keys = of_keys.select(*[F.col(f"`{key}`") for key in write.keys]).distinct()
    compared = keys.join(_before_and_after(result, write), list(write.keys), "left")
    had, has = (F.coalesce(F.col(name), F.lit(False)) for name in (HAD, HAS))
    counts = compared.agg(
        F.count("*").alias("keys"),
        F.count_if(~had & has).alias("inserted"),
        F.count_if((had == has) & (F.col(BEFORE) != F.col(AFTER))).alias("updated"),
        F.count_if(had & ~has).alias("deleted"),
    ).first()
    assert counts
    return KeyOutcomes(
        counts["keys"],
        kept - counts["keys"] - truncates,
        truncates,
        counts["inserted"],
        counts["updated"],
        counts["deleted"],
    )


def _before_and_after(result: DataFrame, write: Upsert) -> DataFrame:
    """Returns the rows of each key before and after the merge, and whether one of them is current."""
    internal = (DELETED, TRUNCATES, RETAINED, SHOWN)
    row = F.struct(*[_comparable(name) for name in result.columns if name not in internal])
    is_stored, is_shown = F.col(SHOWN).isNull(), F.coalesce(F.col(SHOWN), F.lit(False))
    is_current = F.col(IS_CURRENT) if write.scd == 2 else F.lit(True)
    return result.groupBy(*[F.col(f"`{key}`") for key in write.keys]).agg(
        F.sort_array(F.collect_list(F.when(is_stored, row))).alias(BEFORE),
        F.sort_array(F.collect_list(F.when(is_shown, row))).alias(AFTER),
        F.bool_or(is_stored & is_current).alias(HAD),
        F.bool_or(is_shown & is_current).alias(HAS),
    )


def _comparable(name: str) -> Column:
    # Spark does not compare maps.
    return F.sort_array(F.map_entries(name)).alias(name) if name == SEQUENCES else F.col(f"`{name}`")
