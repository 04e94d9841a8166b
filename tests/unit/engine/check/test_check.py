"""Errors in tables that only Spark can detect: include.engine.check.check."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pytest

from include import catalog
from include.catalog import Catalog
from include.engine.check import check
from include.errors import DeclarationError
from include.lake import locations
from include.project.sources import inline_steps
from include.project.table_files import DRAFT
from include.rules import not_null, one_of, references, unique
from include.settings import ROOT
from include.spec import (
    Append,
    Bucket,
    Delta,
    Expect,
    Flow,
    Kafka,
    Lookup,
    PythonLimits,
    Replace,
    Table,
    Upsert,
    View,
    Watermark,
)
from tests.support.shop import TableProject, unload_package

EVENTS = Flow(name="bronze.events", comment="", source=Kafka("events"))
SCHEMA = "key BINARY, value BINARY"
FILE = "include/tables/silver/readings.py: "


def readings(transform: Callable | str | None = None, **overrides) -> Table:
    fields = {"schema": SCHEMA, **overrides}
    return Flow(name="silver.readings", comment="", source=Delta("bronze.events"), transform=transform, **fields)


def refusal(spark, table: Table) -> str:
    with pytest.raises(DeclarationError) as error:
        check.check(spark, Catalog({entry.name: entry for entry in (EVENTS, table)}))
    return str(error.value)


def functions():
    from pyspark.sql import functions

    return functions


def test_a_stateless_transform_is_right(spark):
    table = readings(lambda rows: rows.selectExpr("key", "value", "explode(headers)").where("key IS NOT NULL"))
    check.check(spark, Catalog({"bronze.events": EVENTS, "silver.readings": table}))


def test_a_column_of_another_type_than_declared_is_refused(spark):
    assert refusal(spark, readings(schema="offset INT")) == (
        f"{FILE}column 'offset' is declared INT, its source has BIGINT: change one of them"
    )


def changes(**options) -> Table:
    write = Upsert(("partition",), sequence_by="offset", **options)
    return readings(schema="partition INT, offset BIGINT, value BINARY", write=write)


def test_a_table_of_changes_and_its_history_are_right(spark):
    for table in (changes(deletes="value IS NULL"), changes(scd=2), changes(partial=True, truncates="key IS NULL")):
        check.check(spark, Catalog({"bronze.events": EVENTS, "silver.readings": table}))


@pytest.mark.parametrize("name", ["deletes", "truncates"])
def test_a_condition_of_changes_that_is_none_is_refused(spark, name: str):
    assert refusal(spark, changes(**{name: "timestampType"})) == (
        f"{FILE}{name} is INT and not a condition: compare it with something"
    )
    assert refusal(spark, changes(**{name: "vallue IS NULL"})).startswith(f"{FILE}{name} ")


def test_a_column_that_nothing_makes_is_refused(spark):
    assert refusal(spark, readings(schema="ofset BIGINT")) == (
        f"{FILE}its source lacks 'ofset', which the schema names: did you mean 'offset'?"
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


def newest_values(rows):
    return rows.groupBy("key").agg(functions().max("value").alias("value"))


OTHER_ROWS = {
    "limit": ("GlobalLimit", lambda rows: rows.limit(5)),
    "offset": ("Offset", lambda rows: rows.offset(5)),
    "intersect": ("Intersect", lambda rows: rows.select("key", "value").intersect(rows.select("key", "value"))),
    "except": ("Except All", lambda rows: rows.select("key", "value").exceptAll(rows.select("key", "value"))),
    "an aggregate on the left of a join": ("Join", lambda rows: newest_values(rows).join(rows.select("key"), "key")),
    "an aggregate on the left of a union": (
        "Aggregate",
        lambda rows: newest_values(rows).union(rows.select("key", "value")),
    ),
    "a join with itself": ("Join", lambda rows: rows.select("key", "value").join(rows.select("key"), "key")),
    "a union with other rows": ("LogicalRDD", lambda rows: rows.select("key", "value").union(other_rows(rows))),
    "a subquery": ("Subquery", lambda rows: read_twice(rows)),
}


@pytest.mark.parametrize("case", OTHER_ROWS)
def test_a_transform_that_needs_other_rows_than_each_by_itself_is_refused_in_any_form(spark, case: str):
    name, transform = OTHER_ROWS[case]
    assert refusal(spark, readings(transform)) == (
        f"{FILE}its transform needs rows of other batches ({name}): write it as a recomputed Upsert"
    )


def other_rows(rows):
    return rows.sparkSession.createDataFrame([(b"a", b"b")], SCHEMA)


def read_twice(rows):
    rows.createOrReplaceTempView("arrived")
    return rows.sparkSession.sql("SELECT * FROM arrived WHERE key IN (SELECT key FROM arrived WHERE offset < 5)")


ROW_WISE = {
    "a union with itself": lambda rows: rows.select("key", "value").union(rows.select("key", "value")),
    "columns as rows": lambda rows: rows.select("key", "value").unpivot("key", ["value"], "name", "value"),
    "a lateral view": lambda rows: rows.selectExpr("key", "value", "inline(headers) AS (name, text)").alias("h"),
    "another number of partitions": lambda rows: rows.dropna(subset=["key"]).repartition(3).coalesce(1),
    "a sliding window of time": lambda rows: rows.select(
        "key", "value", functions().window("timestamp", "2 hours", "1 hour")
    ),
}


@pytest.mark.parametrize("case", ROW_WISE)
def test_a_transform_that_looks_at_one_row_at_a_time_is_right(spark, case: str):
    check.check(spark, Catalog({"bronze.events": EVENTS, "silver.readings": readings(ROW_WISE[case])}))


def test_a_sample_is_not_deterministic(spark):
    assert "its transform is not deterministic" in refusal(spark, readings(lambda rows: rows.sample(0.5, seed=3)))


def same(value):
    return value


PYTHON = {
    "an Arrow function": lambda rows: rows.withColumn("value", functions().arrow_udf(same, "binary")("value")),
    "a pandas function": lambda rows: rows.withColumn("value", functions().pandas_udf(same, "binary")("value")),
    "a map of Arrow": lambda rows: rows.select("key", "value").mapInArrow(same, SCHEMA),
    "a map of pandas": lambda rows: rows.select("key", "value").mapInPandas(same, SCHEMA),
}


@pytest.mark.parametrize("case", PYTHON)
def test_a_python_function_for_batches_of_rows_needs_limits(spark, case: str):
    assert refusal(spark, readings(PYTHON[case])) == (
        f"{FILE}its transform runs a Python function without limits: declare them, "
        f"python=PythonLimits(memory_mb=1024, seconds=60), or use Spark's own functions"
    )
    table = readings(PYTHON[case], python=PythonLimits(), expect=(not_null("key"),))
    check.check(spark, Catalog({"bronze.events": EVENTS, "silver.readings": table}))


def first(values: pa.Array) -> bytes:
    return values[0].as_py()


def row_by_row(rows):
    return rows.select("key", functions().udf(same, "binary")("value").alias("value"))


def group_by_group(rows):
    return rows.groupBy("key").agg(functions().arrow_udf(first, "binary")("value").alias("value"))


@pytest.mark.parametrize(("transform", "name"), [(row_by_row, "same"), (group_by_group, "first")])
def test_a_python_function_for_single_rows_or_groups_is_refused(spark, transform, name: str):
    assert f"its transform runs the Python function '{name}' for single rows or groups: write it with" in refusal(
        spark, readings(transform, python=PythonLimits())
    )


def test_a_python_function_that_is_not_deterministic_is_refused(spark):
    def transform(rows):
        function = functions().arrow_udf(same, "binary").asNondeterministic()
        return rows.withColumn("value", function("value"))

    assert refusal(spark, readings(transform, python=PythonLimits())) == (
        f"{FILE}its transform is not deterministic, so a replayed batch would come out different: use source columns"
    )


def test_a_python_function_of_a_view_is_refused(spark):
    assert "its transform runs a Python function, which a view, an aggregate and a temporary step do not" in refusal(
        spark, readings(PYTHON["an Arrow function"], write=Replace())
    )


def test_a_text_that_looks_like_a_clock_is_no_clock(spark):
    table = readings(lambda rows: rows.where("topic <> 'now()'"))
    check.check(spark, Catalog({"bronze.events": EVENTS, "silver.readings": table}))


def test_a_transform_that_returns_nothing_is_refused_in_a_sentence(spark):
    assert refusal(spark, readings(lambda rows: None)) == (
        f"{FILE}its transform returns NoneType and no DataFrame: return its rows"
    )


def test_a_transform_that_fails_is_refused_in_a_sentence(spark):
    assert refusal(spark, readings(lambda rows: rows.where("key"[3]))) == (
        f"{FILE}its transform fails (IndexError: string index out of range): fix it"
    )


def test_a_bucket_of_a_column_that_is_no_time_is_refused_in_a_sentence(spark):
    table = readings(
        lambda rows: rows.groupBy("minute").agg(functions().count("*").alias("n")),
        schema="minute TIMESTAMP, n BIGINT",
        write=Upsert(keys=("minute",), recompute=Bucket("minute", of="offset", unit="minute")),
    )
    assert refusal(spark, table) == f"{FILE}bucket of 'offset', which is BIGINT in its source: name a TIMESTAMP"


def with_rule(condition: str) -> Table:
    return readings(schema="offset BIGINT, timestamp TIMESTAMP", expect=(Expect("sound", condition),), write=Append())


@pytest.mark.parametrize(
    ("condition", "kind"),
    [
        ("'yes'", "STRING"),
        ("NULL", "VOID"),
        ("offset + 1", "BIGINT"),
    ],
)
def test_a_rule_that_is_no_condition_is_refused_as_such(spark, condition: str, kind: str):
    assert refusal(spark, with_rule(condition)) == (
        f"{FILE}rule 'sound' is {kind} and not a condition: compare it with something"
    )


@pytest.mark.parametrize(
    ("what", "condition"),
    [("uses current_timestamp()", "timestamp <= current_timestamp()"), ("is not deterministic", "rand() < 0.9")],
)
def test_a_rule_that_another_day_would_come_out_different_is_refused(spark, what: str, condition: str):
    assert refusal(spark, with_rule(condition)) == (
        f"{FILE}rule 'sound' {what}, so a replayed batch would come out different: use source columns"
    )


def test_what_is_wrong_with_a_transform_is_not_said_of_a_rule_and_hides_no_wrong_one(spark):
    table = readings(
        "SELECT key, value FROM source WHERE rand() < 0.5",
        expect=(Expect("right", "key IS NOT NULL"), Expect("wrong", "length(key)")),
    )
    assert refusal(spark, table).splitlines() == [
        f"{FILE}its transform is not deterministic, so a replayed batch would come out different: use source columns",
        f"{FILE}rule 'wrong' is INT and not a condition: compare it with something",
    ]


def test_a_rule_that_needs_other_rows_is_refused(spark):
    assert refusal(spark, with_rule("offset > lag(offset) OVER (ORDER BY timestamp)")) == (
        f"{FILE}rule 'sound' needs rows of other batches (Window): let it speak of one row"
    )


def test_ready_made_rules_and_a_watermark_are_right(spark):
    rules = (
        not_null("topic", "offset"),
        one_of("topic", ["it's", "b"]),
        unique("topic"),
        references("key", "bronze.events", "key"),
    )
    table = readings(
        schema="topic STRING, key BINARY, offset BIGINT, timestamp TIMESTAMP",
        expect=rules,
        write=Append(unique=("topic",), watermark=Watermark("timestamp", minutes=1)),
    )
    check.check(spark, Catalog({"bronze.events": EVENTS, "silver.readings": table}))


def test_a_watermark_of_a_column_that_is_no_time_is_refused(spark):
    table = readings(write=Append(unique=("key",), watermark=Watermark("value", minutes=1)))
    assert refusal(spark, table) == f"{FILE}watermark of 'value', which is BINARY: name a TIMESTAMP"


def test_a_reference_to_a_column_of_another_type_is_refused(spark):
    table = readings(expect=(references("value", "bronze.events", "offset"),))
    assert refusal(spark, table) == (
        f"{FILE}rule 'value in bronze.events' compares value, which is BINARY, with offset, which is BIGINT: "
        "give them one type"
    )


STORED = Flow(name="silver.readings", comment="", source=Delta("bronze.events"), schema=SCHEMA)


def upsert_table(transform, **fields) -> Table:
    write = Upsert(keys=("minute",), recompute=Bucket("minute", of="timestamp", unit="minute"))
    return readings(transform, schema="minute TIMESTAMP, n BIGINT", write=write, **fields)


SQL = {
    "a query": readings("SELECT key, value FROM source WHERE partition >= 0 -- the end"),
    "a query that names another": readings("WITH some AS (SELECT * FROM source) SELECT key, value FROM some"),
    "a nested query": readings("SELECT key, value FROM (SELECT key, value, explode(headers) FROM Source) AS nested"),
    "an aggregate that is recomputed": upsert_table("SELECT minute, count(*) AS n FROM source GROUP BY minute"),
}


@pytest.mark.parametrize("case", SQL)
def test_sql_over_the_rows_of_its_batch_is_right(spark, case: str):
    check.check(spark, Catalog({"bronze.events": EVENTS, "silver.readings": SQL[case]}))


OTHERS = "besides its source, which a replayed batch would find changed: read `source` alone, or give the other rows a "
WRONG_SQL = {
    "SELECT key, value FROM source JOIN silver.other USING (key)": f"its SQL reads 'silver.other' {OTHERS}table of "
    "their own",
    "SELECT key, value FROM source WHERE key IN (SELECT key FROM bronze.events)": "its SQL reads 'bronze.events' "
    f"{OTHERS}table of their own",
    "WITH a AS (SELECT * FROM b) SELECT key, value FROM a": f"its SQL reads 'b' {OTHERS}table of their own",
    "SELECT key, value FROM delta.`/tmp/x`": f"its SQL reads 'delta./tmp/x' {OTHERS}table of their own",
    "SELECT X'00' AS key, X'00' AS value": "its SQL never reads `source`, the rows of its batch: select from it",
    "SELECT key, value FROM source WHERE rand() < 0.5": "its transform is not deterministic, so a replayed batch "
    "would come out different: use source columns",
    "SELECT key, value FROM source WHERE timestamp < now()": "its transform uses now(), so a replayed batch would "
    "come out different: use source columns",
    "SELECT key, max(value) AS value FROM source GROUP BY key": "its transform needs rows of other batches "
    "(Aggregate): write it as a recomputed Upsert",
}


@pytest.mark.parametrize("text", WRONG_SQL)
def test_sql_over_anything_else_is_refused(spark, text: str):
    assert refusal(spark, readings(text)) == FILE + WRONG_SQL[text]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT key, value FORM source",
        "SELECT key, value FROM source; SELECT 1",
        "DROP TABLE silver.other",
        "INSERT INTO silver.other SELECT * FROM source",
        "CREATE TABLE silver.other AS SELECT * FROM source",
    ],
)
def test_what_is_no_query_is_refused_and_not_carried_out(spark, text: str):
    sentence = refusal(spark, readings(text))
    assert sentence.startswith(f"{FILE}its SQL does not parse at '")
    assert sentence.endswith("': fix it, it has to be one SELECT")


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_aggregate_that_looks_into_another_table_is_refused(spark, tmp_path, is_stored: bool):
    path = str(tmp_path / "other")
    spark.range(5).write.parquet(path)

    def transform(rows):
        other = rows.sparkSession.read.parquet(path) if is_stored else rows.sparkSession.range(5)
        return rows.crossJoin(other).groupBy("minute").agg(functions().count("*").alias("n"))

    tables = Catalog({"bronze.events": EVENTS, "silver.readings": upsert_table(transform)})
    if not is_stored:
        check.check(spark, tables)
        return
    with pytest.raises(DeclarationError) as error:
        check.check(spark, tables)
    assert str(error.value) == f"{FILE}its transform reads a stored table {OTHERS}table of their own"


def test_changes_have_columns_of_their_own_and_an_aggregate_of_them_has_rows(spark):
    changes = Flow(
        name="gold.changes",
        comment="",
        source=Delta("silver.readings", changes=True),
        schema="key BINARY, _change_type STRING, _commit_version BIGINT, _commit_timestamp TIMESTAMP",
    )
    check.check(spark, Catalog({table.name: table for table in (EVENTS, STORED, changes)}))
    aggregate = replace(
        changes,
        schema="key BINARY, minute TIMESTAMP, _change_type STRING",
        write=Upsert(keys=("minute",), recompute=Bucket("minute", of="timestamp", unit="minute")),
    )
    stored_table = replace(STORED, schema=f"{SCHEMA}, timestamp TIMESTAMP")
    with pytest.raises(DeclarationError, match="its source lacks '_change_type'"):
        check.check(spark, Catalog({table.name: table for table in (EVENTS, stored_table, aggregate)}))


def step(transform, **fields) -> Table:
    return readings(transform, temporary=True, **fields)


def with_a_reader(step_table: Table, transform) -> Catalog:
    reader = Flow(name="gold.reader", comment="", source=Delta(step_table.name), schema="n BIGINT", transform=transform)
    return Catalog(*inline_steps({table.name: table for table in (EVENTS, step_table, reader)}))


def test_what_is_wrong_with_a_temporary_step_is_said_of_the_step(spark):
    wrong_step = step(lambda rows: rows.select("key", functions().lit(1).alias("value")))
    with pytest.raises(DeclarationError) as error:
        check.check(spark, with_a_reader(wrong_step, "SELECT count(*) AS n FROM source"))
    assert str(error.value) == (
        f"{FILE}column 'value' is declared BINARY, its transform makes INT: change one of them\n"
        "include/tables/gold/reader.py: its transform needs rows of other batches (Aggregate): write it as a "
        "recomputed Upsert"
    )
    assert refusal_of(spark, with_a_reader(step(lambda rows: rows.distinct()), "SELECT 1L AS n FROM source")) == (
        f"{FILE}its transform needs rows of other batches (Deduplicate): write it as a recomputed Upsert"
    )


def test_a_reader_of_a_temporary_step_sees_the_columns_of_the_step(spark):
    right_step = step(lambda rows: rows.select("key", "value"))
    check.check(spark, with_a_reader(right_step, "SELECT length(key) + 0L AS n FROM source"))
    assert refusal_of(spark, with_a_reader(right_step, "SELECT offset AS n FROM source")) == (
        "include/tables/gold/reader.py: its SQL names 'offset', which is no column there: there are key, value"
    )


def refusal_of(spark, tables: Catalog) -> str:
    with pytest.raises(DeclarationError) as error:
        check.check(spark, tables)
    return str(error.value)


def view(transform: Callable | str | None = None, several: bool = False, **overrides) -> Table:
    source = Delta("bronze.events")
    fields = {"schema": SCHEMA, "source": {"events": source, "again": source} if several else source, **overrides}
    return View(name="silver.readings", comment="", transform=transform, **fields)


@pytest.mark.parametrize(
    "right",
    [
        view(),
        view("SELECT max(key) AS key, max(value) AS value FROM source"),
        view("SELECT events.key, again.value FROM events JOIN again USING (offset)", several=True),
        view(lambda events, again: events.join(again.select("offset"), "offset"), several=True),
        view(expect=(Expect("keyed", "key IS NOT NULL", otherwise="drop"),)),
    ],
    ids=["as it is", "SQL", "SQL over two", "Python over two", "a rule"],
)
def test_a_view_may_do_what_a_batch_may_not_as_it_sees_all_rows(spark, right: Table):
    check.check(spark, Catalog({table.name: table for table in (EVENTS, right)}))


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            view("SELECT key, value FROM source WHERE rand() < 0.5"),
            "its transform is not deterministic, so a run that is begun again would come out different: use source "
            "columns",
        ),
        (
            view("SELECT key, value FROM events WHERE timestamp < (SELECT now() FROM again)", several=True),
            "its transform uses now(), so a run that is begun again would come out different: use source columns",
        ),
        (
            view("SELECT key, value FROM events", several=True),
            "its SQL never reads `again`, a source of the view: select from it",
        ),
        (
            view("SELECT key, value FROM source JOIN bronze.others USING (key)"),
            "its SQL reads 'bronze.others' besides its sources, at a version that nobody fixes: name that table in "
            "source, and read it by that name",
        ),
        (
            view("SELECT key, offset AS value FROM source"),
            "column 'value' is declared BINARY, its transform makes BIGINT: change one of them",
        ),
        (
            view(lambda events, again: None, several=True),
            "its transform returns NoneType and no DataFrame: return its rows",
        ),
    ],
    ids=["rand", "now", "a source unread", "another table", "a type", "nothing"],
)
def test_a_view_that_would_not_come_out_the_same_or_not_as_declared_is_refused(spark, wrong: Table, sentence: str):
    assert refusal(spark, wrong) == f"{FILE}{sentence}"


PRODUCTS = replace(EVENTS, name="silver.products", schema="key BINARY, partition INT", write=Append(unique=("key",)))


def looking_up(lookup: Lookup, **fields) -> Table:
    fields = {"schema": "key BINARY", "lookups": (lookup,), **fields}
    return Flow(name="silver.sales", comment="", source=Delta("bronze.events"), **fields)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (
            looking_up(Lookup("silver.products", on={"offset": "key"}, columns=("partition",), prefix="its_")),
            "compares offset, which is BIGINT, with BINARY: give them one type",
        ),
        (
            looking_up(Lookup("silver.products", on={"keye": "key"}, columns=("partition",), prefix="its_")),
            "looks for 'keye', which its rows lack: did you mean 'key'?",
        ),
        (looking_up(Lookup("silver.products", on="key", columns=("partition",), prefix="its_")), ""),
    ],
    ids=["a type", "a column", "nothing"],
)
def test_a_lookup_compares_columns_that_its_rows_have(spark, wrong: Table, sentence: str):
    tables = Catalog({table.name: table for table in (EVENTS, PRODUCTS, wrong)})
    sentences = check.examine(spark, tables).sentences
    file = "include/tables/silver/sales.py: the lookup of silver.products "
    assert sentences == ([f"{file}{sentence}"] if sentence else [])


def test_a_lookup_adds_no_column_that_its_rows_have(spark):
    products = replace(PRODUCTS, schema="key BINARY, offset BIGINT")
    wrong = looking_up(Lookup("silver.products", on="key", columns=("offset",)))
    tables = Catalog({table.name: table for table in (EVENTS, products, wrong)})
    assert check.examine(spark, tables).sentences == [
        "include/tables/silver/sales.py: the lookup of silver.products adds 'offset', which its rows have already: "
        "give it a prefix"
    ]


# Paths are relative to tests/mistakes/_for_spark.
HOW_FAR = re.compile(r"\d+ of \d+ declarations analysed; next \S+")
FOR_SPARK = (
    "silver/field_with_a_space.py: field 'place.the x' has a character that Delta refuses: use letters, digits and _",
    "silver/lacks_a_column.py: its transform lacks 'max_dep_delay', which the schema names: did you mean 'max_delay'?",
    "silver/makes_a_column_twice.py: its transform has two columns 'offset': rename one of them",
    "silver/sql_without_a_comma.py: its SQL does not parse at 'source': fix it, it has to be one SELECT",
    "silver/struct_without_a_comma.py: its schema does not parse at '<': look for a comma, a bracket, a "
    "quote or a type that is missing there",
    "silver/transform_fails.py:8: its transform fails (IndexError: tuple index out of range): fix it",
    "silver/unknown_column.py:8: its transform names 'ofset', which is no column there: did you mean 'offset'?",
    "silver/unknown_column_in_sql.py: its SQL names 'ofset', which is no column there: did you mean 'offset'?",
    "silver/unknown_method.py:7: its transform uses 'selct', which a DataFrame has not: did you mean 'select'?",
    "silver/unknown_type.py: its schema names the type 'STRINGG', which Spark has not: did you mean 'STRING'?",
    "silver/wrong_properties.py: properties set 'delta.apendOnly' to 'true', which Delta does not know: fix its name",
    "silver/wrong_properties.py: properties set 'delta.checkpointInterval' to 'often', and Delta refuses "
    "it: delta.checkpointInterval needs to be a positive integer",
    "silver/wrong_rules.py: rule 'misspelt' names 'ofset', which is no column there: did you mean 'offset'?",
    "silver/wrong_rules.py: rule 'unfinished' does not parse at end of input: fix its condition",
    "silver/wrong_rules.py: rule 'unknown function' calls 'lenght', no function of Spark: did you mean 'length'?",
    "silver/wrong_rules.py: rule 'no condition' is BIGINT and not a condition: compare it with something",
    "silver/wrong_rules.py: rule 'types' cannot be analysed (Cannot resolve \"size(offset)\" due to data "
    'type mismatch: The first parameter requires the ("ARRAY" or "MAP") type, however "offset" has '
    'the type "BIGINT"): fix its condition',
    "silver/wrong_types.py: column 'key' is declared STRING, its source has BINARY: change one of them",
    "silver/wrong_types.py: column 'offset' is declared INT, its source has BIGINT: change one of them",
    "gold.reads_an_unknown_type is not judged, as it reads silver.unknown_type",
)


def test_from_a_fresh_clone_all_mistakes_are_told_in_one_run_and_nothing_else(tmp_path):
    """Sets nothing but the settings: no variable of Spark, and an empty home. The project's tables are right."""
    prefixes = ("SLUICE_", "PATH", "LANG", "HOME")
    environment = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
    result = subprocess.run(
        [sys.executable, "-m", "include.local.check", *catalog.table_packages(), "tests.mistakes._for_spark"],
        env={**environment, "SLUICE_HOME": str(tmp_path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = result.stderr.replace("tests/mistakes/_for_spark/", "").splitlines()
    # On a slow machine, it also says now and then how far it is.
    assert [line for line in lines if not HOW_FAR.fullmatch(line)] == [f"sluice: {sentence}" for sentence in FOR_SPARK]
    [draft] = result.stdout.splitlines()
    assert draft == "tests/mistakes/_for_spark/silver/draft.py is a draft: remove its line '# draft' to make it live"
    assert result.returncode == 3


def test_a_check_of_drafts_by_spark_names_a_wrong_one_and_passes_a_right_one(spark, tmp_path, monkeypatch):
    shop = TableProject(tmp_path, monkeypatch, "checked_drafts")
    shop.write_bronze("a")
    for name, column in (("right", "value"), ("wrong", "valu")):
        text = shop.write_reader(f"silver.{name}", "bronze.a", columns=f"'{column} AS value'")
        shop.write(f"silver.{name}", f"{DRAFT}\n{text}")
    shown: list[str] = []
    try:
        tables, examination = catalog.examine(shop.package, with_drafts=True)
        [sentence] = check.examine(spark, tables, shown.append).sentences
        assert examination.sentences == []
        assert check.examine(spark, catalog.examine(shop.package)[0]).sentences == []
    finally:
        unload_package(shop.package)
    assert sentence.startswith("checked_drafts/silver/wrong.py:")
    assert [words.partition(";")[0] for words in shown] == [
        f"{number} of 3 declarations analysed" for number in range(3)
    ]
    assert not any(locations.is_stored(f"silver.{name}") for name in ("right", "wrong"))
