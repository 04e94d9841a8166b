"""What only Spark can refuse about a table: include.engine.check."""

from collections.abc import Callable

import pytest

from include.catalog import Catalog
from include.engine import check
from include.errors import DeclarationError
from include.spec import Append, Bucket, Delta, Expect, Json, Kafka, Table, Upsert

EVENTS = Table(name="bronze.events", comment="", source=Kafka("events"))
SCHEMA = "key BINARY, value BINARY"
FILE = "include/tables/silver/readings.py: "


def readings(transform: Callable | None = None, **more) -> Table:
    declared = {"schema": SCHEMA, **more}
    return Table(name="silver.readings", comment="", source=Delta("bronze.events"), transform=transform, **declared)


def refusal(spark, table: Table) -> str:
    with pytest.raises(DeclarationError) as refused:
        check.check(spark, Catalog({one.name: one for one in (EVENTS, table)}))
    return str(refused.value)


def functions():
    from pyspark.sql import functions

    return functions


def test_the_tables_of_the_repository_are_as_they_declare(spark):
    from include import catalog

    check.check(spark, catalog.load())


def test_a_stateless_transform_is_right(spark):
    table = readings(lambda rows: rows.selectExpr("key", "value", "explode(headers)").where("key IS NOT NULL"))
    check.check(spark, Catalog({"bronze.events": EVENTS, "silver.readings": table}))


def test_a_column_of_another_type_than_declared_is_refused(spark):
    assert refusal(spark, readings(schema="offset INT")) == (
        f"{FILE}column 'offset' is declared INT, its transform makes BIGINT: change one of them"
    )


def test_a_column_that_nothing_makes_is_refused(spark):
    sentence = refusal(spark, readings(schema="ofset BIGINT"))
    assert sentence.startswith(f"{FILE}Spark cannot analyse it ([UNRESOLVED_COLUMN.WITH_SUGGESTION] ")
    assert "Did you mean one of the following? [`offset`" in sentence
    assert sentence.endswith(": mend its schema or transform")


def test_a_parsed_field_that_is_no_column_is_refused(spark):
    table = readings(schema="a STRING", parse=Json("value", into=("a", "b")))
    assert refusal(spark, table) == (
        f"{FILE}Spark cannot analyse it ([KEY_NOT_EXISTS] Key `b` does not exist.): mend its schema or transform"
    )


@pytest.mark.parametrize(
    ("what", "condition"),
    [
        ("is not deterministic", "rand() < 0.5"),
        ("is not deterministic", "uuid() <> ''"),
        ("is not deterministic", "input_file_name() <> ''"),
        ("uses current_timestamp()", "timestamp < current_timestamp()"),
        ("uses now()", "timestamp < now()"),
        ("uses current_date()", "timestamp < curdate()"),
        ("uses current_timestamp()", "unix_timestamp() > 0"),
    ],
)
def test_a_transform_that_another_day_would_come_out_different_is_refused(spark, what: str, condition: str):
    assert refusal(spark, readings(lambda rows: rows.where(condition))) == (
        f"{FILE}its transform {what}, so a replayed batch would come out different: use source columns"
    )


STATEFUL = {
    "distinct": ("Deduplicate", lambda rows: rows.distinct()),
    "a duplicate": ("Deduplicate", lambda rows: rows.dropDuplicates(["key"])),
    "an aggregate": ("Aggregate", lambda rows: rows.groupBy("key").agg(functions().max("value").alias("value"))),
    "a window": ("Window", lambda rows: rows.selectExpr("key", "lag(value) OVER (ORDER BY offset) AS value")),
    "an order": ("Sort", lambda rows: rows.orderBy("offset")),
}


@pytest.mark.parametrize("case", STATEFUL)
def test_a_transform_that_needs_rows_of_other_batches_is_refused(spark, case: str):
    name, transform = STATEFUL[case]
    assert refusal(spark, readings(transform)) == (
        f"{FILE}its transform needs rows of other batches ({name}): write it as a recomputed Upsert"
    )


def newest(rows):
    return rows.groupBy("key").agg(functions().max("value").alias("value"))


