"""What the fast path refuses, and why, before any row of the batch is read."""

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from include.engine.fast_path import collect, known_keys, path, table_layout
from include.engine.fast_path.collect import Collector
from include.engine.fast_path.table_layout import Layout
from include.engine.rows.micro_batch import Refusal
from include.engine.sources import delta_reader, readers
from include.engine.sources.reader import PlannedRead
from include.spec import Append, Bucket, Delta, Flow, Kafka, Table, Upsert

FIELD = '{"name": "n", "type": "integer", "nullable": true, "metadata": {}}'
PROTOCOL = {"minReaderVersion": 1, "minWriterVersion": 2}


def metadata(field: str = FIELD, partitions: tuple[str, ...] = (), **properties: str) -> dict[str, Any]:
    names = {name.replace("__", "."): value for name, value in properties.items()}
    schema = f'{{"type": "struct", "fields": [{field}]}}'
    return {"schemaString": schema, "partitionColumns": list(partitions), "configuration": names}


def test_a_plain_table_is_written_in_its_own_types():
    layout = table_layout.layout(metadata(delta__dataSkippingStatsColumns="n, `m`", delta__appendOnly="TRUE"), PROTOCOL)
    assert layout == Layout(pa.schema([("n", pa.int32())]), ("n", "m"), 32, is_append_only=True)


@pytest.mark.parametrize(
    ("of_table", "protocol", "reason"),
    [
        (metadata(), {**PROTOCOL, "writerFeatures": ["appendOnly", "icebergCompatV2"]}, "the feature icebergCompatV2"),
        (metadata(), {**PROTOCOL, "minWriterVersion": 7}, "asks for writers of version 7"),
        (metadata(partitions=("n",)), PROTOCOL, "is partitioned"),
        (metadata(delta__enableDeletionVectors="true"), PROTOCOL, "has delta.enableDeletionVectors = true"),
        (metadata(delta__constraints__sound="n > 0"), PROTOCOL, "has the constraint sound"),
        (metadata(FIELD.replace("true", "false")), PROTOCOL, "its column n is NOT NULL"),
        (
            metadata(FIELD.replace("{}", '{"delta.generationExpression": "1"}')),
            PROTOCOL,
            "the property delta.generation",
        ),
        (
            metadata(FIELD.replace('"integer"', '"interval year to month"')),
            PROTOCOL,
            "Arrow does not know one of its types",
        ),
    ],
)
def test_a_table_that_needs_more_from_its_writer_is_refused(of_table, protocol, reason: str):
    refusal = table_layout.layout(of_table, protocol)
    assert isinstance(refusal, Refusal)
    assert reason in refusal.reason
    assert not refusal.is_large


def table(**options: Any) -> Table:
    declared = {"name": "silver.t", "source": Delta("bronze.t"), "comment": "a test", "schema": "id BIGINT"}
    return Flow(**(declared | options))


def test_a_batch_that_is_too_large_or_of_rows_of_unknown_size_is_refused_as_a_large_one():
    collector = Collector(table())
    assert collector._refusal(PlannedRead(collect.MOST_ROWS + 1)).is_large
    # Until rows are seen, they may be long: half of that is assumed of the next batch.
    most = collect.MOST_BYTES // collect.BYTES_PER_ROW
    assert collector._refusal(PlannedRead(most)) is None
    assert collector._refusal(PlannedRead(2 * most)).reason == f"{2 * most} rows of unknown size"
    assert collector._refusal(PlannedRead(2 * most)) is None
    # Files tell how large their rows are at most.
    file = SimpleNamespace(rows=collect.MOST_ROWS)
    assert Collector(table())._refusal(PlannedRead(collect.MOST_ROWS, 1_000, (file,))) is None


def test_a_batch_of_changes_or_of_many_commits_is_refused_by_its_offsets(home):
    offset = {"reservoirVersion": 3, "index": -1, "isStartingVersion": False}
    later = {**offset, "reservoirVersion": 4 + delta_reader.MOST_VERSIONS}
    assert readers.of(table()).planned(offset, offset) == PlannedRead(0)
    assert readers.of(table()).planned(offset, {**later, "index": 0}) == Refusal(
        "it gathers many commits of its source"
    )
    changes = table(source=Delta("bronze.t", changes=True))
    assert readers.of(changes).planned(offset, later) == Refusal("it reads changes, which no commit counts")


def test_columns_that_only_spark_compares_are_named():
    schema = pa.schema([("id", pa.int64()), ("ratio", pa.float64())])
    assert known_keys.not_compared(schema, ("id",)) is None
    reason = "its key ratio is of a type that is not compared outside Spark"
    assert known_keys.not_compared(schema, ("id", "ratio"), "its key") == Refusal(reason)


@pytest.mark.parametrize(
    ("options", "writer"),
    [
        ({"write": Append()}, "Appender"),
        ({"source": Kafka("t"), "schema": "value BINARY"}, "RecordAppender"),
        ({"source": Kafka("t"), "transform": "SELECT 1 AS id FROM source"}, "Appender"),
        ({"write": Upsert(keys=("id",))}, "Aggregator"),
        ({"write": Upsert(keys=("id",), recompute=Bucket("hour", "at", "hour"))}, "Aggregator"),
        ({"write": Upsert(keys=("id",)), "source": Delta("bronze.t", changes=True)}, None),
        ({"write": Upsert(keys=("id",), sequence_by="id")}, "Merger"),
    ],
)
def test_each_write_mode_has_its_writer(options: dict[str, Any], writer: str | None):
    found = path._writer_of(table(**options))
    assert (found and found.__name__) == writer


@pytest.mark.parametrize(
    "of_table",
    [
        metadata(delta__enableChangeDataFeed="true"),
        metadata(delta__constraints__sound="n > 0"),
        metadata(delta__parquet__compression__codec="snappy"),
        metadata(FIELD.replace("true", "false")),
        metadata(FIELD.replace("{}", '{"delta.generationExpression": "1"}')),
    ],
)
def test_what_a_table_asks_of_new_rows_concerns_no_commit_that_only_moves_rows(of_table):
    assert isinstance(table_layout.layout(of_table, PROTOCOL), Refusal)
    assert not isinstance(table_layout.layout(of_table, PROTOCOL, moves_rows=True), Refusal)


def test_files_of_a_partitioned_table_hold_the_other_columns():
    day = FIELD.replace('"n"', '"day"')
    layout = table_layout.layout(metadata(f"{FIELD}, {day}", partitions=("day",)), PROTOCOL, moves_rows=True)
    assert isinstance(layout, Layout)
    assert layout.schema.names == ["n"]
