"""The text of a view's plan: it is the same until the view could give other rows."""

from functools import reduce

import pytest
from pyspark.ml.functions import array_to_vector
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from include.delta.commit_history import RecomputeNeeded
from include.engine.jobs.incremental_plan import Sources
from include.engine.jobs.plan_text import PlanText

COLUMNS = "k INT, v INT, word STRING, many ARRAY<INT>"
LONG = "x" * 3_000
NAMES = [f"'f{number}'" for number in range(40)]
FIELDS = ", ".join(f"{name}, 1" for name in NAMES[:30])
THIRTY = ", ".join(f"{number}, 'value {number}'" for number in range(30))
# Expressions around a text, by kind. Each returns a text again, so that they nest.
KINDS = {
    "array": "array('a', {}, 'b')[1]",
    "map of 31 pairs": f"map({THIRTY}, 30, {{}})[30]",
    "struct of 31 fields": f"named_struct({FIELDS}, 'f30', {{}}).f30",
    "case": "CASE WHEN v > 1 THEN 'a' WHEN v > 0 THEN {} ELSE 'c' END",
    "simple case": "CASE word WHEN {} THEN 'a' ELSE 'b' END",
    "in list of 41": f"string(word IN ({', '.join(NAMES)}, {{}}))",
    "like": "string(word LIKE {})",
    "escape": "string(word LIKE concat({}, '%'))",
    "regular expression": "regexp_replace(word, '[ab]', {})",
    "coalesce": "coalesce(word, {})",
    "if": "if(v = 1, {}, 'b')",
    "lambda": "array_join(transform(many, one -> concat(string(one), {})), ',')",
    "lambda of two": "aggregate(many, {}, (sum, one) -> concat(sum, string(one)))",
    "filter": "string(filter(array('a', 'b'), one -> one = {}))",
    "json": "to_json(named_struct('a', from_json({}, 'a INT, b STRING', map('mode', 'PERMISSIVE'))))",
    "long text": "concat({}, '" + LONG + "')",
    "cast": "string(try_cast({} AS DECIMAL(10, 2)))",
    "window": "max(concat(word, {})) OVER (PARTITION BY k ORDER BY v ROWS BETWEEN 3 PRECEDING AND CURRENT ROW)",
    "lag": "lag(word, 2, {}) OVER (ORDER BY v)",
    "scalar subquery": "(SELECT max(concat(word, {})) FROM sales)",
    "exists": "string(EXISTS (SELECT 1 FROM sales AS other WHERE other.word = {}))",
    "in subquery": "string(word IN (SELECT concat(word, {}) FROM sales))",
}
# SQL with one place for one of two values.
PAIRS = [
    ("SELECT * FROM sales WHERE word = '{}'", f"{LONG}1{LONG}", f"{LONG}2{LONG}"),
    ("SELECT '{}' AS a FROM sales", "#5", "#6"),
    ("SELECT '{}' AS a FROM sales", " a", "a"),
    ("SELECT v + {} AS a FROM sales", "1", "1L"),
    ("SELECT {} AS a FROM sales", "0.1", "0.1D"),
    ("SELECT {} AS a FROM sales", "0.10", "0.1"),
    ("SELECT {} AS a FROM sales", "0.0D", "-0.0D"),
    ("SELECT {} AS a FROM sales", "1.1F", "1.1000001F"),
    ("SELECT {} AS a FROM sales", "12345678901234567890123456789012345678", "12345678901234567890123456789012345679"),
    ("SELECT {} AS a FROM sales", "X'FF00'", "X'FF01'"),
    ("SELECT {} AS a FROM sales", "DATE '2026-01-01'", "DATE '2026-01-02'"),
    ("SELECT {} AS a FROM sales", "TIMESTAMP '2026-01-01 00:00:00.000001'", "TIMESTAMP '2026-01-01 00:00:00.000002'"),
    ("SELECT {} AS a FROM sales", "TIMESTAMP '2026-01-01'", "TIMESTAMP_NTZ '2026-01-01'"),
    ("SELECT {} AS a FROM sales", "INTERVAL 1 DAY", "INTERVAL 2 DAY"),
    ("SELECT make_interval(0, 0, 0, {}) AS a FROM sales", "1", "2"),
    ("SELECT {}(word AS INT) AS a FROM sales", "cast", "try_cast"),
    ("SELECT v {} 2 AS a FROM sales", "/", "div"),
    ("SELECT k, sum(v) {} AS a FROM sales GROUP BY k", "", "FILTER (WHERE v > 1)"),
    ("SELECT k, count({} v) AS a FROM sales GROUP BY k", "", "DISTINCT"),
    ("SELECT first(v{}) AS a FROM sales", "", ", true"),
    ("SELECT percentile_approx(v, array(0.5, {}), 100) AS a FROM sales", "0.9", "0.99"),
    ("SELECT k FROM sales ORDER BY k {}", "NULLS FIRST", "NULLS LAST"),
    ("SELECT k FROM sales LIMIT {}", "1", "2"),
    ("SELECT k FROM sales {} SELECT k FROM sales", "INTERSECT", "INTERSECT ALL"),
    ("SELECT k FROM sales GROUP BY {}", "k, v", "k, word"),
    ("SELECT sum(v) OVER (ORDER BY k {} BETWEEN 1 PRECEDING AND CURRENT ROW) AS a FROM sales", "ROWS", "RANGE"),
    ("SELECT sum(v) OVER (ORDER BY k ROWS {} PRECEDING) AS a FROM sales", "1", "2"),
    ("SELECT from_json(word, 'a INT, b STRUCT<c: {}>') AS a FROM sales", "INT", "BIGINT"),
    ("SELECT from_json(word, 'a INT', map('mode', '{}')) AS a FROM sales", "PERMISSIVE", "FAILFAST"),
    ("SELECT to_json(named_struct('a', k), map('ignoreNullFields', '{}')) AS a FROM sales", "true", "false"),
    ("SELECT part FROM sales LATERAL VIEW {}(many) AS part", "explode", "OUTER explode"),
    ("SELECT part FROM sales LATERAL VIEW explode(array(k, {})) AS part", "1", "2"),
    ("SELECT * FROM sales JOIN VALUES (1, array(map('a', X'{}'))) AS of(k, x) USING (k)", "01", "02"),
    ("SELECT * FROM sales JOIN VALUES (1, named_struct('a', {}D)) AS of(k, x) USING (k)", "0.1", "0.2"),
    ("SELECT * FROM sales JOIN (VALUES " + ", ".join(f"({n})" for n in range(40)) + ", ({})) AS of(k)", "40", "41"),
    ("SELECT a.k FROM sales a {} JOIN sales b USING (k)", "LEFT", "INNER"),
    ("SELECT a.k FROM sales a JOIN sales b ON a.k = b.{}", "k", "v"),
    ("SELECT {}.k FROM sales a LEFT JOIN sales b ON a.k = b.v", "a", "b"),
    ("WITH a AS (SELECT k + {} AS k FROM sales) SELECT a.k FROM a JOIN a AS b USING (k)", "1", "2"),
    ("WITH a AS (SELECT 1 AS k), b AS (SELECT 2 AS k) SELECT k FROM {} JOIN sales USING (k)", "a", "b"),
    ("SELECT word COLLATE {} = 'a' AS a FROM sales", "UTF8_LCASE", "UNICODE_CI"),
    ("SELECT to_timestamp(word, '{}') AS a FROM sales", "yyyy", "yyyy-MM"),
    (
        "SELECT * FROM sales WHERE k IN (SELECT v FROM sales WHERE word IN (SELECT max(word || '{}') FROM sales))",
        "a",
        "b",
    ),
]


