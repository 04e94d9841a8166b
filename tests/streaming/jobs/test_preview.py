"""A preview shows what a flow would make of rows, and writes nothing."""

import json
from collections import Counter
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest

from include import personal
from include.catalog import Catalog
from include.control.store import database
from include.control.store.schema import metadata
from include.delta.delta_log import DeltaLog
from include.engine.preview import preview_report
from include.engine.preview.preview import Preview, PreviewRequest, previews
from include.errors import Unreachable, UsageError
from include.lake import locations
from include.project.sources import inline_steps
from include.rules import unique
from include.settings import settings
from include.spec import (
    FILES_SCHEMA,
    Append,
    Bucket,
    Cast,
    Debezium,
    Delta,
    Expect,
    Flow,
    Json,
    Kafka,
    Replace,
    Table,
    Upsert,
    Watermark,
)
from tests.support import raw_headers
from tests.support.batches import BatchWriter
from tests.support.flows import rows_of
from tests.support.landing import Landing
from tests.support.topic import Topic

RAW = "value BINARY, topic STRING, partition INT, offset BIGINT"
MINUTES = "time TIMESTAMP, number INT"
READING = "device STRING, time TIMESTAMP, bpm INT, offset BIGINT, _errors ARRAY<STRUCT<field: STRING, message: STRING>>"


def platform_state() -> tuple:
    """All files in the home, except those of Spark and the broker, and all rows of the control database."""
    home = settings().home
    top_paths = [path for path in home.iterdir() if path.name not in ("tmp", "broker")]
    paths = [
        path
        for top_path in top_paths
        for path in (top_path, *top_path.rglob("*"))
        if not path.name.startswith("control.")
    ]
    file_stats = {path: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths}
    with database.transaction(database.connect(settings().control_url)) as connection:
        control_rows = {name: connection.execute(table.select()).all() for name, table in metadata.tables.items()}
    return file_stats, control_rows


@pytest.fixture
def preview(spark):
    """Previews the last table, and checks that nothing is written: `preview(*tables, rows=..., file=..., flow=...)`."""

    def run(*tables: Table, rows: int = 100, file: Path | None = None, flow: str | None = None) -> Preview:
        state_before = platform_state()
        catalog = Catalog(*inline_steps({table.name: table for table in tables}))
        [result] = previews(PreviewRequest(spark, catalog, rows, file, flow), tables[-1].name)
        assert platform_state() == state_before
        return result

    return run


@pytest.fixture
def bronze(name) -> Table:
    return Flow(name=f"bronze.{name}", comment="", source=Kafka(name))


@pytest.fixture
def silver(name) -> Table:
    return Flow(
        name=f"silver.{name}",
        comment="",
        source=Delta(f"bronze.{name}"),
        schema=READING,
        parse=Json("value", into=("device", "time", "bpm")),
        expect=(
            Expect("known", "device IS NOT NULL"),
            Expect("alive", "bpm > 0", "drop"),
            Expect("calm", "bpm < 200", "warn"),
        ),
        write=Append(unique=("device", "time"), first_by=("offset",), watermark=Watermark("time", 30)),
    )


def reading(minute: int, bpm: object, device: str | None = "a") -> str:
    return json.dumps({"device": device, "time": f"2026-03-01T12:{minute:02}:00Z", "bpm": bpm})


@pytest.fixture
def arrive(append, name):
    """Appends messages to bronze, as one file: `arrive(first_offset, *messages)`."""

    def write(first_offset: int, *values: str) -> None:
        rows = [(bytearray(value.encode()), name, 0, first_offset + index) for index, value in enumerate(values)]
        append(f"bronze.{name}", rows, RAW)

    return write


def test_personal_columns_and_payloads_are_hidden_unless_somebody_asks_for_them(spark, arrive, bronze, silver):
    personal.digest("writes the key")
    secret = replace(silver, personal=("device",))
    catalog = Catalog(*inline_steps({table.name: table for table in (bronze, secret)}))
    arrive(0, reading(1, 60, "lovelace"), reading(2, "many", "lovelace"), "garbage of lovelace")
    request = PreviewRequest(spark, catalog, rows=100)
    [hidden], [shown] = previews(request, silver.name), previews(replace(request, shows_personal=True), silver.name)
    devices = {row.row["device"] for row in hidden.outcome.rows} - {None}
    assert len(devices) == 1 and devices.pop().startswith("***")
    assert "lovelace" not in preview_report.as_json(silver.name, [hidden]) + "\n".join(preview_report.lines(hidden))
    assert "'many' is no INT" in preview_report.as_json(silver.name, [hidden])
    assert "garbage of lovelace" in preview_report.as_json(silver.name, [shown])


