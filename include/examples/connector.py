"""Sends the rows of a PostgreSQL table to Kafka, and then each change of it, until SIGTERM or Ctrl+C.

python -m include.examples.connector --database "host=... dbname=billing" --table purchases --topic billing.purchases

It writes events of Debezium, as JSON without their schema, and stands in for it where there is none. The database needs
`wal_level=logical`. A change may be sent repeatedly, for example after a kill, but none is left out.
"""

import argparse
import json
import signal
import sys
import time
from dataclasses import dataclass
from types import FrameType
from typing import Any

import psycopg
from confluent_kafka import KafkaError, Message, Producer
from psycopg import sql

from include.errors import Unreachable, report
from include.examples import pgoutput
from include.examples.pgoutput import Decoder, Event
from include.readers.kafka import cluster
from include.readers.kafka.cluster import Cluster

POLL_SECONDS = 0.5
CHANGES_PER_CALL = 1_000
# The table that notes which slots have sent all rows.
SNAPSHOTS = "sluice_snapshots"
# The columns of a table: name, type, and whether the column belongs to the key.
COLUMNS = """
    SELECT attname, atttypid::bigint, attnum = ANY(COALESCE(indkey::smallint[], '{}'))
    FROM pg_attribute LEFT JOIN pg_index ON indrelid = attrelid AND indisprimary
    WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", required=True, help="connection string of PostgreSQL")
    parser.add_argument("--table", required=True, help="table of the database, in the schema public")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--cluster", help="name of the Kafka cluster; without it, the cluster of SLUICE_KAFKA")
    parser.add_argument("--slot", default="sluice", help="replication slot and publication, default sluice")
    arguments = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    connector = Connector(
        arguments.database, arguments.table, arguments.topic, cluster.named(arguments.cluster), arguments.slot
    )
    connector.begin()
    while True:
        if not connector.send_changes():
            time.sleep(POLL_SECONDS)


@dataclass
class Connector:
    """Reads one table of a database by logical decoding. slot: also the name of the publication."""

    database: str
    table: str
    topic: str
    kafka: Cluster
    slot: str = "sluice"

    def __post_init__(self) -> None:
        self._connection = psycopg.connect(self.database, autocommit=True)
        # One connection to the broker for each partition keeps the order of a key.
        self._producer = self.kafka.client(Producer, {"enable.idempotence": True, "linger.ms": 5})

    def begin(self) -> None:
        """Creates the publication and the slot, and sends all rows, unless an earlier process has done so."""
        names = {"slot": sql.Identifier(self.slot), "table": sql.Identifier(self.table)}
        self._connection.execute(f"CREATE TABLE IF NOT EXISTS {SNAPSHOTS} (slot text PRIMARY KEY)")
        if self._one("SELECT count(*) FROM pg_publication WHERE pubname = %s", self.slot) == 0:
            self._connection.execute(sql.SQL("CREATE PUBLICATION {slot} FOR TABLE {table}").format(**names))
        if self._one("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", self.slot) == 0:
            self._connection.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self.slot])
        if self._one(f"SELECT count(*) FROM {SNAPSHOTS} WHERE slot = %s", self.slot) == 0:
            self._send_rows()
            self._connection.execute(f"INSERT INTO {SNAPSHOTS} VALUES (%s)", [self.slot])

    def close(self) -> None:
        self._connection.close()

    def send_changes(self) -> int:
        """Sends the changes since the last call, and returns their number."""
        changes = self._connection.execute(
            "SELECT lsn - '0/0'::pg_lsn, data FROM pg_logical_slot_peek_binary_changes"
            "(%s, NULL, %s, 'proto_version', '1', 'publication_names', %s)",
            [self.slot, CHANGES_PER_CALL, self.slot],
        ).fetchall()
        decoder, count = Decoder(), 0
        for lsn, message in changes:
            for event in decoder.events(int(lsn), bytes(message)):
                self._send(event)
                count += 1
        if changes:
            self._flush()
            # Only now: after a kill, PostgreSQL shows the changes again.
            self._connection.execute(
                "SELECT pg_replication_slot_advance(%s, '0/0'::pg_lsn + %s::numeric)", [self.slot, changes[-1][0]]
            )
        return count

    def _send_rows(self) -> None:
        """Sends all rows as of now. Changes since the creation of the slot follow, and have a greater position."""
        lsn = int(
            self._one(
                "SELECT confirmed_flush_lsn - '0/0'::pg_lsn FROM pg_replication_slots WHERE slot_name = %s", self.slot
            )
        )
        source = {"schema": "public", "table": self.table, "lsn": lsn, "ts_ms": int(time.time() * 1000)}
        columns = self._connection.execute(COLUMNS, [self.table]).fetchall()
        texts = sql.SQL(", ").join(sql.SQL("{}::text").format(sql.Identifier(name)) for name, _, _ in columns)
        rows = self._connection.execute(sql.SQL("SELECT {} FROM {}").format(texts, sql.Identifier(self.table)))
        for row in rows:
            after = {
                name: None if text is None else pgoutput.json_value(text, type_)
                for (name, type_, _), text in zip(columns, row, strict=True)
            }
            key = {name: after[name] for name, _, is_key in columns if is_key}
            self._send(Event(self.table, key, pgoutput.envelope(source, "r", None, after)))
        self._flush()

    def _send(self, event: Event) -> None:
        key = None if event.key is None else json.dumps(event.key).encode()
        for value in (json.dumps(event.value).encode(), *([None] if event.is_delete else [])):
            while True:
                try:
                    self._producer.produce(self.topic, value, key, on_delivery=_delivered)
                    break
                except BufferError:
                    self._producer.poll(0.5)

    def _flush(self) -> None:
        if self._producer.flush(60):
            raise Unreachable(f"the broker at {self.kafka} accepts no changes: read its log")

    def _one(self, query: str, *values: object) -> Any:
        row = self._connection.execute(query, values).fetchone()
        assert row
        return row[0]


def _delivered(error: KafkaError | None, _message: Message) -> None:
    if error:
        raise Unreachable(f"the broker refused a change ({error}): read its log")


def _exit(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


if __name__ == "__main__":
    report(main)
