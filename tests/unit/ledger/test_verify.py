"""What `verify` says of tables in which every row is accounted for, and of those in which one is not."""

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

from include.errors import LedgerMismatch
from include.ledger.verify import verify
from include.ledger.verify_offsets import StoredOffsets
from include.readers.batches import STATES_WITH_ROWS, BatchHistory
from include.readers.offset_ranges import kafka_ranges
from include.settings import settings
from include.spec import Append, Expect, Kafka, Table
from tests.support import lake
from tests.support.account import StoredTable, delta, kafka_rows, reader

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def name() -> str:
    return f"t{uuid.uuid4().hex[:12]}"


def bronze() -> StoredTable:
    made = StoredTable(Table(name=f"bronze.{name()}", comment="", source=Kafka("t")))
    made.create(kafka_rows(0, 0))
    return made


def upto(offset: int) -> dict:
    return {"t": {"0": offset}}


def filled() -> StoredTable:
    """Three batches of ten records."""
    made = bronze()
    for batch in range(3):
        begin = upto(batch * 10) if batch else None
        made.batch(batch, begin, upto(batch * 10 + 10), kafka_rows(batch * 10, batch * 10 + 10))
    return made


def numbers(count: int) -> pyarrow.Table:
    return pyarrow.table({"id": pyarrow.array(range(count), pyarrow.int64())})


def judged(read: int, kept: int, quarantined: int = 0, dropped: int = 0) -> dict:
    return {"read": read, "kept": kept, "quarantined": quarantined, "dropped": dropped, "broke": {}}


def test_a_table_that_holds_what_it_read_is_balanced_range_by_range():
    verdict = verify(filled().table)
    assert (verdict.batches, verdict.ranges, verdict.notes) == (3, 3, [])


def test_records_that_are_missing_are_named_by_their_first_offset(broker, monkeypatch):
    from confluent_kafka import Producer

    from include.local.broker import create_topic

    topic = name()
    create_topic(broker, topic, 1)
    producer = Producer({"bootstrap.servers": broker})
    for number in range(20):
        producer.produce(topic, str(number), partition=0)
    producer.flush()
    made = StoredTable(Table(name=f"bronze.{name()}", comment="", source=Kafka(topic)))
    made.create(kafka_rows(0, 0))
    held = pyarrow.concat_tables([kafka_rows(0, 7, topic=topic), kafka_rows(9, 20, topic=topic)])
    made.batch(0, None, {topic: {"0": 20}}, held)
    with pytest.raises(
        LedgerMismatch, match=f"2 of 20 records of {topic}/0 0 to 19 are missing, the first at offset 7"
    ):
        verify(made.table)


def test_a_record_that_is_there_twice_is_named():
    made = bronze()
    made.batch(0, None, upto(10), pyarrow.concat_tables([kafka_rows(0, 10), kafka_rows(4, 5)]))
    with pytest.raises(LedgerMismatch, match="1/0: offset 4 of t/0 is in the table more than once"):
        verify(made.table)


@pytest.mark.parametrize(("begin", "says"), [(33, "t/0 30 to 32 are never read"), (28, "t/0 28 to 29 are read twice")])
def test_a_batch_that_does_not_begin_where_the_one_before_ended_is_named(begin, says):
    made = filled()
    made.batch(3, upto(begin), upto(40), kafka_rows(begin, 40))
    with pytest.raises(LedgerMismatch, match=f"1/3 does not begin where .* 1/2 ended: {says}"):
        verify(made.table)


def test_batches_that_a_restore_took_out_leave_a_difference():
    made = filled()
    DeltaTable(made.path).restore(2)
    with pytest.raises(LedgerMismatch, match="is done up to batch 2, and the table's last one is .* 1/1"):
        verify(made.table)


def test_a_stranger_in_the_table_is_a_note_and_not_a_difference():
    made = filled()
    write_deltalake(made.path, kafka_rows(90, 91), mode="append")
    [note] = verify(made.table).notes
    assert "others than its flows wrote to it" in note


