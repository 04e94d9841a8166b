"""Expectations: which rows break which rules, and what happens to them."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F

from include.engine.commit import CommitMetadata, read_newest, read_table
from include.engine.rows import storable, suppression
from include.engine.rows.merge_changes import DELETED, KNOWN, TRUNCATES, is_exempt
from include.errors import FlowBroken, Unreachable
from include.rules import ACTIONS, FAILED, SUPPRESSED, Expect, References, Rule, Unique
from include.spec import CHANGE_RULE, FLAG_RULE, SEQUENCE_RULE, Table

RULES = "_rules"
HOLDS = "_holds_"
ANSI = "spark.sql.ansi.enabled"
ANALYSIS = threading.Lock()
# Rules that hold for a delete, too, because it is retained.
NEVER_EXEMPT = (CHANGE_RULE, SEQUENCE_RULE, storable.TIMES)


@dataclass(frozen=True)
class RowCounts:
    """How many rows of a batch went where. broke: by rule. Every row read is kept, quarantined or dropped.

    The table omits kept rows that repeat a stored one; Delta's commit counts the rows that were written.
    """

    read: int
    kept: int
    quarantined: int
    dropped: int
    broke: dict[str, int]

    @classmethod
    def of(cls, groups: Iterable[tuple[Iterable[str], int]], rules: tuple[Rule, ...]) -> "RowCounts":
        """groups: sets of rule names, and how many rows break exactly these."""
        groups = [(frozenset(names), count) for names, count in groups]
        by_action = dict.fromkeys(ACTIONS, 0)
        for names, count in groups:
            by_action[strictest(names, rules)] += count
        counts = {rule.name: sum(count for names, count in groups if rule.name in names) for rule in rules}
        implied = {rule.name for rule in rules if isinstance(rule, Expect) and rule.implied}
        broke = {name: count for name, count in counts.items() if count or name not in implied}
        return cls(sum(by_action.values()), by_action["warn"], by_action["quarantine"], by_action["drop"], broke)

    def __add__(self, other: "RowCounts") -> "RowCounts":
        """Counts the rows of both. They were checked by the same rules."""
        return RowCounts(
            self.read + other.read,
            self.kept + other.kept,
            self.quarantined + other.quarantined,
            self.dropped + other.dropped,
            {name: self.broke.get(name, 0) + other.broke.get(name, 0) for name in self.broke | other.broke},
        )

    def with_failed(self, count: int) -> "RowCounts":
        """Counts source rows of which no row could be made, too."""
        broke = self.broke | ({FAILED: count} if count else {})
        return replace(self, read=self.read + count, quarantined=self.quarantined + count, broke=broke)

    def failing(self, rules: tuple[Rule, ...]) -> str:
        """Returns the broken rules of action `fail` with their row counts, as a phrase; empty if none was broken."""
        counts = {rule.name: self.broke.get(rule.name, 0) for rule in rules if rule.otherwise == "fail"}
        return " and ".join(f"'{name}' ({count:,} rows)" for name, count in counts.items() if count)


def require_none_fails(counts: RowCounts, rules: tuple[Rule, ...], metadata: CommitMetadata) -> None:
    """Raises FlowBroken if rows of the batch break a rule of action `fail`."""
    if failing := counts.failing(rules):
        raise FlowBroken(
            f"{metadata.flow}: batch {metadata.batch} of generation {metadata.generation} breaks {failing}, and "
            f"nothing of it was written; it reads its source from {metadata.source_from} to {metadata.source_to}: fix "
            f"the rule or the transform and restart, or let the rule say otherwise='quarantine'",
            "EXPECTATION_FAILED",
        )


def strictest(names: Iterable[str], rules: tuple[Rule, ...]) -> str:
    """Returns the action for a row that breaks these rules; `warn`, which keeps it, if it breaks none."""
    actions = {rule.otherwise for rule in rules if rule.name in names}
    return next((action for action in ACTIONS if action in actions), ACTIONS[-1])


def ends_as(action: str, rules: tuple[Rule, ...]) -> Column:
    """Whether this action applies to the row. Reads column `_rules`."""
    stricter = ACTIONS[: ACTIONS.index(action)]
    decided = ~_breaks_one(rules, stricter)
    return decided if action == ACTIONS[-1] else decided & _breaks_one(rules, (action,))


@contextmanager
def _without_ansi(spark: SparkSession) -> Iterator[None]:
    """A rule must not fail the flow: an ANSI error, such as a division by zero, becomes NULL and breaks the rule.

    Spark decides this when it analyses the expression, which must happen in the block.
    """
    # Two threads of one session that overlap would each restore what the other has set.
    with ANALYSIS:
        ansi_enabled = str(spark.conf.get(ANSI))
        spark.conf.set(ANSI, "false")
        try:
            yield
        finally:
            spark.conf.set(ANSI, ansi_enabled)


def _breaks_one(rules: tuple[Rule, ...], actions: tuple[str, ...]) -> Column:
    names = [F.lit(rule.name) for rule in rules if rule.otherwise in actions]
    return F.arrays_overlap(RULES, F.array(*names)) if names else F.lit(False)


def with_violations(
    rows: DataFrame, rules: tuple[Rule, ...], table: Table | None = None, stored: str | None = "true"
) -> DataFrame:
    """Returns `rows` plus `_rules`, the names of the rules that each row breaks. NULL breaks a rule. Of changes,
    `_is_known` is checked and left out.

    table: needed by rules that compare with stored rows. stored: a SQL condition for the stored rows that count; None
    if none do. Raises Unreachable if a rule refers to a table that is not stored.
    """
    columns = rows.columns
    references = [rule for rule in rules if isinstance(rule, References)]
    for number, reference in enumerate(references):
        rows = _with_reference(rows, reference, f"{HOLDS}{number}")
    holds = {rule.name: F.coalesce(F.col(f"{HOLDS}{number}"), F.lit(False)) for number, rule in enumerate(references)}
    conditions = [rule for rule in rules if isinstance(rule, Expect)]
    with _without_ansi(rows.sparkSession):
        holds |= {rule.name: F.coalesce(F.expr(rule.condition), F.lit(False)) for rule in conditions}
        if DELETED in columns:
            exempt = is_exempt(table.write) if table and table.merges_changes else F.lit(False)
            holds |= {name: exempt | hold for name, hold in holds.items() if name not in NEVER_EXEMPT}
            holds |= {name: F.col(DELETED).isNull() | hold for name, hold in holds.items()}
        if TRUNCATES in columns and table and table.merges_changes:
            has_sequence = F.col(TRUNCATES) & F.col(f"`{table.write.sequence_by}`").isNotNull()
            holds = {name: hold if name == SEQUENCE_RULE else has_sequence | hold for name, hold in holds.items()}
        kept = {name: F.col(f"`{name}`") for name in columns if name != KNOWN}
        if KNOWN in columns and FLAG_RULE in holds:
            # What is no change at all is refused as such.
            is_known = F.col(KNOWN) | ~holds[CHANGE_RULE]
            holds[FLAG_RULE] &= is_known
            # A replay does not know either what the change does.
            kept[DELETED] = F.when(is_known, F.col(DELETED)).alias(DELETED)
        ordered = {rule.name: holds[rule.name] for rule in rules if rule.name in holds}
        rows = rows.select(*kept.values(), _violations(ordered).alias(RULES))
        if SUPPRESSED in rules and table:
            rows = suppression.marked(rows, table, RULES)
    for rule in rules:
        if isinstance(rule, Unique):
            assert table
            rows = _with_unique(rows, rule, rules, table, stored)
    return rows


def _violations(holds: dict[str, Column]) -> Column:
    none = F.array().cast("array<string>")
    if not holds:
        return none
    names = [F.when(hold, none).otherwise(F.array(F.lit(name))) for name, hold in holds.items()]
    # Most rows break no rule; for them no array is built.
    return F.when(reduce(and_, holds.values()), none).otherwise(F.concat(*names))


def _with_reference(rows: DataFrame, rule: References, flag: str) -> DataFrame:
    key = f"{flag}_key"
    stored = read_newest(rows.sparkSession, rule.table)
    if stored is None:
        raise Unreachable(
            f"rule '{rule.name}' looks into {rule.table}, which is not stored yet: start the flow {rule.table} first"
        )
    referenced = stored.select(F.col(f"`{rule.key}`").alias(key)).distinct().withColumn(flag, F.lit(True))
    return rows.join(referenced, F.col(f"`{rule.column}`") == F.col(key), "left")


def _with_unique(rows: DataFrame, rule: Unique, rules: tuple[Rule, ...], table: Table, stored: str | None) -> DataFrame:
    """Checks uniqueness among the rows that the rules before this one keep."""
    is_out = ~ends_as("warn", rules)
    order = [F.col(f"`{name}`") for name in table.write.first_by]
    everything = F.to_json(F.struct(*[column for column in rows.columns if column != RULES]))
    first = Window.partitionBy(is_out, *rule.columns).orderBy(*order, everything)
    rows = rows.withColumn(f"{HOLDS}place", F.row_number().over(first))
    is_stored = F.lit(False)
    joined = rows
    if stored is not None:
        joined = _mark_stored(rows, rule, table, stored)
        is_stored = F.col(f"{HOLDS}known").isNotNull()
    is_missing = reduce(or_, [F.col(f"`{column}`").isNull() for column in rule.columns])
    is_repeated = is_missing | is_stored | (F.col(f"{HOLDS}place") > 1)
    names = F.when(is_repeated, F.concat(RULES, F.array(F.lit(rule.name)))).otherwise(F.col(RULES))
    others = [F.col(f"`{column}`") for column in rows.columns if column not in (RULES, f"{HOLDS}place")]
    return joined.select(*others, names.alias(RULES))


def _mark_stored(rows: DataFrame, rule: Unique, table: Table, condition: str) -> DataFrame:
    """Returns `rows` plus a column that is TRUE for rows with the values of a stored row, else NULL."""
    stored_rows = read_table(rows.sparkSession, table.name).filter(condition)
    keys = {column: f"{HOLDS}{number}" for number, column in enumerate(rule.columns)}
    stored_keys = stored_rows.select(*[F.col(f"`{column}`").alias(key) for column, key in keys.items()]).distinct()
    same = reduce(and_, [F.col(f"`{column}`") == F.col(key) for column, key in keys.items()])
    return rows.join(stored_keys.withColumn(f"{HOLDS}known", F.lit(True)), same, "left")
