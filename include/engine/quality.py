"""Expectations: which rows break which rules."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.spec import Expect

RULES = "_rules"


def judged(rows: DataFrame, rules: tuple[Expect, ...]) -> DataFrame:
    """`rows` plus `_rules`, the names of the rules each row breaks. A rule that comes out NULL is broken."""
    broken = [F.when(~F.coalesce(F.expr(rule.condition), F.lit(False)), F.lit(rule.name)) for rule in rules]
    return rows.withColumn(RULES, F.filter(F.array(*broken), lambda name: name.isNotNull()))


def is_broken() -> F.Column:
    return F.size(RULES) > 0