STATEFUL_UNSEEN = {
    "limit": lambda rows: rows.limit(5),
    "offset": lambda rows: rows.offset(5),
    "intersect": lambda rows: rows.select("key", "value").intersect(rows.select("key", "value")),
    "except": lambda rows: rows.select("key", "value").exceptAll(rows.select("key", "value")),
    "an aggregate on the left of a join": lambda rows: newest(rows).join(rows.select("key"), "key"),
    "an aggregate on the left of a union": lambda rows: newest(rows).union(rows.select("key", "value")),
    "a join with itself": lambda rows: rows.select("key", "value").join(rows.select("key"), "key"),
}


@pytest.mark.xfail(strict=True, reason="passes: _check_shape knows it by no name, or only behind '+- '")
@pytest.mark.parametrize("case", STATEFUL_UNSEEN)
def test_a_transform_that_needs_rows_of_other_batches_is_refused_in_any_form(spark, case: str):
    assert "needs rows of other batches" in refusal(spark, readings(STATEFUL_UNSEEN[case]))


@pytest.mark.xfail(strict=True, reason="passes, though the executors have none of our code")
def test_a_python_function_for_rows_is_refused(spark):
    same = functions().udf(lambda value: value, "binary")
    refusal(spark, readings(lambda rows: rows.select("key", same("value").alias("value"))))


@pytest.mark.xfail(strict=True, reason="the literal in the text is taken for the function")
def test_a_text_that_looks_like_a_clock_is_no_clock(spark):
    table = readings(lambda rows: rows.where("topic <> 'now()'"))
    check.check(spark, Catalog({"bronze.events": EVENTS, "silver.readings": table}))


@pytest.mark.xfail(strict=True, raises=AttributeError, reason="ends in a stack trace")
def test_a_transform_that_returns_nothing_is_refused_in_a_sentence(spark):
    refusal(spark, readings(lambda rows: None))


@pytest.mark.xfail(strict=True, reason="the bucket is made outside the check that names the file")
def test_a_bucket_of_a_column_that_is_no_time_is_refused_in_a_sentence(spark):
    table = readings(
        lambda rows: rows.groupBy("minute").agg(functions().count("*").alias("n")),
        schema="minute TIMESTAMP, n BIGINT",
        write=Upsert(keys=("minute",), recompute=Bucket("minute", of="offset", unit="minute")),
    )
    assert "offset" in refusal(spark, table)


def with_rule(condition: str) -> Table:
    return readings(schema="offset BIGINT, timestamp TIMESTAMP", expect=(Expect("sound", condition),), write=Append())


def test_a_rule_about_an_unknown_column_is_refused(spark):
    sentence = refusal(spark, with_rule("ofset > 0"))
    assert sentence.startswith(f"{FILE}rule 'sound' does not parse ([UNRESOLVED_COLUMN.WITH_SUGGESTION] ")
    assert sentence.endswith(": mend its condition")


def test_a_rule_that_does_not_parse_is_refused(spark):
    assert refusal(spark, with_rule("offset >")).startswith(f"{FILE}rule 'sound' does not parse (")


@pytest.mark.xfail(strict=True, reason="Spark's sentence begins on its second line: the message says '()'")
def test_a_rule_that_does_not_parse_is_refused_with_what_spark_says(spark):
    assert "[PARSE_SYNTAX_ERROR]" in refusal(spark, with_rule("offset >"))


@pytest.mark.xfail(strict=True, reason="Spark's sentence begins on its second line: the message says '()'")
def test_a_schema_that_does_not_parse_is_refused_with_what_spark_says(spark):
    assert "STRINGG" in refusal(spark, readings(schema="key STRINGG"))


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("'yes'", "STRING"),
        ("NULL", "VOID"),
        pytest.param(
            "offset + 1",
            "BIGINT",
            marks=pytest.mark.xfail(
                strict=True, reason="judged() fails first, so it is called a rule that does not parse"
            ),
        ),
    ],
)
def test_a_rule_that_is_no_condition_is_refused_as_such(spark, condition: str, kind: str):
    assert refusal(spark, with_rule(condition)) == (
        f"{FILE}rule 'sound' is a {kind} and not a condition: compare it with something"
    )


@pytest.mark.xfail(strict=True, reason="passes, and a replay may move a committed row into or out of the quarantine")
@pytest.mark.parametrize("condition", ["timestamp <= current_timestamp()", "rand() < 0.9"])
def test_a_rule_that_another_day_would_come_out_different_is_refused(spark, condition: str):
    refusal(spark, with_rule(condition))
