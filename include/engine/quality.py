"""Expectations: which rows break which rules."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from include.spec import Expect

RULES = "_rules"
ANSI = "spark.sql.ansi.enabled"


def judged(rows: DataFrame, rules: tuple[Expect, ...]) -> DataFrame:
    """`rows` plus `_rules`, the names of the rules each row breaks. A rule that comes out NULL is broken."""
    conf = rows.sparkSession.conf
    strict = conf.get(ANSI)
    # A rule must not end the flow: what ANSI calls an error (a division by zero, say) is NULL here, and breaks
    # the rule. Spark fixes that when it analyses the expression, which is now.
    conf.set(ANSI, "false")
    try:
        broken = [F.when(~F.coalesce(F.expr(rule.condition), F.lit(False)), F.lit(rule.name)) for rule in rules]
        none = F.array().cast("array<string>")
        return rows.withColumn(RULES, F.filter(F.array(*broken), lambda name: name.isNotNull()) if broken else none)
    finally:
        conf.set(ANSI, strict)


def is_broken() -> Column:
    """Of a judged row."""
    return F.size(RULES) > 0
