"""Puts mended rows of a quarantine back into their table, exactly once, in a window.

Three commits: the rows that are good by today's rules are marked in the quarantine with the number of the replay; they
are appended to the table under that number, which Delta takes once; the marked rows are deleted. A replay that died
behind the second is finished by the third; one that died before it is begun anew, under the same number.
"""

from collections import Counter
from dataclasses import dataclass
from functools import partial, reduce
from operator import or_
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from include.catalog import Catalog
from include.control.jobs import windows
from include.control.store import database
from include.engine.batch import deduplicate, quality
from include.engine.jobs import window
from include.engine.jobs.window import Window
from include.engine.session import open_session
from include.engine.tables import commit, create_table
from include.errors import UsageError
from include.readers import resume_position
from include.settings import settings
from include.spec import Append, Table
from include.validation.declaration import suggest

STEP = "replay quarantine"
BROKEN_NOW, BROKEN_THEN, IS_GOOD = "_broken_now", "_broken_then", "_is_good"


@dataclass(frozen=True)
class ReplayOutcome:
    """What a replay makes of a quarantine. bad: rows that still break each rule. left: those it did not look at."""

    good: int
    bad: int
    left: int
    broke: dict[str, int]

    def lines(self, table: Table) -> list[str]:
        broke = [f"  {count:,} break '{rule}'" for rule, count in self.broke.items() if count]
        counts = (
            f"{self.good:,} rows are good by today's rules, {self.bad:,} are still bad, {self.left:,} not looked at"
        )
        return [f"{table.quarantine}: {counts}", *broke]


def run(table: Table, tables: Catalog, rules: list[str], dry_run: bool) -> None:
    """Replay the rows that broke one of `rules`, or all but late ones where none is named.

    Raises UsageError where nothing can be replayed, LeaseHeld where the table has another window, Unreachable, and
    FlowFailed where a step fails.
    """
    _require_quarantine(table)
    if dry_run:
        spark = open_session(f"sluice replay {table.name}", tables)
        print("\n".join(_verdict(_judged(spark, table, rules)).lines(table)), flush=True)
        return
    engine = database.connect(settings().control_url)
    why = f"{STEP}: {', '.join(rules) or 'all rules'}"
    number = windows.plan(engine, table.name, "by hand", why, is_worth_it=True)
    names = [table.name, table.quarantine]
    window.run_in(engine, table, tables, number, names, partial(replay, rules=rules))


def _require_quarantine(table: Table) -> None:
    if table.layer == "bronze" or not settings().is_stored(table.quarantine):
        raise UsageError(f"{table.name} has no quarantine whose rows a rule of its could let in: name another table")


def replay(opened: Window, rules: list[str]) -> None:
    """What is done in the window."""
    spark, table = opened.spark, opened.table
    stamp = opened.begin(STEP, table.name)
    create_table.create(spark, table)
    done = DeltaTable(str(settings().table_path(table.name))).transaction_version(_app_id(table)) or 0
    _delete(spark, table, f"_replay <= {done}", stamp)
    judged = _judged(spark, table, rules).persist()
    try:
        verdict = _verdict(judged)
        print("\n".join(verdict.lines(table)), flush=True)
        if verdict.good:
            put = _put_back(spark, judged, table, done + 1, stamp)
            print(f"{table.name}: {put:,} rows put back, {verdict.good - put:,} of the good ones were there already")
    finally:
        judged.unpersist()


def _put_back(spark: SparkSession, judged: DataFrame, table: Table, number: int, stamp: dict[str, object]) -> int:
    """Returns how many rows the table did not hold yet."""
    stamp = {**stamp, "replay": number}
    _mark(spark, judged, table, number, stamp)
    put = _append(spark, table, number, stamp)
    _delete(spark, table, f"_replay = {number}", stamp)
    return put


def _mark(spark: SparkSession, judged: DataFrame, table: Table, number: int, stamp: dict[str, object]) -> None:
    marked = judged.withColumn("_replay", F.when(F.col(IS_GOOD), F.lit(number).cast("bigint")))
    marked = marked.drop(BROKEN_NOW, IS_GOOD)
    with commit.stamped(spark, stamp, {}):
        marked.write.format("delta").mode("overwrite").save(str(settings().table_path(table.quarantine)))