@pytest.fixture
def text(spark):
    """Returns the text of the plan of a SQL query or a function over the table `sales`."""

    def write(query) -> str:
        sales = spark.createDataFrame([], COLUMNS)
        if not isinstance(query, str):
            return text_of(query(sales), sales)
        sales.createOrReplaceTempView("sales")
        return text_of(spark.sql(query), sales)

    def text_of(rows: DataFrame, sales: DataFrame) -> str:
        return PlanText(spark, Sources({"silver.sales": sales}).table_of).of(rows._jdf.queryExecution().analyzed())

    yield write
    spark.catalog.dropTempView("sales")


def test_a_plan_has_the_same_text_each_time(text):
    queries = [f"SELECT {kind.format(repr('a'))} AS a FROM sales" for kind in KINDS.values()]
    queries += [query.format(value) for query, value, _ in PAIRS]
    assert [query for query in queries if text(query) != text(query)] == []


def test_one_literal_of_any_kind_of_expression_makes_another_text(text):
    def of(kind: str, literal: str) -> str:
        return text(f"SELECT {KINDS[kind].format(repr(literal))} AS a FROM sales")

    assert [kind for kind in KINDS if of(kind, "a1") == of(kind, "a2")] == []


def test_one_part_of_any_kind_of_plan_makes_another_text(text):
    assert [pair for pair in PAIRS if text(pair[0].format(pair[1])) == text(pair[0].format(pair[2]))] == []


def test_the_text_shows_each_literal_of_thirty_nested_expressions(text):
    kinds = [kind for kind in KINDS.values() if "OVER" not in kind and "SELECT" not in kind and len(kind) < 200]
    expression, literals = "word", [f"at depth {depth}" for depth in range(30)]
    for depth, literal in enumerate(literals):
        expression = kinds[depth % len(kinds)].format(f"concat({expression}, '{literal}')")
    shown = text(f"SELECT {expression} AS a FROM sales")
    assert [literal for literal in literals if repr(literal.encode()) not in shown] == []


def test_a_long_sum_has_a_text(text):
    def of(last: int) -> str:
        terms = [F.lit(number) for number in (*range(150), last)]
        return text(lambda sales: sales.select(reduce(lambda left, right: left + right, terms).alias("a")))

    assert of(1) == of(1) != of(2)


def test_a_function_in_python_has_the_same_text_each_time_it_runs(text):
    def of(added: int):
        def transform(sales: DataFrame) -> DataFrame:
            most = sales.groupBy("k").agg(F.max("v").alias("most"))
            many = F.transform("many", lambda one: F.transform("many", lambda other: one * other + added))
            return sales.join(most, "k").withColumn("many", many).filter(sales.v > 1)

        return transform

    assert text(of(1)) == text(of(1)) != text(of(2))


def test_a_compiled_function_has_no_text(text):
    with pytest.raises(RecomputeNeeded, match="its plan does not show all that it computes"):
        text(lambda sales: sales.select(array_to_vector(F.array(F.lit(0.5)))))