def test_rows_are_previewed_as_their_flow_then_writes_them(preview, spark, tmp_path, arrive, bronze, silver, stored):
    batches = BatchWriter(spark, tmp_path, RAW)
    values = (reading(1, 60), reading(1, 61), reading(2, 0), reading(3, 250), reading(4, "many"), "garbage")
    arrive(0, *values)
    result = preview(bronze, silver)
    assert (result.read, result.outcome.total) == (6, 6)
    assert result.outcome.ends == {"quarantine": 1, "drop": 2, "repeated": 1, "kept": 2}
    assert {rule.name: count for rule, count in result.outcome.broke} == {
        "known": 1,
        "alive": 3,
        "calm": 3,
        "later than 30 minutes": 0,
        "further ahead than 1440 minutes": 0,
    }
    batches.write(silver, stored(bronze.name))
    offsets = {
        end: [row.row["offset"] for row in result.outcome.rows if row.becomes == end] for end in result.outcome.ends
    }
    assert sorted(offsets["kept"]) == sorted(row["offset"] for row in rows_of(silver.name)) == [0, 3]
    assert offsets["quarantine"] == [row["offset"] for row in rows_of(silver.quarantine)] == [5]
    # A preview ignores stored rows, but it uses their watermark for late rows.
    arrive(6, reading(50, 70), reading(1, 70))
    batches.write(silver, stored(bronze.name))
    late_result = preview(bronze, silver)
    assert late_result.outcome.ends["kept"] == 1
    assert {row.row["offset"]: row.becomes for row in late_result.outcome.rows}[0] == "quarantine"
    text = "\n".join(preview_report.lines(result))
    assert "bpm: 'many' is no INT" in text
    assert "  1 break 'known' (quarantine)" in text
    assert "  no row is late" in text
    [document] = json.loads(preview_report.as_json(silver.name, [result]))["previews"]
    assert document["rows"][0]["becomes"] == "quarantine"
    assert document["rows"][0]["breaks"] == ["known", "alive", "calm"]


def test_only_the_newest_files_of_a_source_are_opened_and_a_rule_that_fails_shows_its_rows(
    preview, arrive, bronze, silver
):
    arrive(0, reading(1, 60))
    [old_file] = [file.path for file in DeltaLog(locations.table_path(bronze.name)).state.live]
    arrive(1, reading(2, 60), reading(3, 300))
    (locations.table_path(bronze.name) / old_file).unlink()
    strict_silver = replace(silver, expect=(Expect("calm", "bpm < 200", "fail"), unique("device")), write=Append())
    result = preview(bronze, strict_silver, rows=2)
    assert result.read == 2
    assert result.outcome.rows[0].row["bpm"] == 300
    assert [row.becomes for row in result.outcome.rows] == ["fail", "kept"]


def test_a_step_and_what_is_over_it_are_previewed(preview, arrive, bronze, silver, name):
    step = replace(silver, name=f"silver.{name}_step", temporary=True, expect=(), write=Append())
    reader = Flow(
        name=f"silver.{name}_over",
        comment="",
        source=Delta(step.name),
        schema="device STRING, twice INT",
        transform="SELECT device, bpm * 2 AS twice FROM source",
    )
    arrive(0, reading(1, 60))
    assert preview(bronze, step).outcome.rows[0].row["bpm"] == 60
    assert preview(bronze, step, reader).outcome.rows[0].row == {"device": "a", "twice": 120}


@pytest.fixture
def counted(name) -> Table:
    """Row counts by minute of a silver table that the test writes."""
    return Flow(
        name=f"gold.{name}",
        comment="",
        source=Delta(f"silver.{name}"),
        schema="minute TIMESTAMP, n BIGINT",
        transform="SELECT minute, count(*) AS n FROM source GROUP BY minute",
        write=Upsert(("minute",), recompute=Bucket("minute", of="time", unit="minute")),
    )


@pytest.fixture
def minutes(name) -> Table:
    return Flow(name=f"silver.{name}", comment="", source=Delta(f"bronze.{name}"), schema=MINUTES)


