"""Compaction of small files by Arrow has the same result as OPTIMIZE."""

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from delta.exceptions import ConcurrentDeleteDeleteException
from deltalake import DeltaTable
from hypothesis import HealthCheck, given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from pyspark.sql import functions as F

from include.delta.delta_log import DeltaLog
from include.engine.fast_path import data_file
from include.engine.fast_path.table_layout import Layout
from include.engine.fast_path.transaction import Target, Transaction
from include.engine.tables import maintain
from include.lake import locations
from include.maintenance.plan import OPTIMIZE, Step
from include.settings import settings
from tests.support.commits import switch_fast_path

SCHEMA = """
    id BIGINT, tiny TINYINT, price DECIMAL(12,3), ratio DOUBLE, day DATE, at TIMESTAMP, text STRING, raw BINARY,
    is_new BOOLEAN, tags ARRAY<STRING>, counts MAP<STRING, INT>, place STRUCT<lat: DOUBLE, name: STRING>
"""
MB = 2**20


@pytest.fixture(autouse=True)
def switched_on(monkeypatch) -> None:
    switch_fast_path(monkeypatch, True)


@pytest.fixture
def path(name) -> Path:
    return locations.table_path(f"bronze.{name}")


@pytest.fixture
def compact(spark, name):
    """Combines files below a size into files of a target size, and returns the newest commit."""

    def run(smaller_than_bytes: int = MB, target_bytes: int = 8 * MB):
        numbers = {"smaller_than_bytes": smaller_than_bytes, "target_bytes": target_bytes}
        maintain.compact(spark, f"bronze.{name}", Step(OPTIMIZE, True, "a test", numbers), {"window": 7})
        log = DeltaLog(locations.table_path(f"bronze.{name}"))
        return log.commit(log.versions[-1])

    return run


@pytest.fixture
def arrive(spark, path):
    """Appends a row for each id, with columns of all types. Every tenth value of each other column is NULL."""

    def write(begin: int, end: int, files: int = 1, **options: str) -> None:
        frame = spark.range(begin, end, 1, files).selectExpr(
            "id",
            "CAST(id % 100 AS TINYINT) AS tiny",
            "CAST(id / 7 AS DECIMAL(12,3)) AS price",
            "CASE id % 13 WHEN 0 THEN DOUBLE('NaN') WHEN 1 THEN -0.0 ELSE id / 3 END AS ratio",
            "date_add(DATE'1580-01-01', CAST(id * 97 AS INT)) AS day",
            "timestampadd(SECOND, id * 1000003, TIMESTAMP'0001-02-03 04:05:06.789012Z') AS at",
            "repeat(md5(CAST(id AS STRING)), 2) AS text",
            "unhex(md5(CAST(id AS STRING))) AS raw",
            "id % 2 = 0 AS is_new",
            "array(CAST(id AS STRING), NULL) AS tags",
            "map('a', CAST(id AS INT), 'b', NULL) AS counts",
            "named_struct('lat', id / 5, 'name', CAST(id AS STRING)) AS place",
        )
        for index, column in enumerate(frame.columns[1:]):
            frame = frame.withColumn(column, F.when(F.col("id") % 10 != index % 10, F.col(column)))
        frame.write.format("delta").mode("append").options(**options).save(str(path))

    return write


def rows_as_json(spark, path) -> list[str]:
    frame = spark.read.format("delta").load(str(path))
    return sorted(row[0] for row in frame.select(F.to_json(F.struct("*"))).collect())


def test_all_rows_are_there_afterwards_in_few_files_with_the_bounds_of_their_values(spark, path, arrive, compact):
    for begin in range(0, 1_000, 100):
        arrive(begin, begin + 100)
    arrive(1_000, 1_010, files=3)
    rows_before = rows_as_json(spark, path)
    commit = compact()
    assert (commit.operation, commit.metadata) == ("OPTIMIZE", {"window": 7})
    assert rows_as_json(spark, path) == rows_before
    assert spark.read.format("delta").load(str(path)).where("at IS NULL OR ratio = DOUBLE('NaN')").count() > 0
    # Spark's own compaction of the same rows must have the same statistics.
    arrow_statistics = file_statistics(path)
    spark.read.format("delta").load(str(path)).repartition(2).write.format("delta").mode("overwrite").save(str(path))
    spark.sql(f"OPTIMIZE delta.`{path}`")
    spark_statistics = file_statistics(path)
    assert arrow_statistics["numRecords"] == spark_statistics["numRecords"] == 1_010
    assert arrow_statistics["nullCount"] == {
        name: spark_statistics["nullCount"][name] for name in arrow_statistics["nullCount"]
    }
    # Spark rounds a truncated maximum text up to another character.
    for side, names in (("minValues", ("id", "tiny", "day", "text")), ("maxValues", ("id", "tiny", "day"))):
        assert {name: arrow_statistics[side][name] for name in names} == {
            name: spark_statistics[side][name] for name in names
        }


