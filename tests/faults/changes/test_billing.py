"""Purchases of a PostgreSQL database reach a table as changes, whatever happens to the connector and to the changes."""

import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from include.catalog import Catalog
from include.errors import SetupError, Unreachable, UsageError
from include.ledger import explain, verify
from include.local import connector
from include.local.connect import KEPT_OFFSETS, OFFSETS
from include.settings import settings
from include.spec import Debezium, Delta, Flow, Kafka, Upsert
from tests.conftest import ROOT
from tests.support import expected
from tests.support.backfills import Backfills
from tests.support.connect import Connect, wait_for_changes
from tests.support.flows import FULL, only_in_full_runs, rows_of
from tests.support.postgresql import Server
from tests.support.topic import Topic
from tests.support.waiting import wait_until

ERRORS = "_errors ARRAY<STRUCT<field: STRING, message: STRING>>"
SCHEMA = (
    f"id INT, document STRING, amount DECIMAL(10,2), paid BOOLEAN, at TIMESTAMP, _sequence BIGINT, {ERRORS}, "
    "partition INT, offset BIGINT"
)
COLUMNS = ("id", "document", "amount", "paid", "at")
PURCHASES = "id INT PRIMARY KEY, document TEXT, amount NUMERIC(10, 2), paid BOOLEAN, at TIMESTAMPTZ"


class Billing:
    """A table of purchases with a random name, the connector that reads it, and the tables that it feeds."""

    def __init__(self, server: Server, kafka_connect: Connect, name: str, topic: str) -> None:
        self.name, self.topic, self._connect = name, topic, kafka_connect
        self.database = f"host=127.0.0.1 port={server.port} user=sluice dbname=postgres"
        self.connection = psycopg.connect(self.database, autocommit=True)
        self.connection.execute(f"CREATE TABLE {name} ({PURCHASES})")
        self.bronze = Flow(name=f"bronze.{name}", comment="as it came", source=Kafka(topic))
        self.silver = Flow(
            name=f"silver.{name}",
            comment="purchases",
            source=Delta(f"bronze.{name}"),
            schema=SCHEMA,
            parse=Debezium("value", into=COLUMNS),
            write=Upsert(("id",), sequence_by="_sequence", deletes="_op = 'd'", truncates="_op = 't'"),
        )

    @property
    def topics(self) -> dict[str, str]:
        return {f"public.{self.name}": self.topic}

    @property
    def offsets(self) -> Path:
        """The file in which a connector of `start_connector` notes its place."""
        return settings().home / "connect" / self.name / OFFSETS

    def close(self) -> None:
        self._connect.remove(self.connection, self.name)
        self.connection.close()

    def send_changes(self) -> None:
        """Wait until the topic has all changes that were committed so far."""
        if self.name not in self._connect.worker.connectors:
            configuration = connector.debezium(self.connection, self.topics, self.name)
            self._connect.add(self.name, configuration)
        self._connect.wait_for_changes(self.connection, self.name)

    def start_connector(self) -> subprocess.Popen:
        arguments = ("--database", self.database, "--table", self.name, "--topic", self.topic, "--slot", self.name)
        return subprocess.Popen(
            [sys.executable, "-m", "include.local.connector", *arguments],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            start_new_session=True,
        )

    def change(self, chance: random.Random) -> None:
        """Change some purchases, in one transaction."""
        with self.connection.transaction():
            for _ in range(chance.randint(1, 4)):
                key, moment = chance.randint(1, 40), datetime.fromtimestamp(chance.randint(0, 10**9), UTC)
                values = [f"page-{chance.randint(1, 9)} 'é'", Decimal(chance.randint(0, 10**6)) / 100, moment]
                match chance.choice(("insert", "insert", "update", "update", "delete", "key")):
                    case "insert":
                        insert = f"INSERT INTO {self.name} VALUES (%s, %s, %s, true, %s) ON CONFLICT DO NOTHING"
                        self.connection.execute(insert, [key, *values])
                    case "update":
                        update = f"UPDATE {self.name} SET document = %s, amount = %s, at = %s WHERE id = %s"
                        self.connection.execute(update, [*values, key])
                    case "delete":
                        self.connection.execute(f"DELETE FROM {self.name} WHERE id = %s", [key])
                    case "key":
                        self.connection.execute(
                            f"UPDATE {self.name} SET id = %s WHERE id = %s AND NOT EXISTS "
                            f"(SELECT FROM {self.name} WHERE id = %s)",
                            [key + 100, key, key + 100],
                        )

    def messages(self) -> list[expected.Message]:
        return expected.messages(settings().kafka, self.topic)

    def wait_for_more(self, sent: int) -> None:
        wait_until(lambda: len(self.messages()) > sent, 60)

    def wait_for_a_place_behind_the_snapshot(self) -> None:
        """Until it is kept, a connector that is killed takes its snapshot again, and sends no delete of before."""

        def is_kept() -> bool:
            # A place moves only with a record.
            self.connection.execute("SELECT pg_logical_emit_message(true, 'marker', '')")
            kept = self.offsets.with_name(KEPT_OFFSETS)
            return kept.exists() and b"lsn_commit" in kept.read_bytes() and b"snapshot" not in kept.read_bytes()

        wait_until(is_kept, 60, poll_seconds=0.5)

    def wait_for_all(self, mark: str) -> None:
        """Wait until the topic has all changes so far, of which the last one writes this mark into a row."""
        values = f"VALUES (0, %s, 0, true, NULL) ON CONFLICT (id) DO UPDATE SET document = '{mark}'"
        self.connection.execute(f"INSERT INTO {self.name} {values}", [mark])
        wait_until(lambda: any(mark.encode() in (message.value or b"") for message in self.messages()), 60)
        wait_for_changes(self.connection, self.name)

    def rows(self) -> list[tuple]:
        return self.connection.execute(f"SELECT {', '.join(COLUMNS)} FROM {self.name} ORDER BY id").fetchall()

    def assert_arrived(self) -> None:
        assert not rows_of(self.silver.quarantine)
        stored = sorted(tuple(row[name] for name in COLUMNS) for row in rows_of(self.silver.name))
        assert stored == self.rows()
        verify.verify(self.silver)