def test_rows_that_went_after_they_were_written_are_a_difference():
    made = filled()
    made.append(kafka_rows(30, 33), {"window": 1, "step": "optimize"})
    with pytest.raises(LedgerMismatch, match="holds 33 records, and its batches read 30"):
        verify(made.table)


def test_rows_that_a_window_lost_are_a_difference():
    _, made = silver()
    made.batch(0, None, delta(4), numbers(30), judged(30, 30))
    said = CommitProperties(custom_metadata={"userMetadata": json.dumps({"window": 1, "step": "optimize"})})
    DeltaTable(made.path).delete("id = 7", commit_properties=said)
    with pytest.raises(LedgerMismatch, match="holds 29 rows, and its commits wrote 30"):
        verify(made.table)


def test_rows_that_a_window_doubled_are_a_difference():
    _, made = silver()
    made.batch(0, None, delta(4), numbers(30), judged(30, 30))
    made.append(numbers(2), {"window": 1, "step": "optimize"})
    with pytest.raises(LedgerMismatch, match="holds 32 rows, and its commits wrote 30"):
        verify(made.table)


def silver(**declared) -> tuple[StoredTable, StoredTable]:
    source = filled()
    made = StoredTable(reader(name(), source.table.name, **declared), {"table": source.table.name})
    made.create(numbers(0))
    return source, made


def test_a_flow_that_reads_a_table_accounts_for_the_rows_of_its_files():
    _, made = silver()
    made.batch(0, None, delta(3), numbers(20), judged(20, 20))
    made.batch(1, delta(3), delta(4), numbers(10), judged(10, 10))
    verdict = verify(made.table)
    assert (verdict.batches, verdict.notes) == (2, [])


def test_a_batch_that_read_fewer_rows_than_its_source_versions_hold_is_named():
    _, made = silver()
    made.batch(0, None, delta(3), numbers(20), judged(20, 20))
    made.batch(1, delta(3), delta(4), numbers(9), judged(9, 9))
    with pytest.raises(LedgerMismatch, match="1/1 read 9 rows, and .* to the end of version 3 holds 10"):
        verify(made.table)


def test_a_batch_that_begins_within_a_version_reads_the_rest_of_its_files():
    made = StoredTable(reader(name(), f"bronze.{name()}"))
    made.create(numbers(0))
    lake.rows(made.table.source.table, 1.0, 10, 20, 30)
    made.batch(0, None, delta(0, 0), numbers(10), judged(10, 10))
    made.batch(1, delta(0, 0), delta(1), numbers(50), judged(50, 50))
    assert verify(made.table).notes == []


def test_a_compaction_of_the_source_is_not_read_twice():
    source, made = silver()
    made.batch(0, None, delta(3), numbers(20), judged(20, 20))
    DeltaTable(source.path).optimize.compact()
    made.batch(1, delta(3), delta(5), numbers(10), judged(10, 10))
    assert verify(made.table).notes == []


@pytest.mark.parametrize(
    ("tally", "says"),
    [
        (judged(30, 29), "read 30 rows, and accounts for others"),
        (judged(30, 30), "kept 30 rows, and version 1 wrote 28"),
        (judged(30, 27, dropped=3), "kept 27 rows, and version 1 wrote 28"),
    ],
)
def test_a_tally_that_does_not_add_up_is_named(tally, says):
    _, made = silver()
    made.batch(0, None, delta(4), numbers(28), tally)
    with pytest.raises(LedgerMismatch, match=says):
        verify(made.table)


def test_repeated_rows_are_right_where_the_table_removes_them():
    _, made = silver(write=Append(unique=("id",)))
    made.batch(0, None, delta(4), numbers(28), judged(30, 30))
    assert verify(made.table).notes == []


