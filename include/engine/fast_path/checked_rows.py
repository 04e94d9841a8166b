"""Divides the rows of a small batch by the rules that they break."""

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa

from include.engine.batch import quality, storable
from include.engine.batch.quality import RowCounts
from include.engine.fast_path.features import NotSupported
from include.rules import Rule

Groups = list[tuple[str, ...]]


@dataclass(frozen=True)
class CheckedRows:
    """kept: without `_rules`. quarantined: with `_rules`."""

    counts: RowCounts
    kept: pa.Table
    quarantined: pa.Table


def broken_rules(rows: pa.Table) -> Groups:
    """Returns the rules that each row breaks, from the column `_rules`."""
    return [tuple(names) for names in rows.column(quality.RULES).to_pylist()]


def divide(rows: pa.Table, groups: Groups, rules: tuple[Rule, ...]) -> CheckedRows:
    """rows: with the column `_rules`. groups: the rules that each row breaks. Raises NotSupported for rows that only
    Spark's path quarantines.
    """
    if any(storable.TIMES in names for names in groups):
        raise NotSupported("times of its rows are not within the years 1 to 9999")
    actions = {names: quality.strictest(names, rules) for names in set(groups)}
    with_rules = rows.set_column(
        rows.column_names.index(quality.RULES), quality.RULES, pa.array(groups, pa.list_(pa.string()))
    )
    return CheckedRows(
        RowCounts.of(Counter(groups).items(), rules),
        rows.filter(_mask(groups, actions, "warn")).drop_columns([quality.RULES]),
        with_rules.filter(_mask(groups, actions, "quarantine")),
    )


def _mask(groups: Groups, actions: dict[tuple[str, ...], str], action: str) -> pa.Array:
    return pa.array([actions[names] == action for names in groups], pa.bool_())