@pytest.fixture
def billing(server: Server, kafka_connect: Connect, name: str) -> Iterator[Billing]:
    topic = Topic(settings().kafka).create(3)
    billing = Billing(server, kafka_connect, name, topic.name)
    yield billing
    billing.close()
    topic.delete()


def explained(billing: Billing, silver: Flow, key: bytes) -> list[str]:
    """For each change of this key in the topic, what `explain` says of it in silver."""
    tables = Catalog({table.name: table for table in (billing.bronze, silver)})
    messages = [message for message in billing.messages() if message.key == key]
    steps = [explain.of_record(tables, billing.topic, message.partition, message.offset)[0] for message in messages]
    return [step.below[0].sentence.split("; ")[-1] for step in steps]


def test_purchases_are_as_the_database_has_them_whatever_becomes_of_the_connector(billing: Billing, run_once):
    chance, kills = random.Random(21), 5 if FULL else 1
    for _ in range(20):
        billing.change(chance)
    process, sent = billing.start_connector(), 0
    try:
        for number in range(60 * kills):
            billing.change(chance)
            if number == 30:
                billing.wait_for_all("the snapshot")
                billing.wait_for_a_place_behind_the_snapshot()
            if number % 60 == 30:
                billing.wait_for_more(sent)
                with pytest.raises(SetupError, match=rf"^--slot is {billing.name}, which another connector uses: "):
                    connector.require(billing.connection, billing.topics, billing.name, patience_seconds=0)
                kill(process)
                # What a kill leaves that comes while Connect writes its file.
                billing.offsets.write_bytes(b"")
                process, sent = billing.start_connector(), len(billing.messages())
        billing.connection.execute(f"TRUNCATE {billing.name}")
        for _ in range(20):
            billing.change(chance)
        billing.wait_for_more(sent)
        billing.wait_for_all("the first time")
        run_once(billing.bronze, billing.silver)
        billing.assert_arrived()

        send_again(billing, chance)
        for _ in range(20):
            billing.change(chance)
        billing.wait_for_all("the second time")
        run_once(billing.bronze, billing.silver)
        billing.assert_arrived()
        process.terminate()
        assert process.wait(60) == 0
    finally:
        kill(process)