def quarantined(made: StoredTable, batch: int, count: int) -> None:
    own = {"_rules": [["r"]] * count, "_flow": [made.table.flow] * count}
    own |= {"_generation": [1] * count, "_batch": [batch] * count}
    write_deltalake(settings().table_path(made.table.quarantine), pyarrow.table(own), mode="append")


@pytest.mark.parametrize(("count", "is_right"), [(2, True), (1, False), (3, False)])
def test_the_quarantine_holds_the_rows_of_each_batch(count, is_right):
    _, made = silver(expect=(Expect("r", "id > 0"),))
    made.batch(0, None, delta(4), numbers(28), judged(30, 28, quarantined=2))
    quarantined(made, 0, count)
    # Of a batch that was tried and not committed.
    quarantined(made, 1, 5)
    if is_right:
        assert "5 rows in quarantine" in verify(made.table).notes[0]
        return
    with pytest.raises(LedgerMismatch, match=f"put 2 rows into quarantine.silver_.*, which holds {count}"):
        verify(made.table)


@pytest.mark.parametrize("said", [2, 1])
def test_rows_that_leave_the_quarantine_are_those_that_a_replay_took(said):
    _, made = silver(expect=(Expect("r", "id > 0"),))
    made.batch(0, None, delta(4), numbers(27), judged(30, 27, quarantined=3))
    quarantined(made, 0, 3)
    path = settings().table_path(made.table.quarantine)
    write_deltalake(path, DeltaTable(path).to_pyarrow_table().slice(0, 1), mode="overwrite")
    info = {"operation": "DELETE", "operationMetrics": {"numDeletedRows": str(said)}}
    info |= {"timestamp": 0, "userMetadata": json.dumps({"window": 1, "replay": 1})}
    (path / "_delta_log" / f"{2:020}.json").write_text(json.dumps({"commitInfo": info}))
    if said == 2:
        assert "2 rows of quarantine" in verify(made.table).notes[0]
        return
    with pytest.raises(LedgerMismatch, match="lacks 2 rows, and replays took 1 out of it"):
        verify(made.table)


@given(seed=st.integers(0, 2**32))
@hypothesis_settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_happened_the_account_of_rows_equals_a_scan_of_the_table(seed):
    """Random batches with kills between their steps, new generations, restores and compactions; sometimes a batch
    loses or doubles a record, and then it has to be named.
    """
    dice, made, end = random.Random(seed), bronze(), 0
    batch, spoilt = 0, ""
    for _ in range(dice.randrange(2, 9)):
        begin, after = (None if (made.generation, batch) == (1, 0) else upto(end)), end + dice.randrange(0, 6)
        made.plan(batch, upto(after))
        if dice.random() < 0.15:
            # Killed here; the same batch is tried again.
            continue
        data = kafka_rows(end, after)
        if after - end > 1 and dice.random() < 0.1:
            data, spoilt = pyarrow.concat_tables([data, data.slice(0, 1)]), spoilt or f"{made.generation}/{batch}"
        made.commit(batch, begin, upto(after), data)
        end = after
        if dice.random() < 0.15:
            made.generation += 1
            made.plan(0, upto(end))
            made.acknowledge(0)
            batch = 0
        else:
            made.acknowledge(batch)
        batch += 1
        if dice.random() < 0.2:
            DeltaTable(made.path).optimize.compact()
    scanned = Counter(row["offset"] for row in DeltaTable(made.path).to_pyarrow_table().to_pylist())
    told: Counter[int] = Counter()
    for entry in BatchHistory(made.table).batches():
        if entry.state in STATES_WITH_ROWS:
            for span in kafka_ranges(entry.source_from, entry.source_to):
                told.update(range(span.first, span.after))
    assert set(told) == set(scanned)
    assert StoredOffsets(made.table.name).count == sum(scanned.values())
    if spoilt:
        with pytest.raises(LedgerMismatch, match=f"{made.table.flow} {spoilt}: offset"):
            verify(made.table)
    else:
        assert told == scanned
        verify(made.table)