def file_statistics(path: Path) -> dict:
    """The statistics of the only file of a table."""
    log = DeltaLog(path)
    (file,) = log.state.live
    for version in reversed(log.versions):
        for action in log.actions(version, b'"add"'):
            if "add" in action and action["add"]["path"] == file.path:
                return json.loads(action["add"]["stats"])
    raise AssertionError(f"{file.path} is in no commit")


def test_a_stream_that_reads_the_table_sees_no_row_of_it_again(spark, path, arrive, compact, tmp_path):
    streamed_ids = []

    def read() -> None:
        stream = spark.readStream.format("delta").load(str(path)).writeStream
        stream = stream.foreachBatch(lambda rows, _: streamed_ids.extend(row.id for row in rows.select("id").collect()))
        stream.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start().awaitTermination()

    arrive(0, 30, files=3)
    read()
    compact()
    arrive(30, 40)
    read()
    assert sorted(streamed_ids) == list(range(40))


def test_files_are_put_together_up_to_the_size_and_no_further(spark, path, arrive, compact):
    for begin in range(0, 600, 100):
        arrive(begin, begin + 100)
    sizes = sorted(file.bytes for file in DeltaLog(path).state.live)
    largest_size = sizes[-1]
    compact(smaller_than_bytes=largest_size, target_bytes=sum(sizes[:2]))
    live = DeltaLog(path).state.live
    # A file of the limit's size stays, two of the smaller files become one, and a single remaining file stays too.
    assert [file.rows for file in sorted(live, key=lambda file: file.bytes)].count(200) >= 1
    assert largest_size in {file.bytes for file in live} and sum(file.rows for file in live) == 600
    assert all(file.rows <= 200 for file in live)


def test_columns_that_came_later_are_null_in_the_rows_of_before(spark, path, compact):
    for columns in ("1 AS id", "2 AS id, 'b' AS text", "3 AS id, 'c' AS text, 4 AS more"):
        frame = spark.sql(f"SELECT {columns}").coalesce(1)
        frame.write.format("delta").mode("append").option("mergeSchema", "true").save(str(path))
    compact()
    delta_table = DeltaTable(str(path))
    assert len(delta_table.file_uris()) == 1
    rows = sorted(delta_table.to_pyarrow_table().to_pylist(), key=lambda row: row["id"])
    assert [(row["id"], row["text"], row["more"]) for row in rows] == [(1, None, None), (2, "b", None), (3, "c", 4)]


def test_timestamps_of_older_writers_keep_their_centuries(spark, path, compact):
    int96_session = spark.newSession()
    int96_session.conf.set("spark.sql.parquet.outputTimestampType", "INT96")
    for moment in ("1600-03-01 12:00:00.000001", "9999-12-31 23:59:59.999999"):
        frame = int96_session.sql(f"SELECT TIMESTAMP'{moment}Z' AS at").coalesce(1)
        frame.write.format("delta").mode("append").save(str(path))
    rows_before = rows_as_json(spark, path)
    compact()
    assert len(DeltaLog(path).state.live) == 1
    assert rows_as_json(spark, path) == rows_before


@pytest.mark.parametrize("by_arrow", [True, False])
def test_text_that_is_no_utf8_keeps_its_bytes(spark, path, compact, monkeypatch, caplog, by_arrow):
    monkeypatch.setattr(maintain, "settings", lambda: replace(settings(), fast_path=by_arrow))
    # The greatest text of a file, the least, one in between, and one that is cut off within its bounds.
    parts = [("61", "FFFE00"), ("80", "C3A9"), ("61", "62FF", "7A"), ("C3A9" * 40 + "C3", None), ("61", "62")]
    for codes in parts:
        rows = spark.createDataFrame([(code,) for code in codes], "code STRING").coalesce(1)
        rows = rows.selectExpr("CAST(unhex(code) AS STRING) AS text")
        rows = rows.selectExpr("text", "struct(text) AS one", "array(text) AS many", "map('a', text) AS by_name")
        rows.write.format("delta").mode("append").save(str(path))

    def texts() -> list[tuple]:
        frame = spark.read.format("delta").load(str(path))
        values = ("text", "one.text", "many[0]", "by_name['a']")
        return sorted(map(tuple, frame.selectExpr(*[f"hex({value})" for value in values]).collect()), key=repr)

    def count(code: str) -> int:
        return spark.read.format("delta").load(str(path)).where(f"text = CAST(X'{code}' AS STRING)").count()

    texts_before = texts()
    codes = [code for part in parts for code in part]
    assert texts_before == sorted([(code,) * 4 for code in codes], key=repr)
    assert (compact().operation, len(DeltaLog(path).state.live)) == ("OPTIMIZE", 1)
    assert "OPTIMIZE compacts it" not in caplog.text
    assert texts() == texts_before
    # The statistics of its file hide no row.
    assert (count("61"), count("C3A9")) == (3, 1)


