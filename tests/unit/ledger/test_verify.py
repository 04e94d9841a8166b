"""Verdicts of `verify` on tables in which every row is accounted for, and on tables in which one is not."""

import json
import random
import uuid
from collections import Counter

import pyarrow
import pytest
from deltalake import CommitProperties, DeltaTable, write_deltalake
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from sqlalchemy import insert

from include.checkpoints.offset_ranges import kafka_ranges
from include.control.store import database
from include.control.store.schema import losses
from include.errors import LedgerMismatch
from include.flows.batches import BACKFILL, STATES_WITH_ROWS, BatchHistory, BatchRecord
from include.lake import locations
from include.ledger.verify import verify
from include.ledger.verify_sources import StoredOffsets, accepted_loss_words
from include.settings import settings
from include.spec import Append, Expect, Files, Flow, Kafka
from tests.support import lake
from tests.support.account import StoredTable, delta, kafka_rows, reader

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def unique_name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def bronze() -> StoredTable:
    stored = StoredTable(Flow(name=f"bronze.{unique_name()}", comment="", source=Kafka("t")))
    stored.create(kafka_rows(0, 0))
    return stored


def end_offset(offset: int) -> dict:
    return {"t": {"0": offset}}


def bronze_with_batches() -> StoredTable:
    """A bronze table with three batches of ten records."""
    stored = bronze()
    for batch in range(3):
        begin = end_offset(batch * 10) if batch else None
        stored.batch(batch, begin, end_offset(batch * 10 + 10), kafka_rows(batch * 10, batch * 10 + 10))
    return stored


def numbers(count: int) -> pyarrow.Table:
    return pyarrow.table({"id": pyarrow.array(range(count), pyarrow.int64())})


def row_counts(read: int, kept: int, quarantined: int = 0, dropped: int = 0) -> dict:
    return {"read": read, "kept": kept, "quarantined": quarantined, "dropped": dropped, "broke": {}}


def test_a_table_that_holds_what_it_read_is_balanced_range_by_range():
    verdict = verify(bronze_with_batches().table)
    assert (verdict.batches, verdict.ranges, verdict.notes) == (3, 3, [])


def test_records_that_are_missing_are_named_by_their_first_offset(broker, monkeypatch):
    from confluent_kafka import Producer

    from include.local.broker import create_topic

    topic = unique_name()
    create_topic(broker, topic, 1)
    producer = Producer({"bootstrap.servers": broker})
    for number in range(20):
        producer.produce(topic, str(number), partition=0)
    producer.flush()
    stored = StoredTable(Flow(name=f"bronze.{unique_name()}", comment="", source=Kafka(topic)))
    stored.create(kafka_rows(0, 0))
    rows = pyarrow.concat_tables([kafka_rows(0, 7, topic=topic), kafka_rows(9, 20, topic=topic)])
    stored.batch(0, None, {topic: {"0": 20}}, rows)
    with pytest.raises(
        LedgerMismatch, match=f"2 of 20 records of {topic}/0 0 to 19 are missing, the first at offset 7"
    ):
        verify(stored.table)


def test_a_record_that_is_there_twice_is_named():
    stored = bronze()
    stored.batch(0, None, end_offset(10), pyarrow.concat_tables([kafka_rows(0, 10), kafka_rows(4, 5)]))
    with pytest.raises(LedgerMismatch, match="1/0: offset 4 of t/0 is in the table more than once"):
        verify(stored.table)


@pytest.mark.parametrize(("begin", "says"), [(33, "t/0 30 to 32 are never read"), (28, "t/0 28 to 29 are read twice")])
def test_a_batch_that_does_not_begin_where_the_one_before_ended_is_named(begin, says):
    stored = bronze_with_batches()
    stored.batch(3, end_offset(begin), end_offset(40), kafka_rows(begin, 40))
    with pytest.raises(LedgerMismatch, match=f"1/3 does not begin where .* 1/2 ended: {says}"):
        verify(stored.table)


def test_batches_that_a_restore_took_out_leave_a_difference():
    stored = bronze_with_batches()
    DeltaTable(stored.path).restore(2)
    with pytest.raises(LedgerMismatch, match="is done up to batch 2, and the table's last one is .* 1/1"):
        verify(stored.table)


def test_a_stranger_in_the_table_is_a_note_and_not_a_difference():
    stored = bronze_with_batches()
    write_deltalake(stored.path, kafka_rows(90, 91), mode="append")
    [note] = verify(stored.table).notes
    assert "others than its flows wrote to it" in note