@pytest.fixture
def stored_silver(append, minutes) -> Table:
    """Writes two files. The newest has rows of only one of two minutes."""
    for numbers in ((1, 1, 2), (2,)):
        append(minutes.name, [(datetime(2026, 3, 1, 12, number), number) for number in numbers], MINUTES)
    return minutes


def counts(preview: Preview) -> list[int]:
    return sorted(row.row["n"] for row in preview.outcome.rows)


def test_an_aggregate_is_made_of_all_rows_of_what_the_newest_touch(preview, bronze, stored_silver, counted, tmp_path):
    result = preview(bronze, stored_silver, counted, rows=1)
    assert (result.read, counts(result)) == (1, [2])
    assert "they touch 1 buckets of minute" in result.notes[0]
    transform = "SELECT date_trunc('minute', time) AS minute, count(*) AS n FROM source GROUP BY 1"
    table_without_buckets = replace(counted, transform=transform, write=Upsert(("minute",)))
    result = preview(bronze, stored_silver, table_without_buckets, rows=1)
    assert (result.read, result.outcome.total, counts(result)) == (4, 2, [2])
    file = tmp_path / "rows.csv"
    file.write_text("time,number\n2026-03-01T12:05:00Z,1\n2026-03-01T12:05:01Z,2\n2026-03-01T12:06:00Z,\n")
    assert counts(preview(bronze, stored_silver, counted, file=file)) == [1, 2]


def test_a_view_is_made_of_all_rows_and_a_file_stands_for_one_of_its_sources(
    preview, append, bronze, stored_silver, name, tmp_path
):
    append(f"silver.{name}_names", [(1, "one"), (2, "two")], "number INT, word STRING")
    names = Flow(name=f"silver.{name}_names", comment="", source=Delta(bronze.name), schema="number INT, word STRING")
    view = Table(
        name=f"gold.{name}_view",
        comment="",
        source={"times": Delta(stored_silver.name), "names": Delta(names.name)},
        schema="word STRING, n BIGINT",
        transform="SELECT word, count(*) AS n FROM times JOIN names USING (number) GROUP BY word",
        write=Replace(),
        expect=(Expect("short", "length(word) < 4", "drop"), Expect("not one", "word <> 'one'", "warn")),
    )
    result = preview(bronze, stored_silver, names, view)
    assert (result.read, counts(result), result.outcome.ends) == (6, [2, 2], {"kept": 2})
    assert result.outcome.rows[0].breaks == ["not one"]
    file = tmp_path / "names.jsonl"
    file.write_text('{"number": 2, "word": "second"}\n')
    result = preview(bronze, stored_silver, names, view, file=file, flow=f"{view.name}.names")
    assert [(row.row, row.becomes) for row in result.outcome.rows] == [({"word": "second", "n": 2}, "drop")]
    append(names.name, [(1, "one"), (2, "two")], "number INT, word STRING")
    pinned = replace(view, source={**view.source, "names": Delta(names.name, version_as_of=0)})
    assert counts(preview(bronze, stored_silver, names, pinned)) == [2, 2]
    with pytest.raises(UsageError, match=f"has several sources: say .*--flow {view.name}.times"):
        preview(bronze, stored_silver, names, view, file=file)
    with pytest.raises(UsageError, match=f"no flow of {view.name}: did you mean '{view.name}.names'"):
        preview(bronze, stored_silver, names, view, flow=f"{view.name}.name")


def test_a_row_of_a_view_that_no_table_may_store_is_shown_as_the_end_of_the_refresh(
    preview, bronze, stored_silver, name
):
    view = Flow(
        name=f"gold.{name}_view",
        comment="",
        source=Delta(stored_silver.name),
        schema="number INT NOT NULL, at TIMESTAMP",
        transform="SELECT nullif(number, 2) AS number, time AS at FROM source",
        write=Replace(),
    )
    rows = preview(bronze, stored_silver, view).outcome.rows
    assert {(row.row["number"], row.becomes, *row.breaks) for row in rows if row.breaks} == {
        (None, "fail", "values in columns that are NOT NULL, in column 'number'"),
    }
    assert [row.becomes for row in rows if row.row["number"] == 1] == ["kept", "kept"]