def test_what_arrow_would_change_is_left_to_spark_and_nothing_lies_about(spark, path, compact, caplog):
    for fields in ("'lat', 1.5D", "'lat', 2.5D, 'name', 'x'"):
        frame = spark.sql(f"SELECT named_struct({fields}) AS place").coalesce(1)
        frame.write.format("delta").mode("append").option("mergeSchema", "true").save(str(path))
    rows_before = rows_as_json(spark, path)
    assert compact().operation == "OPTIMIZE"
    assert "OPTIMIZE compacts it: the column place of its file" in caplog.text
    assert rows_as_json(spark, path) == rows_before
    live = {file.path for file in DeltaLog(path).state.live}
    assert len(live) == 1
    # Two old files, and the new file that holds their rows.
    assert len(list(path.glob("*.parquet"))) == 3


def test_a_file_that_another_writer_replaces_meanwhile_is_a_conflict(spark, path, name, arrive, monkeypatch):
    arrive(0, 30, files=3)
    original_compact = Transaction.compact

    def interfere(self, *arguments) -> None:
        spark.sql(f"OPTIMIZE delta.`{path}`")
        original_compact(self, *arguments)

    monkeypatch.setattr(Transaction, "compact", interfere)
    with pytest.raises(ConcurrentDeleteDeleteException):
        maintain.compact_files(spark, f"bronze.{name}", MB, 8 * MB, {})
    assert len(rows_as_json(spark, path)) == 30


def test_rows_that_arrive_meanwhile_are_no_conflict(spark, path, name, arrive, monkeypatch):
    arrive(0, 30, files=3)
    original_compact = Transaction.compact

    def interfere(self, *arguments) -> None:
        arrive(30, 40)
        original_compact(self, *arguments)

    monkeypatch.setattr(Transaction, "compact", interfere)
    maintain.compact_files(spark, f"bronze.{name}", MB, 8 * MB, {})
    assert len(rows_as_json(spark, path)) == 40
    assert len(DeltaLog(path).state.live) == 2


def test_the_commit_says_whose_it_is_also_in_a_session_that_is_not_the_threads(spark, path, name, arrive):
    arrive(0, 30, files=3)
    other_session = spark.newSession()
    spark.sql("SELECT 1").collect()
    step = Step(OPTIMIZE, True, "a test", {"smaller_than_bytes": MB, "target_bytes": 8 * MB})
    maintain.compact(other_session, f"bronze.{name}", step, {"window": 8})
    log = DeltaLog(path)
    assert log.commit(log.versions[-1]).metadata == {"window": 8}


def test_the_commit_has_its_checksum_and_the_next_transaction_builds_on_it(spark, path, name, arrive):
    arrive(0, 30, files=3)
    maintain.compact_files(spark, f"bronze.{name}", MB, 8 * MB, {})
    version = DeltaLog(path).versions[-1]
    assert Path(path, "_delta_log", f"{version:020}.crc").exists()
    assert Target(spark, f"bronze.{name}").begin().read_version == version


def test_a_table_with_a_feature_that_arrow_does_not_keep_is_refused(spark, path, name, arrive):
    arrive(0, 30, files=3)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")
    refusal = maintain.compact_files(spark, f"bronze.{name}", MB, 8 * MB, {})
    assert refusal.reason == "its table has the feature deletionVectors"


VALUES = st.fixed_dictionaries(
    {
        "number": st.none() | st.integers(-(2**63), 2**63 - 1),
        "ratio": st.none() | st.floats(),
        "price": st.none() | st.decimals(-(10**9), 10**9, places=3, allow_nan=False),
        "text": st.none() | st.text(max_size=40),
        "at": st.none() | st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999),
        "inner": st.fixed_dictionaries({"day": st.none() | st.integers(-700_000, 2_900_000)}),
    }
)
VALUES_LAYOUT = Layout(
    schema=pa.schema(
        {
            "number": pa.int64(),
            "ratio": pa.float64(),
            "price": pa.decimal128(14, 3),
            "text": pa.string(),
            "at": pa.timestamp("us", "UTC"),
            "inner": pa.struct({"day": pa.date32()}),
        }
    ),
    indexed=None,
    most_indexed=32,
    is_append_only=False,
)


# Hypothesis generates the first example slowly while Spark uses the CPU.
@settings_of(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.lists(VALUES, max_size=5), min_size=1, max_size=4))
def test_the_bounds_of_parts_together_are_those_of_all_their_rows(parts):
    tables = [pa.Table.from_pylist(part, VALUES_LAYOUT.schema) for part in parts]
    merged_statistics = json.loads(data_file.merge([data_file.of(part, VALUES_LAYOUT) for part in tables]))
    assert merged_statistics == json.loads(data_file.of(pa.concat_tables(tables), VALUES_LAYOUT))