def test_rows_that_went_after_they_were_written_are_a_difference():
    stored = bronze_with_batches()
    stored.append(kafka_rows(30, 33), {"window": 1, "step": "optimize"})
    with pytest.raises(LedgerMismatch, match="holds 33 records, and its batches read 30"):
        verify(stored.table)


def test_rows_that_a_window_lost_are_a_difference():
    _, stored = silver()
    stored.batch(0, None, delta(4), numbers(30), row_counts(30, 30))
    properties = CommitProperties(custom_metadata={"userMetadata": json.dumps({"window": 1, "step": "optimize"})})
    DeltaTable(stored.path).delete("id = 7", commit_properties=properties)
    with pytest.raises(LedgerMismatch, match="holds 29 rows, and its commits wrote 30"):
        verify(stored.table)


def test_rows_that_a_window_doubled_are_a_difference():
    _, stored = silver()
    stored.batch(0, None, delta(4), numbers(30), row_counts(30, 30))
    stored.append(numbers(2), {"window": 1, "step": "optimize"})
    with pytest.raises(LedgerMismatch, match="holds 32 rows, and its commits wrote 30"):
        verify(stored.table)


def silver(**declared) -> tuple[StoredTable, StoredTable]:
    source = bronze_with_batches()
    stored = StoredTable(reader(unique_name(), source.table.name, **declared), {"table": source.table.name})
    stored.create(numbers(0))
    return source, stored


def test_a_flow_that_reads_a_table_accounts_for_the_rows_of_its_files():
    _, stored = silver()
    stored.batch(0, None, delta(3), numbers(20), row_counts(20, 20))
    stored.batch(1, delta(3), delta(4), numbers(10), row_counts(10, 10))
    verdict = verify(stored.table)
    assert (verdict.batches, verdict.notes) == (2, [])


def test_a_batch_that_read_fewer_rows_than_its_source_versions_hold_is_named():
    _, stored = silver()
    stored.batch(0, None, delta(3), numbers(20), row_counts(20, 20))
    stored.batch(1, delta(3), delta(4), numbers(9), row_counts(9, 9))
    with pytest.raises(LedgerMismatch, match="1/1 read 9 rows, and .* to the end of version 3 holds 10"):
        verify(stored.table)


def test_a_batch_that_begins_within_a_version_reads_the_rest_of_its_files():
    stored = StoredTable(reader(unique_name(), f"bronze.{unique_name()}"))
    stored.create(numbers(0))
    lake.rows(stored.table.source.table, 1.0, 10, 20, 30)
    stored.batch(0, None, delta(0, 0), numbers(10), row_counts(10, 10))
    stored.batch(1, delta(0, 0), delta(1), numbers(50), row_counts(50, 50))
    assert verify(stored.table).notes == []


def test_a_compaction_of_the_source_is_not_read_twice():
    source, stored = silver()
    stored.batch(0, None, delta(3), numbers(20), row_counts(20, 20))
    DeltaTable(source.path).optimize.compact()
    stored.batch(1, delta(3), delta(5), numbers(10), row_counts(10, 10))
    assert verify(stored.table).notes == []


@pytest.mark.parametrize(("metadata", "is_skipped"), [({BACKFILL: {"number": 1}}, True), (None, False)])
def test_a_new_generation_goes_on_behind_a_backfill_of_its_source_and_behind_nothing_else(metadata, is_skipped):
    source, stored = silver()
    stored.batch(0, None, delta(4), numbers(30), row_counts(30, 30))
    source.append(kafka_rows(0, 10), metadata)
    source.append(kafka_rows(40, 45))
    stored.generation = 2
    stored.plan(0, delta(5))
    stored.acknowledge(0)
    stored.batch(1, delta(5), delta(6), numbers(5), row_counts(5, 5))
    # A later backfill is no reason: when the generation began, it did not exist.
    source.append(kafka_rows(0, 10), {BACKFILL: {"number": 2}})
    if is_skipped:
        [note] = verify(stored.table).notes
        assert "2/1 goes on where its source was backfilled or rewound behind what" in note
        return
    with pytest.raises(LedgerMismatch, match=r"2/1 does not begin where .* 1/0 ended: .*are never read"):
        verify(stored.table)


@pytest.mark.parametrize(
    ("tally", "says"),
    [
        (row_counts(30, 29), "read 30 rows, and accounts for others"),
        (row_counts(30, 30), "kept 30 rows, and version 1 wrote 28"),
        (row_counts(30, 27, dropped=3), "kept 27 rows, and version 1 wrote 28"),
    ],
)
def test_a_tally_that_does_not_add_up_is_named(tally, says):
    _, stored = silver()
    stored.batch(0, None, delta(4), numbers(28), tally)
    with pytest.raises(LedgerMismatch, match=says):
        verify(stored.table)


