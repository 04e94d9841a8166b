"""Expectations: which rows break which rules, and what becomes of them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import and_, or_

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from include.engine.batch import read
from include.engine.tables.commit import CommitMetadata
from include.errors import Broken, Unreachable
from include.rules import ACTIONS, Expect, References, Rule, Unique
from include.settings import settings
from include.spec import Append, Table

RULES = "_rules"
HOLDS = "_holds_"
ANSI = "spark.sql.ansi.enabled"


@dataclass(frozen=True)
class RowCounts:
    """How many rows of a batch went where. broke: by rule. Every row read is kept, quarantined or dropped.

    Of the kept ones, the table leaves out those that repeat a row it holds; how many it wrote, its commit says.
    """

    read: int
    kept: int
    quarantined: int
    dropped: int
    broke: dict[str, int]

    @classmethod
    def of(cls, groups: Iterable[tuple[Iterable[str], int]], rules: tuple[Rule, ...]) -> "RowCounts":
        """groups: names of rules, and how many rows break just these."""
        groups = [(frozenset(names), count) for names, count in groups]
        ends = dict.fromkeys(ACTIONS, 0)
        for names, count in groups:
            ends[strictest(names, rules)] += count
        broke = {rule.name: sum(count for names, count in groups if rule.name in names) for rule in rules}
        return cls(sum(ends.values()), ends["warn"], ends["quarantine"], ends["drop"], broke)

    def failing(self, rules: tuple[Rule, ...]) -> str:
        """In words, the rules that end what broke them, and by how many rows; empty where none was broken."""
        failed = {rule.name: self.broke[rule.name] for rule in rules if rule.otherwise == "fail"}
        return " and ".join(f"'{name}' ({count:,} rows)" for name, count in failed.items() if count)


def require_none_fails(tally: RowCounts, rules: tuple[Rule, ...], stamp: CommitMetadata) -> None:
    """Raises Broken where rows of the batch break a rule that no row may break."""
    if counts := tally.failing(rules):
        raise Broken(
            f"{stamp.flow}: batch {stamp.batch} of generation {stamp.generation} breaks {counts}, and nothing of it "
            f"was written; it reads its source from {stamp.source_from} to {stamp.source_to}: mend the rule or the "
            f"transform and restart, or let the rule say otherwise='quarantine'",
            "EXPECTATION_FAILED",
        )


def strictest(names: Iterable[str], rules: tuple[Rule, ...]) -> str:
    """What becomes of a row that breaks these rules; `warn`, which keeps it, where it breaks none."""
    actions = {rule.otherwise for rule in rules if rule.name in names}
    return next((action for action in ACTIONS if action in actions), ACTIONS[-1])


def ends_as(action: str, rules: tuple[Rule, ...]) -> Column:
    """Whether that becomes of a judged row."""
    stricter = ACTIONS[: ACTIONS.index(action)]
    decided = ~_breaks_one(rules, stricter)
    return decided if action == ACTIONS[-1] else decided & _breaks_one(rules, (action,))


def _breaks_one(rules: tuple[Rule, ...], actions: tuple[str, ...]) -> Column:
    names = [F.lit(rule.name) for rule in rules if rule.otherwise in actions]
    return F.arrays_overlap(RULES, F.array(*names)) if names else F.lit(False)


def with_violations(
    rows: DataFrame, rules: tuple[Rule, ...], table: Table | None = None, stored: str | None = "true"
) -> DataFrame:
    """`rows` plus `_rules`, the names of the rules each row breaks. A rule that comes out NULL is broken.

    table: whose rows they are, where a rule is to compare them with what is stored; stored: a SQL condition for the
    rows that count as such, None where none does. Raises Unreachable where a rule looks into a table that is not there.
    """
    columns = rows.columns
    referring = [rule for rule in rules if isinstance(rule, References)]
    for number, rule in enumerate(referring):
        rows = _with_reference(rows, rule, f"{HOLDS}{number}")
    holds = {rule.name: F.coalesce(F.col(f"{HOLDS}{n}"), F.lit(False)) for n, rule in enumerate(referring)}
    conditions = [rule for rule in rules if isinstance(rule, Expect)]
    conf = rows.sparkSession.conf
    strict = conf.get(ANSI)
    # A rule must not end the flow: what ANSI calls an error (a division by zero, say) is NULL here, and breaks
    # the rule. Spark fixes that when it analyses the expression, which is now.
    conf.set(ANSI, "false")
    try:
        holds |= {rule.name: F.coalesce(F.expr(rule.condition), F.lit(False)) for rule in conditions}
        in_order = {rule.name: holds[rule.name] for rule in rules if rule.name in holds}
        rows = rows.select(*[F.col(f"`{column}`") for column in columns], _broken(in_order).alias(RULES))
    finally:
        conf.set(ANSI, strict)
    for rule in rules:
        if isinstance(rule, Unique):
            assert table
            rows = _with_unique(rows, rule, rules, table, stored)
    return rows


def _broken(holds: dict[str, Column]) -> Column:
    none = F.array().cast("array<string>")
    if not holds:
        return none
    names = [F.when(hold, none).otherwise(F.array(F.lit(name))) for name, hold in holds.items()]
    # Most rows are fine, and no array is put together for them.
    return F.when(reduce(and_, holds.values()), none).otherwise(F.concat(*names))


def _with_reference(rows: DataFrame, rule: References, flag: str) -> DataFrame:
    key = f"{flag}_key"
    stored = read.newest(rows.sparkSession, rule.table)
    if stored is None:
        raise Unreachable(
            f"rule '{rule.name}' looks into {rule.table}, which is not stored yet: start the flow {rule.table} first"
        )
    known = stored.select(F.col(f"`{rule.key}`").alias(key)).distinct().withColumn(flag, F.lit(True))
    return rows.join(known, F.col(f"`{rule.column}`") == F.col(key), "left")


def _with_unique(rows: DataFrame, rule: Unique, rules: tuple[Rule, ...], table: Table, which: str | None) -> DataFrame:
    """Among the rows that the rules before this one let into the table."""
    is_out = ~ends_as("warn", rules)
    order = [F.col(f"`{name}`") for name in table.write.first_by] if isinstance(table.write, Append) else []
    everything = F.to_json(F.struct(*[column for column in rows.columns if column != RULES]))
    first = Window.partitionBy(is_out, *rule.columns).orderBy(*(order or [everything]))
    rows = rows.withColumn(f"{HOLDS}place", F.row_number().over(first))
    known = F.lit(False)
    joined = rows
    if which is not None:
        joined = _with_known(rows, rule, table, which)
        known = F.col(f"{HOLDS}known").isNotNull()
    is_missing = reduce(or_, [F.col(f"`{column}`").isNull() for column in rule.columns])
    is_repeated = is_missing | known | (F.col(f"{HOLDS}place") > 1)
    names = F.when(is_repeated, F.concat(RULES, F.array(F.lit(rule.name)))).otherwise(F.col(RULES))
    others = [F.col(f"`{column}`") for column in rows.columns if column not in (RULES, f"{HOLDS}place")]
    return joined.select(*others, names.alias(RULES))


def _with_known(rows: DataFrame, rule: Unique, table: Table, which: str) -> DataFrame:
    """`rows` with a mark on those that have the same values as a stored row."""
    stored = rows.sparkSession.read.format("delta").load(str(settings().table_path(table.name))).filter(which)
    keys = {column: f"{HOLDS}{number}" for number, column in enumerate(rule.columns)}
    known = stored.select(*[F.col(f"`{column}`").alias(key) for column, key in keys.items()]).distinct()
    same = reduce(and_, [F.col(f"`{column}`") == F.col(key) for column, key in keys.items()])
    return rows.join(known.withColumn(f"{HOLDS}known", F.lit(True)), same, "left")
