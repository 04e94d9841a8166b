"""Which views appended rows are enough to refresh, and that these then give the rows of a full computation."""

import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import partial, reduce

import pytest
from pyspark.sql import DataFrame

from include.delta.commit_history import RecomputeNeeded
from include.engine.jobs.incremental_plan import ViewPlan
from include.engine.rows.transform import apply_join

SCHEMA = "k INT, v INT, amount DECIMAL(38,10), ratio DOUBLE, word STRING"
TABLES = ("sales", "shops", "returns")

# SQL of a view, and the tables that may have new rows.
INCREMENTAL = [
    ("SELECT k + v AS n, upper(word) AS w FROM sales WHERE v > 1", "sales"),
    ("SELECT k, part FROM sales LATERAL VIEW explode(array(v, k)) AS part", "sales"),
    ("WITH some AS (SELECT * FROM sales WHERE k IS NOT NULL) SELECT word, ratio FROM some", "sales"),
    ("SELECT k FROM sales WHERE v IN (SELECT v FROM shops)", "sales"),
    ("SELECT sales.k, shops.word FROM sales JOIN shops USING (k)", "sales"),
    ("SELECT sales.k, shops.word FROM sales JOIN shops USING (k)", "shops"),
    ("SELECT sales.k, shops.word FROM sales LEFT JOIN shops ON sales.k = shops.v", "sales"),
    ("SELECT sales.k, shops.word FROM sales RIGHT JOIN shops ON sales.k = shops.v", "shops"),
    ("SELECT k, word FROM sales LEFT SEMI JOIN shops USING (v)", "sales"),
    ("SELECT k, word FROM sales LEFT ANTI JOIN shops USING (v)", "sales"),
    ("SELECT s.k, n FROM sales s JOIN (SELECT k, count(*) AS n FROM shops GROUP BY k) USING (k)", "sales"),
    ("SELECT k, v FROM sales UNION ALL SELECT v, k FROM sales WHERE v > 2", "sales"),
    ("SELECT k, v FROM sales UNION ALL SELECT k, v FROM shops", "sales"),
    ("SELECT k, v FROM sales UNION ALL SELECT k, v FROM shops", "sales shops"),
    (
        "SELECT k, count(*) AS c, count(v) AS cv, sum(v) AS s, min(word) AS a, max(ratio) AS z FROM sales GROUP BY k",
        "sales",
    ),
    ("SELECT sum(amount) AS total, word AS w, max(v) AS v FROM sales GROUP BY word", "sales"),
    ("SELECT count(*) AS c, sum(v) AS s, sum(amount) AS a, min(k) AS k FROM sales", "sales"),
    ("SELECT k, v FROM sales GROUP BY k, v", "sales"),
    ("SELECT k % 2 AS odd, word, count(*) FILTER (WHERE v > 1) AS c FROM sales GROUP BY k % 2, word", "sales"),
    (
        "SELECT c AS n, k FROM (SELECT s.k, count(*) AS c FROM sales s LEFT JOIN shops t USING (v) GROUP BY ALL)",
        "sales",
    ),
    ("SELECT k, sum(v) AS s FROM (SELECT k, v FROM sales UNION ALL SELECT k, v FROM returns) GROUP BY k", "returns"),
]
# SQL of a view, the tables that have new rows, and why these are not enough.
FULL = [
    ("SELECT k, sum(ratio) AS s FROM sales GROUP BY k", "sales", "a sum of DOUBLE depends on the order of its rows"),
    ("SELECT k, avg(v) AS s FROM sales GROUP BY k", "sales", r"results of avg\(\) cannot be combined"),
    ("SELECT k, count(DISTINCT v) AS s FROM sales GROUP BY k", "sales", r"results of count\(DISTINCT\) cannot"),
    ("SELECT k, try_sum(v) AS s FROM sales GROUP BY k", "sales", r"results of try_sum\(\) cannot be combined"),
    ("SELECT k, sum(v) + 1 AS s FROM sales GROUP BY k", "sales", "computes with the results of its aggregates"),
    ("SELECT k, sum(v) AS s FROM sales GROUP BY k HAVING sum(v) > 1", "sales", "it filters, joins or computes"),
    ("SELECT sum(v) AS s FROM sales GROUP BY k", "sales", "it groups by more than its columns"),
    ("SELECT k, count(*) AS c FROM sales GROUP BY ROLLUP (k)", "sales", "it groups by more than its columns"),
    ("SELECT k, sum(v + (SELECT max(v) FROM shops)) AS s FROM sales GROUP BY k", "shops", "it filters, joins or comp"),
    ("SELECT DISTINCT k FROM sales", "sales", "it removes duplicates"),
    ("SELECT k FROM sales UNION SELECT k FROM shops", "sales", "it removes duplicates"),
    ("SELECT k FROM sales ORDER BY k", "sales", "it sorts its rows"),
    ("SELECT k FROM sales ORDER BY k LIMIT 3", "sales", "it takes a limited number of rows"),
    ("SELECT k, row_number() OVER (ORDER BY v) AS n FROM sales", "sales", "it has window functions"),
    ("SELECT a.k, b.v FROM sales a JOIN sales b USING (k)", "sales", "both sides of a join read sales"),
    ("SELECT a.k, b.v FROM sales a JOIN shops b USING (k)", "sales shops", "both sides of a join read sales or shops"),
    (
        "SELECT a.k, b.v FROM sales a LEFT JOIN shops b USING (k)",
        "shops",
        "row of shops changes other rows of its LEFT OUTER",
    ),
    ("SELECT a.k, b.v FROM sales a FULL JOIN shops b USING (k)", "sales", "changes other rows of its FULL OUTER JOIN"),
    ("SELECT k FROM sales LEFT ANTI JOIN shops USING (k)", "shops", "row of shops changes other rows of its LEFT ANTI"),
    ("SELECT k FROM sales WHERE v IN (SELECT v FROM shops)", "shops", "a subquery in it reads shops"),
    ("SELECT k FROM sales WHERE v = (SELECT max(v) FROM sales)", "sales", "a subquery in it reads sales"),
    (
        "SELECT k, v FROM sales UNION ALL SELECT a.k, b.v FROM sales a JOIN shops b USING (k)",
        "sales shops",
        "both sides",
    ),
    ("SELECT a.k, b.v FROM sales a JOIN (SELECT k, v FROM shops LIMIT 2) b USING (k)", "sales", "depends on the order"),
    (
        "SELECT a.k, b.r FROM sales a JOIN (SELECT k, sum(ratio) AS r FROM shops GROUP BY k) b USING (k)",
        "sales",
        "order",
    ),
    ("SELECT k, rand() AS r FROM sales", "sales", "is not deterministic"),
    ("SELECT k, current_date() AS r FROM sales", "sales", "is not deterministic"),
    (
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r JOIN sales ON n = k) SELECT n FROM r",
        "sales",
        "its plan does not show all rows",
    ),
]


