"""The fast path and Spark's path write the same rows, quarantine and metadata for generated batches."""

from dataclasses import replace

import pytest

from include.delta.delta_log import DeltaLog
from include.lake import locations
from include.spec import Flow, Kafka
from tests.support import raw_headers
from tests.support.flows import FULL
from tests.support.generated import COLUMNS, MODES, SEED, Generator, store_titles
from tests.support.odd_records import ANY_TIME, OddRecord, OddRecords, send
from tests.support.topic import Topic
from tests.support.twins import Source, Twin, counted, differences

BATCHES = 12 if FULL else 3
# Of these, one batch has enough.
IN_SHORT_RUNS = (
    "unique",
    "unique with watermark",
    "merge of two keys",
    "merge with watermark",
    "partial",
    "aggregate within reach",
    "lookup",
)
# Of these, Spark takes the batches with a truncate.
WITH_TRUNCATES = ("merge of two keys", "history with truncates")


@pytest.mark.parametrize("mode", [mode for mode in MODES if FULL or mode in IN_SHORT_RUNS])
def test_both_paths_leave_the_same_rows_quarantine_and_metadata(spark, name, tmp_path, mode):
    print(f"seed {SEED}")
    generator, source, declared = Generator(SEED), Source(spark, f"bronze.{name}", COLUMNS), MODES[mode](name)
    twins: list[Twin] = []
    flags = []
    for number in range(BATCHES):
        rows = generator.batch(number)
        if declared.lookups:
            store_titles(spark, declared.lookups[0].table, rows)
        frame = source.append(rows)
        twins = twins or [
            Twin(spark, tmp_path / kind, replace(declared, name=f"silver.{name}_{kind}"), kind == "fast")
            for kind in ("fast", "spark")
        ]
        for twin in twins:
            twin.write(frame, number)
        first, second = (twin.contents for twin in twins)
        if declared.merges_changes and "history" not in mode and mode != "partial":
            # Spark does not look at the stored rows, and retains deletes of earlier changes, too.
            assert not first.pop("retained") - second.pop("retained"), (SEED, number)
        assert not differences(first, second), (SEED, number)
        flags.append([twin.newest.metadata["fast_path"] for twin in twins])
    expected = [True, False]
    assert expected in flags if mode in WITH_TRUNCATES else set(map(tuple, flags)) == {tuple(expected)}, flags


def test_both_paths_store_the_records_of_a_topic_alike(run_once, name, broker, monkeypatch):
    print(f"seed {SEED}")
    topic = Topic(broker).create(**ANY_TIME)
    plain = (None, b"", b"k", b"\xff\xfe")
    send(topic, (OddRecord(key, value, [], 0) for key in plain for value in plain))
    for names in ([b"n\0x", "ü".encode()], [b"", b"h\0"]):
        raw_headers.send(topic.servers, topic.name, *[names] * 16)
    raw_headers.send(topic.servers, topic.name, [b"ok", b"\xff"], ["größe".encode("latin-1")], [])
    send(topic, OddRecords(SEED)(13))
    # All in one run: a driver knows from one batch that the next ones have headers.
    twins = [
        Flow(name=f"bronze.{name}_{kind}", comment="", source=Kafka(topic.name, max_offsets=16))
        for kind in ("fast", "spark")
    ]
    run_once(twins[0])
    monkeypatch.setattr("include.engine.fast_path.path.suits", lambda table: False)
    run_once(twins[1])
    flags = []
    for twin in twins:
        metadata = [commit.metadata for commit in DeltaLog(locations.table_path(twin.name)).commits()]
        flags.append([one["fast_path"] for one in reversed(metadata) if "batch" in (one or {})])
    assert flags == [[True, False, True, False], [False] * 4]
    for companion in ("name", "quarantine"):
        first, second = (counted(getattr(twin, companion)) for twin in twins)
        assert first and not first - second and not second - first, (SEED, companion)