def test_repeated_rows_are_right_where_the_table_removes_them():
    _, stored = silver(write=Append(unique=("id",)))
    stored.batch(0, None, delta(4), numbers(28), row_counts(30, 30))
    assert verify(stored.table).notes == []


def write_quarantine(stored: StoredTable, batch: int, count: int) -> None:
    columns = {"_rules": [["r"]] * count, "_flow": [stored.table.flow] * count}
    columns |= {"_generation": [1] * count, "_batch": [batch] * count}
    write_deltalake(str(locations.table_path(stored.table.quarantine)), pyarrow.table(columns), mode="append")


@pytest.mark.parametrize(("count", "is_right"), [(2, True), (1, False), (3, False)])
def test_the_quarantine_holds_the_rows_of_each_batch(count, is_right):
    _, stored = silver(expect=(Expect("r", "id > 0"),))
    stored.batch(0, None, delta(4), numbers(28), row_counts(30, 28, quarantined=2))
    write_quarantine(stored, 0, count)
    # Batch 1 does not count its rows. Batch 2 has none. Batch 3 was tried and never committed.
    stored.batch(1, delta(4), delta(4), numbers(0))
    stored.batch(2, delta(4), delta(4), numbers(0), row_counts(0, 0))
    write_quarantine(stored, 3, 5)
    if is_right:
        assert "5 rows in quarantine" in verify(stored.table).notes[0]
        write_quarantine(stored, 2, 1)
        with pytest.raises(LedgerMismatch, match=r"put 0 rows into quarantine.silver_.*, which holds 1"):
            verify(stored.table)
        return
    with pytest.raises(LedgerMismatch, match=f"put 2 rows into quarantine.silver_.*, which holds {count}"):
        verify(stored.table)


@pytest.mark.parametrize("rows_before", [3, 2])
def test_behind_a_backfill_the_quarantine_is_counted_as_a_whole(rows_before):
    source, stored = silver(expect=(Expect("r", "id > 0"),))
    stored.batch(0, None, delta(4), numbers(27), row_counts(30, 27, quarantined=3))
    source.append(kafka_rows(30, 31))
    stored.batch(1, delta(4), delta(5), numbers(0), row_counts(1, 0, quarantined=1))
    # The backfill has stored the three rows of batch 0 under batch 1.
    write_quarantine(stored, 1, 4)
    info = {"operation": "WRITE", "operationMetrics": {"numOutputRows": "3"}, "timestamp": 0}
    info["userMetadata"] = json.dumps({"window": 1, BACKFILL: {"number": 1, "rows_before": rows_before}})
    log = locations.table_path(stored.table.quarantine) / "_delta_log"
    (log / f"{1:020}.json").write_text(json.dumps({"commitInfo": info}))
    if rows_before == 3:
        assert "was counted as a whole: 1 jobs replaced rows of it" in verify(stored.table).notes[0]
        return
    with pytest.raises(LedgerMismatch, match="lacks 1 rows, and replays took 0 out of it"):
        verify(stored.table)


@pytest.mark.parametrize("said", [2, 1])
def test_rows_that_leave_the_quarantine_are_those_that_a_replay_took(said):
    source, stored = silver(expect=(Expect("r", "id > 0"),))
    stored.batch(0, None, delta(4), numbers(27), row_counts(30, 27, quarantined=3))
    source.append(kafka_rows(30, 31))
    stored.batch(1, delta(4), delta(5), numbers(0), row_counts(1, 0, quarantined=1))
    write_quarantine(stored, 0, 3)
    path = locations.table_path(stored.table.quarantine)
    write_deltalake(str(path), DeltaTable(str(path)).to_pyarrow_table().slice(0, 1), mode="overwrite")
    info = {"operation": "DELETE", "operationMetrics": {"numDeletedRows": str(said)}}
    info |= {"timestamp": 0, "userMetadata": json.dumps({"window": 1, "replay": 1})}
    (path / "_delta_log" / f"{2:020}.json").write_text(json.dumps({"commitInfo": info}))
    write_quarantine(stored, 1, 1)
    if said == 2:
        assert "2 rows of quarantine" in verify(stored.table).notes[0]
        return
    with pytest.raises(LedgerMismatch, match="lacks 2 rows, and replays took 1 out of it"):
        verify(stored.table)