def test_the_newest_changes_of_a_source_are_previewed(preview, spark, append, bronze, stored_silver, name):
    changes = Flow(
        name=f"silver.{name}_changes",
        comment="",
        source=Delta(stored_silver.name, changes=True),
        schema="number INT, _change_type STRING, _commit_version BIGINT",
    )
    with pytest.raises(Unreachable, match="which does not keep them yet: restart the flow"):
        preview(bronze, stored_silver, changes)
    path = locations.table_path(stored_silver.name)
    spark.sql(f"ALTER TABLE delta.`{path}` SET TBLPROPERTIES (delta.enableChangeDataFeed = true)")
    result = preview(bronze, stored_silver, changes)
    assert [(row.row["number"], row.row["_change_type"]) for row in result.outcome.rows].count((1, "insert")) == 2
    spark.sql(f"DELETE FROM delta.`{path}` WHERE number = 1")
    append(stored_silver.name, [(datetime(2026, 3, 1, 12, 9), 9)], MINUTES)
    result = preview(bronze, stored_silver, changes)
    change_counts = Counter((row.row["number"], row.row["_change_type"]) for row in result.outcome.rows)
    assert change_counts == {(1, "delete"): 2, (9, "insert"): 1}
    assert 9 in [row.row["number"] for row in preview(bronze, stored_silver, changes, rows=2).outcome.rows]


def test_the_newest_records_of_each_partition_of_a_topic_are_read_and_the_broker_keeps_no_trace(preview, broker, name):
    topic = Topic(broker).create(3).send(*range(9))
    topic.send_in_transactions((False, (100, 101, 102)))
    groups = [group.group_id for group in topic.admin.list_consumer_groups().result().valid]
    table = Table(name=f"bronze.{name}", comment="", source={"": Kafka(topic.name), "late": Delta(f"silver.{name}")})
    result = preview(replace(table, source=Kafka(topic.name)), rows=12)
    # The newest offsets of each partition are an aborted record and a transaction marker.
    assert sorted(row.row["value"] for row in result.outcome.rows) == [str(number) for number in range(3, 9)]
    assert result.outcome.rows[0].row["topic"] == topic.name
    assert [group.group_id for group in topic.admin.list_consumer_groups().result().valid] == groups
    raw_headers.send(topic.servers, topic.name, [b"ok"], [b"\xff"])
    rows = preview(replace(table, source=Kafka(topic.name)), rows=12).outcome.rows
    assert [(row.row["value"], row.breaks) for row in rows if row.becomes == "quarantine"] == [
        ("1", ["names of headers in UTF-8"])
    ]
    with pytest.raises(
        Unreachable, match=f"reads silver.{name}, which is not stored yet: start the flow .* --from-file"
    ):
        preview(Flow(name=f"silver.{name}", comment="", source=Delta(f"gold.{name}")), table, flow=f"{table.name}.late")


def test_files_are_previewed_by_the_reader_that_reads_them(preview, append, name, tmp_path):
    landing = Landing(name)
    table = landing.table()
    landing.drop("1.csv", "date,amount\n2026-03-01,5\n")
    result = preview(table)
    assert result.outcome.rows[0].row["date"] == "2026-03-01"
    assert result.notes == ("the flow would add the columns date, amount",)
    append(table.name, [], f"date STRING, amount STRING, {FILES_SCHEMA}")
    landing.drop("2.csv", "date,amount,shop\n2026-03-02,6,kiosk\n2026-03-03\n")
    landing.drop("3.csv", b'"never closed' + b"x" * 1_100_000)
    result = preview(table)
    assert (result.read, result.notes) == (3, ("the flow would add the columns shop",))
    assert [Path(file).name for file in result.files] == ["3.csv"]
    assert "quarantined: " in "\n".join(preview_report.lines(result))
    short_row = next(row.row for row in result.outcome.rows if row.row["_rescued_data"])
    assert (short_row["_filename"], short_row["_index"]) == ("2.csv", 1)
    file = tmp_path / "sample.txt"
    file.write_text("date,amount\n2026-03-04,7\n")
    [row] = preview(table, file=file).outcome.rows
    assert (row.row["date"], row.row["_filename"]) == ("2026-03-04", "sample.txt")
    silver_table = Flow(
        name=f"silver.{name}",
        comment="",
        source=Delta(table.name),
        schema="amount INT, shop STRING, _filename STRING",
        parse=Cast(("amount",)),
    )
    # No file has this column yet.
    (tmp_path / "rows.json").write_text('{"amount": "8", "shop": "stall"}\n')
    [row] = preview(table, silver_table, file=tmp_path / "rows.json").outcome.rows
    assert row.row == {"amount": 8, "shop": "stall", "_filename": "rows.json"}