def send_again(billing: Billing, chance: random.Random) -> None:
    """Each change once more, in any order."""
    delivered = billing.messages()
    chance.shuffle(delivered)
    producer = Producer({"bootstrap.servers": settings().kafka})
    for message in delivered:
        producer.produce(billing.topic, message.value, message.key)
    assert producer.flush(60) == 0


def kill(process: subprocess.Popen) -> None:
    """SIGKILL to the process and to its worker."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_what_the_database_lacks_is_said_before_the_connector_starts(billing: Billing):
    with pytest.raises(UsageError, match=r"^--table is public\.nothing, which the database has not: "):
        connector.require(billing.connection, {"public.nothing": "nothing"}, "slot")
    with pytest.raises(Unreachable, match=r"^--database does not answer \(.*\): correct it, or start the database$"):
        connector.connect(f"{billing.database} port=1")
    billing.connection.execute("CREATE TABLE sluice_snapshots AS SELECT 'earlier' AS slot")
    with pytest.raises(UsageError, match=r"^--slot is earlier, which the connector of an earlier release used: "):
        connector.require(billing.connection, billing.topics, "earlier")
    connector.require(billing.connection, billing.topics, "later")
    billing.connection.execute("DROP TABLE sluice_snapshots")


@only_in_full_runs
def test_a_change_of_the_schema_of_the_database_loses_nothing(billing: Billing, run_once, spark):
    connection, name = billing.connection, billing.name
    connection.execute(f"INSERT INTO {name} VALUES (1, 'a', 1.50, true, '2026-01-01T00:00:00Z')")
    billing.send_changes()
    connection.execute(f"ALTER TABLE {name} ADD COLUMN coupon TEXT")
    connection.execute(f"INSERT INTO {name} VALUES (2, 'b', 2.50, true, '2026-01-01T00:00:00Z', 'half')")
    connection.execute(f"ALTER TABLE {name} ALTER COLUMN id TYPE BIGINT")
    connection.execute(f"INSERT INTO {name} VALUES (3000000000, 'c', 3.50, true, '2026-01-01T00:00:00Z', NULL)")
    connection.execute(f"ALTER TABLE {name} DROP COLUMN paid")
    connection.execute(f"UPDATE {name} SET amount = 4.50 WHERE id = 1")
    billing.send_changes()
    silver = replace(billing.silver, schema=f"{SCHEMA}, _rescued_data STRING")
    run_once(billing.bronze, silver)
    assert explained(billing, silver, b'{"id":1}') == [
        "no row shows it: a later change of its key counts, or it deletes its key",
        "1 rows of the table are of it",
    ]
    stored = {row["id"]: (row["amount"], row["paid"], row["_rescued_data"]) for row in rows_of(silver.name)}
    assert stored == {
        1: (Decimal("4.50"), None, '{"coupon":null}'),
        2: (Decimal("2.50"), True, '{"coupon":"half"}'),
    }
    [quarantined] = rows_of(silver.quarantine)
    assert (quarantined["id"], quarantined["document"]) == (None, "c")
    assert quarantined["_errors"] == [{"field": "id", "message": "'3000000000' is no INT"}]

    # The file follows the database, and the bronze table still has all of it.
    wider = replace(
        silver,
        schema=SCHEMA.replace("id INT", "id BIGINT") + ", coupon STRING",
        parse=replace(billing.silver.parse, into=(*COLUMNS, "coupon")),
    )
    Backfills(spark, (billing.bronze, wider)).run(wider, as_a_whole=True)
    assert {(row["id"], row["coupon"]) for row in rows_of(wider.name)} == {
        (1, None),
        (2, "half"),
        (3_000_000_000, None),
    }
    assert not rows_of(wider.quarantine)
