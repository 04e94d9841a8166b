"""Divides the rows of a small batch by the rules that they break."""

from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from include.engine.batch import quality, storable
from include.engine.batch.merge_changes import DELETED, TRUNCATES
from include.engine.batch.quality import RowCounts
from include.engine.batch.watermark import EventTimes
from include.engine.fast_path.features import NotSupported
from include.engine.fast_path.known_keys import micros
from include.rules import Rule
from include.spec import Append, Upsert

Groups = list[tuple[str, ...]]


@dataclass(frozen=True)
class CheckedRows:
    """kept: without `_rules`. quarantined: with `_rules`."""

    counts: RowCounts
    kept: pa.Table
    quarantined: pa.Table


def broken_rules(rows: pa.Table, write: Append | Upsert, times: EventTimes) -> Groups:
    """Returns the rules that each row breaks: those of the column `_rules`, and those of the watermark."""
    groups: Groups = [tuple(names) for names in rows.column(quality.RULES).to_pylist()]
    declared = write.watermark
    if declared is None:
        return groups
    broken = [
        times.broken(declared, time) if may else ()
        for time, may in zip(micros(rows, declared.of), _may_be_late(rows, write), strict=True)
    ]
    return [tuple(dict.fromkeys((*names, *added))) for names, added in zip(groups, broken, strict=True)]


def _may_be_late(rows: pa.Table, write: Append | Upsert) -> list[bool]:
    """Returns for each row whether no `merge_changes.is_exempt` applies to it."""
    if isinstance(write, Append):
        return [True] * len(rows)
    truncates = [False] * len(rows)
    if write.truncates:
        sequences = rows.column(write.sequence_by)
        truncates = pc.and_(pc.fill_null(rows.column(TRUNCATES), False), pc.is_valid(sequences)).to_pylist()
    deletes = rows.column(DELETED).to_pylist()
    return [is_delete is False and not truncate for is_delete, truncate in zip(deletes, truncates, strict=True)]


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