@pytest.mark.parametrize(
    ("numbered", "says"),
    [
        ([0, 1, 2], None),
        ([2, 0, 1, 0], "1 rows of file 'a.csv' are there twice"),
        ([0, 3], "2 rows of file 'a.csv' are missing"),
    ],
)
def test_the_rows_of_a_file_are_numbered_without_gaps_and_repetitions(numbered: list[int], says: str | None):
    table = Flow(name=f"bronze.{unique_name()}", comment="", source=Files("in", "csv"), schema="text STRING")
    stored = StoredTable(table, {"path": "in"})
    files = ["b.csv", *["a.csv"] * len(numbered)]
    rows = pyarrow.table({"_filename": files, "_index": pyarrow.array([0, *numbered], pyarrow.int64())})
    stored.create(rows.slice(0, 0))
    stored.batch(0, None, {"logOffset": 0}, rows)
    if says is None:
        assert verify(table).notes == []
        return
    with pytest.raises(LedgerMismatch, match=says):
        verify(table)


def test_a_batch_that_was_left_out_by_approval_is_a_note_with_who_asked_for_it_and_why():
    stored, skipped = bronze(), {"who": "ada", "reason": "nobody needs it"}
    stored.batch(0, None, end_offset(10), kafka_rows(0, 10))
    stored.plan(1, end_offset(30))
    metadata = {"flow": stored.table.flow, "generation": 1, "batch": 1, "epoch": 1, "source": stored.source}
    stored.append(
        kafka_rows(0, 0), {**metadata, "source_from": end_offset(10), "source_to": end_offset(30), "skipped": skipped}
    )
    stored.acknowledge(1)
    [note] = verify(stored.table).notes
    assert "1/1 was skipped (20 offsets, " in note
    assert note.endswith("asked for by ada, nobody needs it")


def test_an_accepted_loss_is_told_by_its_ranges_and_only_with_its_generation():
    flow = f"bronze.{unique_name()}"
    loss = {"flow": flow, "topic": "t", "first": 3, "accepted_at": 0, "who": "ada", "reason": "gone"}
    with database.transaction(database.connect(settings().control_url)) as connection:
        for generation, partition, after in ((1, 7, 9), (2, 0, 5), (2, 1, None)):
            connection.execute(insert(losses).values(**loss, generation=generation, partition=partition, after=after))
    words = [accepted_loss_words(BatchRecord(flow, generation, 0, "committed")) for generation in (1, 2, 3)]
    assert words == ["t/7 from 3 to before 9", "t/0 from 3 to before 5, t/1 from 3 to before its end", ""]


@given(seed=st.integers(0, 2**32))
@hypothesis_settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_happened_the_account_of_rows_equals_a_scan_of_the_table(seed):
    """Random batches, crashes, generations and compactions. `verify` names the first batch that doubles a record."""
    dice, stored, end = random.Random(seed), bronze(), 0
    batch, doubled = 0, ""
    for _ in range(dice.randrange(2, 9)):
        begin, stop = (None if (stored.generation, batch) == (1, 0) else end_offset(end)), end + dice.randrange(0, 6)
        stored.plan(batch, end_offset(stop))
        if dice.random() < 0.15:
            # The driver dies, and the next round tries the same batch again.
            continue
        rows = kafka_rows(end, stop)
        if stop - end > 1 and dice.random() < 0.1:
            rows, doubled = pyarrow.concat_tables([rows, rows.slice(0, 1)]), doubled or f"{stored.generation}/{batch}"
        stored.commit(batch, begin, end_offset(stop), rows)
        end = stop
        if dice.random() < 0.15:
            stored.generation += 1
            stored.plan(0, end_offset(end))
            stored.acknowledge(0)
            batch = 0
        else:
            stored.acknowledge(batch)
        batch += 1
        if dice.random() < 0.2:
            DeltaTable(stored.path).optimize.compact()
    stored_offsets = Counter(row["offset"] for row in DeltaTable(stored.path).to_pyarrow_table().to_pylist())
    accounted: Counter[int] = Counter()
    for entry in BatchHistory(stored.table).batches():
        if entry.state in STATES_WITH_ROWS:
            for span in kafka_ranges(entry.source_from, entry.source_to):
                accounted.update(range(span.first, span.after))
    assert set(accounted) == set(stored_offsets)
    assert StoredOffsets(stored.table.name).count == sum(stored_offsets.values())
    if doubled:
        with pytest.raises(LedgerMismatch, match=f"{stored.table.flow} {doubled}: offset"):
            verify(stored.table)
    else:
        assert accounted == stored_offsets
        verify(stored.table)
