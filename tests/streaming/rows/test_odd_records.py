"""Thousands of odd records through bronze, silver and gold: each offset is accounted for, and no flow stops."""

import json
import random
import time
from collections import Counter

import pytest

from include.delta import stored_table
from include.lake import locations
from include.ledger import verify
from include.spec import Append, Avro, Bucket, Debezium, Delta, Expect, Flow, Json, Kafka, Table, Upsert, Watermark
from tests.support.flows import only_in_full_runs
from tests.support.odd_records import ANY_TIME, OddRecords, send
from tests.support.topic import Topic

ERRORS = "_errors ARRAY<STRUCT<field: STRING, message: STRING>>"
EVENT = (
    f"id BIGINT, at TIMESTAMP, amount DECIMAL(20, 4), name STRING, divisor INT, {ERRORS}, partition INT, offset BIGINT"
)
FIELDS = ("id", "at", "amount", "name", "divisor")
TEXT_RECORD = json.dumps({"type": "record", "name": "T", "fields": [{"name": "text", "type": "string"}]})


def tables(name: str, topic: str) -> tuple[Table, ...]:
    bronze = Flow(name=f"bronze.{name}", comment="", source=Kafka(topic, max_offsets=1_000))
    source = Delta(bronze.name, max_files=2)
    events = Flow(
        name=f"silver.{name}_events",
        comment="",
        source=source,
        schema=f"{EVENT}, share DECIMAL(30, 10)",
        parse=Json("value", into=FIELDS),
        # Fails for a divisor of 0.
        transform="SELECT *, CAST(amount / divisor AS DECIMAL(30, 10)) AS share FROM source",
        expect=(Expect("has id", "id IS NOT NULL"), Expect("typed", "size(_errors) = 0", otherwise="warn")),
    )
    unique = Flow(
        name=f"silver.{name}_unique",
        comment="",
        source=source,
        schema=EVENT,
        parse=Json("value", into=FIELDS),
        write=Append(unique=("id", "at"), watermark=Watermark("at", minutes=60 * 24 * 400)),
        expect=(Expect("has id", "id IS NOT NULL AND at IS NOT NULL"),),
    )
    changes = Flow(
        name=f"silver.{name}_changes",
        comment="",
        source=source,
        schema=f"id INT, name STRING, at TIMESTAMP, _sequence BIGINT, {ERRORS}, partition INT, offset BIGINT",
        parse=Debezium("value", into=("id", "name", "at")),
        write=Upsert(("id",), sequence_by="_sequence", deletes="_op = 'd'"),
    )
    history = Flow(
        name=f"silver.{name}_history",
        comment="",
        source=source,
        schema="id BIGINT, name STRING, place BIGINT",
        parse=Json("value", into=("id", "name")),
        transform="SELECT id, name, offset * 2 + partition AS place, _errors FROM source",
        write=Upsert(("id",), sequence_by="place", scd=2),
    )
    avro = Flow(
        name=f"silver.{name}_avro",
        comment="",
        source=source,
        schema=f"text STRING, {ERRORS}, partition INT, offset BIGINT",
        parse=Avro("value", into=("text",), schemas={1: TEXT_RECORD}),
        expect=(Expect("typed", "size(_errors) = 0"),),
    )
    gold = Flow(
        name=f"gold.{name}_days",
        comment="",
        source=Delta(events.name),
        schema="day TIMESTAMP, rows BIGINT, total DECIMAL(38, 4)",
        transform="SELECT day, count(*) AS rows, sum(amount) AS total FROM source GROUP BY day",
        write=Upsert(keys=("day",), recompute=Bucket("day", of="at", unit="day")),
    )
    return bronze, events, unique, changes, history, avro, gold


def places(table: str) -> Counter:
    if not locations.is_stored(table):
        return Counter()
    rows = stored_table.dataset(table).to_table(columns=["partition", "offset"]).to_pylist()
    return Counter((row["partition"], row["offset"]) for row in rows)


def run_odd_records(spark, run_once, name: str, broker: str, seed: int, count: int, rounds: int = 2) -> None:
    print(f"seed {seed}, {count} records")
    topic = Topic(broker).create(2, **ANY_TIME)
    flows, records, begun_at = tables(name, topic.name), OddRecords(seed), time.monotonic()
    for _ in range(rounds):
        send(topic, records(count // rounds))
        run_once(*flows)
    bronze, events, _, _, _, avro, _ = flows
    sent = Counter((number % 2, number // 2) for number in range(count))
    assert places(bronze.name) + places(bronze.quarantine) == sent, f"seed {seed}"
    for table in (events, avro):
        assert places(table.name) + places(table.quarantine) == places(bronze.name), f"seed {seed}: {table.name}"
    for table in flows:
        for line in verify.lines(verify.verify(table)):
            print(line)
        quarantined = stored_table.open_table(table.quarantine).count() if locations.is_stored(table.quarantine) else 0
        print(f"{table.name}: {stored_table.open_table(table.name).count()} rows, {quarantined} quarantined")
    print(f"seed {seed}: {count} records in {time.monotonic() - begun_at:.0f} s")


def test_odd_records_are_all_accounted_for_and_stop_no_flow(spark, run_once, name, broker):
    run_odd_records(spark, run_once, name, broker, random.SystemRandom().randrange(10**6), 150, rounds=1)


@only_in_full_runs
@pytest.mark.parametrize("seed", [1, 2])
def test_ten_thousand_odd_records_are_all_accounted_for_and_stop_no_flow(spark, run_once, name, broker, seed: int):
    run_odd_records(spark, run_once, name, broker, seed, 10_000)