def computation(transform: str | Callable) -> Callable[..., DataFrame]:
    return partial(apply_join, transform=transform)


def sources(text: str) -> list[str]:
    return [table for table in TABLES if table in text]


def plan_of(spark, transform: str | Callable, *tables: str) -> ViewPlan:
    schema = spark.createDataFrame([], SCHEMA).schema
    return ViewPlan(spark, dict.fromkeys(tables, schema), computation(transform))


def random_rows(chance: random.Random, count: int) -> list[tuple]:
    def value(choices) -> object:
        return chance.choice([*choices, None])

    amounts = [Decimal(1) / 2**10, Decimal(-7), Decimal("1e-10"), Decimal("123456789012345678901234567.5")]
    numbers = range(5)
    return [
        (value(numbers), value(numbers), value(amounts), value([0.5, -0.0, float("inf")]), value("abc"))
        for _ in range(count)
    ]


def multisets(*frames: DataFrame) -> list[Counter]:
    """The rows of each frame, collected in one query."""
    numbered = [rows.selectExpr(f"{number} AS _frame", "*") for number, rows in enumerate(frames)]
    collected = reduce(DataFrame.unionAll, numbered).collect()
    return [Counter(tuple(row)[1:] for row in collected if row["_frame"] == number) for number in range(len(frames))]


@pytest.mark.parametrize(("text", "changed"), INCREMENTAL)
def test_appended_rows_give_the_rows_of_a_full_computation(spark, text: str, changed: str):
    chance = random.Random(text)
    tables, changed_tables = sources(text), set(changed.split())
    plan = plan_of(spark, text, *tables)
    new_only = plan.tables_to_read_appended(changed_tables)
    old = {table: random_rows(chance, 12) for table in tables}
    new = {table: random_rows(chance, 12) if table in changed_tables else [] for table in tables}

    def rows(values: dict[str, list[tuple]]) -> DataFrame:
        frames = {table: spark.createDataFrame(values[table], SCHEMA).coalesce(1) for table in tables}
        return computation(text)(frames)

    before, full = rows(old), rows({table: old[table] + new[table] for table in tables})
    added = rows({table: new[table] if table in new_only else old[table] for table in tables})
    both = before.unionByName(added)
    result = plan.grouping.combined(both) if plan.grouping else both
    assert [field.dataType for field in result.schema] == [field.dataType for field in full.schema]
    result_rows, full_rows, earlier_rows = multisets(result, full, before)
    assert result_rows == full_rows
    assert result_rows != earlier_rows, "the new rows changed something"


@pytest.mark.parametrize(("text", "changed", "reason"), FULL)
def test_a_view_of_which_appended_rows_are_not_enough_says_why(spark, text: str, changed: str, reason: str):
    with pytest.raises(RecomputeNeeded, match=reason):
        plan_of(spark, text, *sources(text)).tables_to_read_appended(set(changed.split()))


def test_a_transform_that_runs_queries_is_not_judged_by_its_plan(spark):
    from pyspark.sql import functions

    def with_count(sales):
        return sales.withColumn("of", functions.lit(sales.count()))

    with pytest.raises(RecomputeNeeded, match="its transform cannot be analysed without rows"):
        plan_of(spark, with_count, "sales")


def test_rows_that_a_plan_does_not_show_are_not_taken_for_the_same(spark):
    def with_names(sales):
        return sales.join(spark.createDataFrame([(1, "a")], "k INT, city STRING"), "k")

    with pytest.raises(RecomputeNeeded, match="its plan does not show all rows that it is made of"):
        plan_of(spark, with_names, "sales")