def _append(spark: SparkSession, table: Table, number: int, stamp: dict[str, object]) -> int:
    assert isinstance(table.write, Append)
    marked = _stored(spark, table.quarantine).filter(f"_replay = {number}")
    rows = marked.select(*[f"`{name}`" for name in _stored(spark, table.name).columns])
    if table.write.unique:
        rows = deduplicate.first_of_each(rows, table, table.write, near="true", however_late=True)
    rows = rows.persist()
    try:
        put = rows.count()
        with commit.stamped(spark, {**stamp, "rows_put_back": put}, commit.once(_app_id(table), number)):
            commit.append(rows, table)
        return put
    finally:
        rows.unpersist()


def _delete(spark: SparkSession, table: Table, condition: str, stamp: dict[str, object]) -> None:
    if _stored(spark, table.quarantine).filter(condition).isEmpty():
        return
    with commit.stamped(spark, stamp, {}):
        spark.sql(f"DELETE FROM delta.`{settings().table_path(table.quarantine)}` WHERE {condition}")


def _judged(spark: SparkSession, table: Table, rules: list[str]) -> DataFrame:
    """The quarantine, plus the rules each row breaks today; NULL where the row is not to be looked at."""
    stored = _stored(spark, table.quarantine)
    _require_known(stored, table, rules)
    is_chosen = F.coalesce(_is_chosen(table, rules) & has_happened(table), F.lit(False))
    renamed = stored.filter(is_chosen).withColumnRenamed(quality.RULES, BROKEN_THEN)
    chosen = quality.with_violations(renamed, table.expect, table).withColumn(
        IS_GOOD, quality.ends_as("warn", table.expect)
    )
    chosen = chosen.withColumnsRenamed({quality.RULES: BROKEN_NOW, BROKEN_THEN: quality.RULES})
    rest = stored.filter(~is_chosen)
    return chosen.unionByName(rest.withColumns({BROKEN_NOW: F.lit(None), IS_GOOD: F.lit(None)}))


def _is_chosen(table: Table, rules: list[str]) -> Column:
    """A late row is let in only by somebody who names that rule, as those who read the table may not expect it."""
    is_named = _broke(*rules) if rules else F.lit(True)
    if table.watermark is None or table.watermark.rule in rules:
        return is_named
    return is_named & ~_broke(table.watermark.rule)


def _broke(*rules: str) -> Column:
    return F.arrays_overlap(quality.RULES, F.array(*[F.lit(rule) for rule in rules]))


def has_happened(table: Table) -> Column:
    """Not the rows of a batch that was begun and not committed: its flow will judge all of it again."""
    stamps = [stamp for flow in table.flows if (stamp := resume_position.last_stamp(flow))]
    return reduce(or_, [_is_up_to(stamp) for stamp in stamps], F.lit(False))


def _is_up_to(stamp: dict[str, Any]) -> Column:
    number, batch = F.lit(stamp["generation"]), F.lit(stamp["batch"])
    own, in_batch = F.col("_generation"), F.col("_batch")
    return (F.col("_flow") == stamp["flow"]) & ((own < number) | ((own == number) & (in_batch <= batch)))


def _require_known(stored: DataFrame, table: Table, rules: list[str]) -> None:
    found = {row.name for row in stored.select(F.explode(quality.RULES).alias("name")).distinct().collect()}
    known = sorted(found | {rule.name for rule in table.expect})
    for rule in rules:
        if rule not in known:
            raise UsageError(f"no row of {table.quarantine} broke '{rule}': {suggest(rule, known)}")


def _verdict(judged: DataFrame) -> ReplayOutcome:
    groups = judged.groupBy(BROKEN_NOW, IS_GOOD).count().collect()
    total = sum(group["count"] for group in groups)
    good = sum(group["count"] for group in groups if group[IS_GOOD])
    broke: Counter[str] = Counter()
    for group in groups:
        if group[IS_GOOD] is False:
            broke.update(dict.fromkeys(group[BROKEN_NOW], group["count"]))
    bad = sum(group["count"] for group in groups if group[IS_GOOD] is False)
    return ReplayOutcome(good, bad, total - good - bad, dict(broke))


def _stored(spark: SparkSession, name: str) -> DataFrame:
    return spark.read.format("delta").load(str(settings().table_path(name)))


def _app_id(table: Table) -> str:
    return f"replay/{table.name}"
