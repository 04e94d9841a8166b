"""What an error says, and whether a row may have caused it."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from include.engine import failure
from include.local import environment
from include.spec import Delta, Table

RECURSIVE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}, {"name": "value", "type": "int"}],
}


def error_of(run) -> Exception:
    with pytest.raises(Exception) as raised:  # noqa: PT011
        run()
    return raised.value


def test_a_reason_is_what_java_says_with_its_class(spark, tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "brotli.parquet", compression="brotli")
    avro = spark.read.format("avro").option("avroSchema", json.dumps(RECURSIVE))
    ids = spark.range(3)
    reasons = {
        "java": failure.reason(error_of(lambda: spark._jvm.java.lang.Integer.parseInt("12a"))),
        "without a message": failure.reason(error_of(lambda: spark._jvm.java.util.ArrayDeque().pop())),
        "recursive avro": failure.reason(error_of(lambda: avro.load(str(tmp_path)))),
        "brotli": failure.reason(error_of(lambda: spark.read.parquet(str(tmp_path / "brotli.parquet")).collect())),
        "division": failure.reason(error_of(lambda: ids.select(F.lit(1) / F.col("id")).collect())),
        "column": failure.reason(error_of(lambda: ids.select("missing"))),
    }
    assert not [reason for reason in reasons.values() if "An error occurred" in reason or "\n" in reason]
    assert reasons["java"] == 'NumberFormatException: For input string: "12a"'
    assert reasons["without a message"] == "NoSuchElementException"
    assert "recursive reference in Avro schema" in reasons["recursive avro"]
    assert "brotli" in reasons["brotli"].lower()
    assert reasons["division"].startswith("[DIVIDE_BY_ZERO")
    assert reasons["column"].startswith("[UNRESOLVED_COLUMN")


def test_only_errors_that_a_row_may_cause_are_searched(spark, tmp_path):
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 no parquet")
    ids = spark.range(3)
    of_rows = [
        lambda: ids.select(F.lit(1) / F.col("id")).collect(),
        lambda: ids.select(F.raise_error(F.lit("no"))).collect(),
        lambda: spark._jvm.java.lang.Math.multiplyExact(2**62, 2**62),
    ]
    others = [
        lambda: ids.select("missing"),
        lambda: spark.read.schema("a INT").parquet(str(tmp_path / "damaged.parquet")).collect(),
        lambda: spark.read.parquet(str(tmp_path / "gone")),
        lambda: int("x"),
    ]
    assert [failure.may_follow_a_row(error_of(run)) for run in of_rows] == [True] * 3
    assert [failure.may_follow_a_row(error_of(run)) for run in others] == [False] * 4


def test_an_error_names_the_expression_that_raised_it_as_sql_or_by_its_line(spark):
    ids = spark.range(3)
    ids.createOrReplaceTempView("ids_of_expressions")
    expressions = [
        failure.expression(error_of(run))
        for run in (
            lambda: spark.sql("SELECT id, 10\n  DIV id FROM ids_of_expressions").collect(),
            lambda: ids.select(F.expr("CAST('x' || id AS INT)")).collect(),
            lambda: ids.select(F.concat(F.lit("x"), "id").cast("int")).collect(),
            lambda: ids.select(F.raise_error(F.lit("no"))).collect(),
            lambda: int("x"),
        )
    ]
    assert expressions[:2] == ["10 DIV id", "CAST('x' || id AS INT)"]
    # Without the line, if an earlier test has left this thread without an active session.
    assert re.fullmatch(r"cast( at test_failure\.py:\d+)?", expressions[2])
    assert expressions[3:] == ["", ""]


def test_a_column_that_may_be_null_where_it_must_not_be_has_a_remedy(spark):
    declared = StructType([StructField("id", LongType(), nullable=False)])
    error = error_of(lambda: spark.range(3).select(F.expr("nullif(id, 1) AS id")).to(declared))
    broken = failure.of_exception("gold.ids", error, None)
    assert str(broken).startswith("gold.ids: [NULLABLE_COLUMN_OR_FIELD] Column or field `id` is nullable")
    assert str(broken).endswith(": give it a value by coalesce, or declare it without NOT NULL")


PERSONAL = Table(name="silver.people", comment="people", source=Delta("bronze.people"), reads_personal=True)


def test_an_error_of_rows_shows_no_value_of_a_table_with_personal_columns(spark, home):
    people = spark.createDataFrame([("lovelace",)], "name STRING")
    errors = {
        "cast": error_of(lambda: people.select(F.col("name").cast("int")).collect()),
        "raised": error_of(lambda: people.select(F.raise_error(F.concat(F.lit("who is "), F.col("name")))).collect()),
    }
    for kind, error in errors.items():
        assert "lovelace" in str(failure.of_exception("silver.people", error, None)), kind
        shown = str(failure.of_exception("silver.people", error, PERSONAL))
        assert "lovelace" not in shown and shown.startswith("silver.people: ["), kind
        assert "lovelace" not in failure.reason(error, PERSONAL)
    misspelt = error_of(lambda: people.select("nname"))
    assert "`nname`" in failure.reason(misspelt, PERSONAL)


def test_the_log_of_spark_hides_values_that_spark_quotes_and_addresses(spark):
    pattern = spark._jvm.java.util.regex.Pattern.compile(environment.VALUES)
    text = (
        """The value 'lovelace' of "INT"; For input string: "lovelace"; ada.lovelace@example.org; driver@127.0.0.1:77"""
    )
    assert pattern.matcher(text).replaceAll("***") == (
        """The value *** of "INT"; For input string: ***; ***; driver@127.0.0.1:77"""
    )
    assert "%replace{%m%n%ex}{" in environment.spark_logging()