def test_a_file_whose_records_cannot_be_read_is_named(preview, name):
    landing = Landing(name)
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.table({"a": [1, 2]}), sink)
    content = sink.getvalue().to_pybytes()
    landing.drop("good.parquet", content)
    # The footer is intact, but the data before it is not.
    landing.drop("rotten.parquet", content[:4] + bytes(40) + content[44:])
    result = preview(landing.table("parquet"))
    assert (result.read, [Path(file).name for file in result.files]) == (2, ["rotten.parquet"])


def test_a_file_holds_messages_or_rows_of_the_source(preview, bronze, silver, tmp_path):
    messages_file = tmp_path / "messages.log"
    messages_file.write_text(f"{reading(1, 60)}\nnot json\n{reading(1, 61)}\n\n")
    result = preview(bronze, silver, file=messages_file)
    assert result.outcome.ends == {"quarantine": 1, "repeated": 1, "kept": 1}
    assert {row.becomes: row.row["offset"] for row in result.outcome.rows} == {
        "quarantine": 1,
        "repeated": 2,
        "kept": 0,
    }
    json_file = tmp_path / "rows.json"
    json_file.write_text(json.dumps({"value": reading(1, 60), "offset": 7}))
    assert [row.row["offset"] for row in preview(bronze, silver, file=json_file).outcome.rows] == [7]
    parquet_file = tmp_path / "rows.parquet"
    parquet.write_table(
        pa.table({"value": [reading(1, 60).encode()], "offset": pa.array([8], pa.int32())}), parquet_file
    )
    assert [row.row["offset"] for row in preview(bronze, silver, file=parquet_file).outcome.rows] == [8]
    [row] = preview(bronze, file=messages_file, rows=1).outcome.rows
    assert (row.row["partition"], row.row["key"], row.row["topic"]) == (0, None, "messages.log")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("rows.csv", "tme\n1\n", "whose column 'tme' the source has not: did you mean 'time'"),
        ("rows.csv", "time,number\n2026-03-01T00:00:00Z\n", "whose record 1 has 1 cells where its header has 2"),
        ("rows.json", '{"number": 1}\n{"number": "x"}\n', "whose row 2 has a wrong 'number': 'x' is no INT: fix it"),
        ("rows.json", "[1]\n", "of which a line is no JSON object"),
        ("rows.txt", '{"number": 1}\n', "name a file that ends in .json, .jsonl, .csv or .parquet"),
        ("rows.parquet", "no", "which is no Parquet of the source's rows"),
        ("", None, "which cannot be read"),
    ],
)
def test_a_wrong_file_is_told_in_a_sentence(preview, bronze, minutes, counted, tmp_path, file, content, says):
    if content is not None:
        (tmp_path / file).write_text(content)
    with pytest.raises(UsageError, match=says):
        preview(bronze, minutes, counted, file=tmp_path / file if file else tmp_path / "nowhere")


def test_a_change_is_shown_as_what_the_flow_counts_it(bronze, name, preview, tmp_path):
    silver = Flow(
        name=f"silver.{name}",
        comment="changes of a database",
        source=Delta(bronze.name),
        schema="id INT, _sequence BIGINT, _errors ARRAY<STRUCT<field: STRING, message: STRING>>",
        parse=Debezium("value", into=("id",)),
        write=Upsert(("id",), sequence_by="_sequence", deletes="_op = 'd'", truncates="_op = 't'"),
    )
    changes = [("c", 1, 1), ("u", 1, 2), ("c", 2, 3), ("d", 2, 4), ("t", None, 5), ("x", 3, 6)]
    values = [
        json.dumps({"op": op, "before": {"id": key}, "after": {"id": key}, "source": {"lsn": lsn}}).encode()
        for op, key, lsn in changes
    ]
    file = tmp_path / "changes.parquet"
    parquet.write_table(pa.table({"value": pa.array([*values, None, b"[1]"], pa.binary())}), file)
    shown = preview(bronze, silver, file=file)
    ends = {"quarantine": 2, "tombstone": 1, "stale": 2, "truncates": 1, "deletes": 1, "kept": 1}
    assert shown.outcome.ends == ends
    assert [(row.row["id"], row.row["_sequence"]) for row in shown.outcome.rows if row.becomes == "kept"] == [(1, 2)]
    assert "  1 change nothing, as they are tombstones" in list(preview_report.lines(shown))
