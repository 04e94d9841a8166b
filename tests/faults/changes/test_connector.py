"""What Debezium sends for each type of PostgreSQL becomes the row of the database, in whatever form it comes."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from include.ledger import verify
from include.local import connector
from include.settings import settings
from include.spec import Debezium, Flow, Kafka, Table, Upsert
from tests.support import expected
from tests.support.connect import Connect
from tests.support.flows import FULL, only_in_full_runs, rows_of
from tests.support.postgresql import Server
from tests.support.waiting import wait_until

ERRORS = "_errors ARRAY<STRUCT<field: STRING, message: STRING>>"


@dataclass(frozen=True)
class Column:
    """type: in the database. ddl: in the table of Sluice. value, extreme: values of two rows.

    read: how to read it from the database. `{}` stands for its name.
    """

    type: str
    ddl: str
    value: Any
    extreme: Any = None
    read: str = "{}"


KINDS = {
    "id": Column("BIGINT PRIMARY KEY", "BIGINT", 1, 2**63 - 1),
    "small": Column("SMALLINT", "INT", -3, -(2**15)),
    "number": Column("INTEGER", "INT", 7, 2**31 - 1),
    "narrow": Column("REAL", "FLOAT", 1.5, -65536.5),
    "wide": Column("DOUBLE PRECISION", "DOUBLE", 0.1, 1.7976931348623157e308),
    "amount": Column("NUMERIC(20, 4)", "DECIMAL(20,4)", Decimal("12345.6789"), Decimal(-(10**20) + 1) / 10**4),
    "exact": Column("NUMERIC(38, 18)", "DECIMAL(38,18)", Decimal("0.123456789012345678"), Decimal("9" * 20) + 0),
    "free": Column("NUMERIC", "DECIMAL(30,10)", Decimal("1.10"), Decimal("-1e-10")),
    "price": Column("MONEY", "DECIMAL(19,2)", Decimal("12.34"), Decimal("-0.01"), read="{}::numeric"),
    "flag": Column("BOOLEAN", "BOOLEAN", True, False),
    "mood": Column("mood", "STRING", "happy", "sad"),
    "code": Column("CHAR(3)", "STRING", "a  ", "   "),
    # Kafka Connect can write the default where the row has NULL.
    "name": Column("VARCHAR(50) DEFAULT 'nobody'", "STRING", "Zoë", ""),
    "body": Column("TEXT", "STRING", 'é 😀 "quoted" \\ and\nmore', "__debezium_unavailable_valu"),
    "bytes": Column("BYTEA", "BINARY", b"\x00\x01\xff", b""),
    "local": Column("TIMESTAMP", "TIMESTAMP_NTZ", datetime(2026, 3, 1, 12, 34, 56, 123456), datetime.min),
    "local0": Column("TIMESTAMP(0)", "TIMESTAMP_NTZ", datetime(2026, 3, 1, 12, 34, 56), datetime(1, 1, 1)),
    "local3": Column(
        "TIMESTAMP(3)", "TIMESTAMP_NTZ", datetime(1969, 12, 31, 23, 59, 59, 999000), datetime(9999, 12, 31)
    ),
    "moment": Column(
        "TIMESTAMPTZ", "TIMESTAMP", datetime(2026, 3, 1, 12, 34, 56, 123456, UTC), datetime(9999, 12, 31, tzinfo=UTC)
    ),
    "moment0": Column("TIMESTAMPTZ(0)", "TIMESTAMP", datetime(2026, 3, 1, 12, 34, 56, tzinfo=UTC)),
    "day": Column("DATE", "DATE", date(2026, 3, 1), date.max),
    "numbers": Column("INTEGER[]", "STRING", [1, None, 3], [], read="to_json({})::text"),
    "texts": Column("TEXT[]", "STRING", ["a", None, 'q"x,{}'], [""], read="to_json({})::text"),
    "document": Column("JSON", "STRING", '{"a": 1.10, "b":[1, null]}', "null", read="{}::text"),
    "binary_document": Column("JSONB", "STRING", '{"a": 1.10, "b": [1, null]}', "[]", read="{}::text"),
    "uuid": Column("UUID", "STRING", "0191a2b3-0000-7000-8000-00000000000a", read="{}::text"),
    "duration": Column("INTERVAL", "STRING", "P1Y2M3DT4H5M6.789S", read="{}::text"),
}
# Large enough for a table of their own: PostgreSQL does not send what a change leaves as it is.
NOTES = {
    "id": Column("BIGINT PRIMARY KEY", "BIGINT", 1),
    "title": Column("TEXT", "STRING", "first"),
    "body": Column("TEXT", "STRING", "body " * 2_000),
    "bytes": Column("BYTEA", "BINARY", b"\x00\xff" * 5_000),
    "numbers": Column("INTEGER[]", "STRING", list(range(3_000)), read="to_json({})::text"),
    "texts": Column("TEXT[]", "STRING", [f"text {number}" for number in range(1_000)], read="to_json({})::text"),
    "document": Column("JSONB", "STRING", json.dumps({"key": "value " * 2_000}), read="{}::text"),
}
MILLIS = {"local0": "millis", "local3": "millis"}
WITH_SCHEMAS = {"value.converter.schemas.enable": "true"}


@dataclass(frozen=True)
class Form:
    """properties: of the connector, beside those of the example. parse: arguments of `Debezium`.

    without: columns that this form changes.
    """

    properties: dict[str, str] = field(default_factory=dict)
    parse: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()


UNWRAPPED = {
    "transforms": "unwrap",
    "transforms.unwrap.type": "io.debezium.transforms.ExtractNewRecordState",
    "transforms.unwrap.delete.tombstone.handling.mode": "rewrite",
    # By default, a NULL becomes the default value of its column, whatever the converter does.
    "transforms.unwrap.replace.null.with.default": "false",
    "transforms.unwrap.add.fields": "op,source.lsn,source.ts_ms",
}
# The one that the test of incremental snapshots reads.
PLAIN = Form({"binary.handling.mode": "hex"}, {"integer_times": MILLIS, "binary": "hex"})
# Each form takes seconds.
FORMS = {"unwrapped": Form(UNWRAPPED, {"unwrapped": True, "integer_times": MILLIS})}
FURTHER_FORMS = {
    "schemas": Form({**WITH_SCHEMAS, "decimal.handling.mode": "precise"}),
    "plain": PLAIN,
    "connect_times": Form({"time.precision.mode": "connect"}, {"integer_times": "millis"}, without=("local",)),
    "connect_times_with_schemas": Form({**WITH_SCHEMAS, "time.precision.mode": "connect"}, without=("local",)),
    "microseconds": Form({**WITH_SCHEMAS, "time.precision.mode": "microseconds"}),
    "texts": Form(
        {"time.precision.mode": "isostring", "binary.handling.mode": "base64-url-safe"}, {"binary": "base64-url-safe"}
    ),
    "doubles": Form({**WITH_SCHEMAS, "decimal.handling.mode": "double"}, without=("amount", "exact", "free", "price")),
    "unwrapped_with_schemas": Form({**UNWRAPPED, **WITH_SCHEMAS}, {"unwrapped": True}),
}


class Database:
    """Three tables with random names. notes: without the values that a change leaves as they are."""

    def __init__(self, server: Server, name: str) -> None:
        self.kinds, self.notes, self.signals = (f"{name}_{suffix}" for suffix in ("kinds", "notes", "signals"))
        self.address = f"host=127.0.0.1 port={server.port} user=sluice dbname=postgres"
        self.connection = psycopg.connect(self.address, autocommit=True)
        self.connection.execute("SET intervalstyle = 'iso_8601'; SET TimeZone = 'UTC'")
        if not self.connection.execute("SELECT to_regtype('mood')").fetchone()[0]:
            self.connection.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        for table, columns in ((self.kinds, KINDS), (self.notes, NOTES)):
            listed = ", ".join(f"{column} {kind.type}" for column, kind in columns.items())
            self.connection.execute(f"CREATE TABLE {table} ({listed})")
        self.connection.execute(f"ALTER TABLE {self.kinds} REPLICA IDENTITY FULL")
        for column in ("body", "bytes", "numbers", "texts", "document"):
            self.connection.execute(f"ALTER TABLE {self.notes} ALTER {column} SET STORAGE EXTERNAL")
        self.connection.execute(f"CREATE TABLE {self.signals} (id TEXT PRIMARY KEY, type TEXT, data TEXT)")

    def insert(self, table: str, columns: dict[str, Column], **values: Any) -> None:
        """Insert a row. values: those that differ from the values of the columns."""
        row = {name: column.value for name, column in columns.items()} | values
        places = ", ".join(f"%s::{columns[name].type.split(' DEFAULT')[0].split(' PRIMARY')[0]}" for name in row)
        self.connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", list(row.values()))

    def rows(self, table: str, columns: dict[str, Column], names: tuple[str, ...]) -> list[tuple]:
        reads = ", ".join(columns[name].read.format(name) for name in names)
        return self.connection.execute(f"SELECT {reads} FROM {table} ORDER BY id").fetchall()

    def change_kinds(self) -> None:
        execute, insert = self.connection.execute, self.insert
        insert(self.kinds, KINDS, id=4)
        insert(self.kinds, KINDS, id=5, number=5)
        execute(f"UPDATE {self.kinds} SET number = 8 WHERE id = 1")
        nulls = ", ".join(f"{name} = NULL" for name in KINDS if name != "id")
        execute(f"UPDATE {self.kinds} SET {nulls} WHERE id = 4")
        execute(f"DELETE FROM {self.kinds} WHERE id = 2")
        execute(f"UPDATE {self.kinds} SET id = 6 WHERE id = 5")
        with self.connection.transaction():
            insert(self.kinds, KINDS, id=7)
            execute(f"UPDATE {self.kinds} SET name = 'again' WHERE id = 7")
            execute(f"DELETE FROM {self.kinds} WHERE id = 7")
            insert(self.kinds, KINDS, id=7, name="new")

    def ask_for_snapshot(self) -> None:
        """Ask all connectors for an incremental snapshot of `kinds`."""
        request = json.dumps({"data-collections": [f"public.{self.kinds}"], "type": "incremental"})
        self.connection.execute(f"INSERT INTO {self.signals} VALUES ('now', 'execute-snapshot', %s)", [request])

    def change_notes(self) -> None:
        execute = self.connection.execute
        execute(f"UPDATE {self.notes} SET title = 'second'")
        self.insert(self.notes, NOTES, id=2)
        execute(f"UPDATE {self.notes} SET title = 'third', body = 'short' WHERE id = 2")


@pytest.fixture
def database(server: Server, name: str) -> Iterator[Database]:
    database = Database(server, name)
    yield database
    database.connection.close()


@pytest.fixture
def capture(kafka_connect: Connect, database: Database, name: str) -> Iterator[Any]:
    """`capture(forms)` adds a connector for each form, and returns their slots by form."""
    slots: list[str] = []

    def start(forms: dict[str, Form]) -> dict[str, str]:
        slots_by_form = {form: f"{name}_{form}" for form in forms}
        tables = ",".join(rf"public\.{table}" for table in (database.kinds, database.notes, database.signals))
        for form, slot in slots_by_form.items():
            example = connector.debezium(database.connection, {f"public.{database.kinds}": ""}, slot)
            # Each table has a topic of its own.
            plain = {key: value for key, value in example.items() if not key.startswith("transforms")}
            properties = {
                "table.include.list": tables,
                "signal.data.collection": f"public.{database.signals}",
                "interval.handling.mode": "string",
                "heartbeat.interval.ms": "0",
            }
            slots.append(slot)
            kafka_connect.add(slot, {**plain, **properties, **forms[form].properties})
        return slots_by_form

    yield start
    for slot in slots:
        kafka_connect.remove(database.connection, slot)


def silver(slot: str, source: str, columns: dict[str, Column], form: Form, is_partial: bool = False) -> Table:
    """The table that follows `source`, a table of the database."""
    into = tuple(name for name in columns if name not in form.without)
    return Flow(
        name=f"silver.{slot}{'_notes' * is_partial}",
        comment="as the database has it",
        source=Kafka(f"{slot}.public.{source}"),
        schema=", ".join(f"{name} {columns[name].ddl}" for name in into) + f", _sequence BIGINT, {ERRORS}",
        parse=Debezium("value", into=into, **form.parse),
        write=Upsert(("id",), sequence_by="_sequence", deletes="_op = 'd'", truncates="_op = 't'", partial=is_partial),
    )


def assert_follows(table: Table, database: Database, source: str, columns: dict[str, Column]) -> None:
    """Assert that the table has the rows of the database, value by value, and that nothing is left out."""
    into = table.parse.into
    stored = sorted(tuple(row[name] for name in into) for row in rows_of(table.name))
    assert stored == database.rows(source, columns, into)
    assert not rows_of(table.quarantine)
    assert all(not row["_errors"] for row in rows_of(table.name))
    verify.verify(table)


def follow(
    database: Database, capture, kafka_connect: Connect, run_once, forms: dict[str, Form], with_notes: Iterable[str]
) -> None:
    """Assert that a table follows the database in each form. with_notes: forms of which `notes` is followed, too."""
    extremes = {name: column.extreme for name, column in KINDS.items()}
    database.insert(database.kinds, KINDS)
    database.insert(database.kinds, KINDS, **(dict.fromkeys(KINDS) | {"id": 2}))
    database.insert(database.kinds, KINDS, **extremes)
    database.insert(database.notes, NOTES)
    slots = capture(forms)
    kafka_connect.wait_for_changes(database.connection, *slots.values())
    database.change_kinds()
    database.change_notes()
    kafka_connect.wait_for_changes(database.connection, *slots.values())
    kinds = [silver(slots[form], database.kinds, KINDS, forms[form]) for form in forms]
    notes = [silver(slots[form], database.notes, NOTES, forms[form], is_partial=True) for form in with_notes]
    run_once(*kinds, *notes)
    for table in kinds:
        assert_follows(table, database, database.kinds, KINDS)
    for table in notes:
        assert_follows(table, database, database.notes, NOTES)


def test_each_type_arrives_as_the_database_has_it(database: Database, capture, kafka_connect: Connect, run_once):
    follow(database, capture, kafka_connect, run_once, FORMS, FORMS if FULL else ())


@only_in_full_runs
def test_each_type_arrives_in_further_forms_too(database: Database, capture, kafka_connect: Connect, run_once):
    follow(database, capture, kafka_connect, run_once, FURTHER_FORMS, FURTHER_FORMS)


def test_rows_of_an_incremental_snapshot_fill_what_is_missing_and_overwrite_no_change(
    database: Database, capture, kafka_connect: Connect, run_once
):
    connection, form = database.connection, PLAIN
    for number in range(1, 6):
        database.insert(database.kinds, KINDS, id=number)
    [slot] = capture({"plain": form}).values()
    kafka_connect.wait_for_changes(connection, slot)
    table = silver(slot, database.kinds, KINDS, form)
    # A row that the connector does not see when it is inserted.
    connection.execute(f"ALTER PUBLICATION {slot} DROP TABLE {database.kinds}")
    database.insert(database.kinds, KINDS, id=6)
    connection.execute(f"ALTER PUBLICATION {slot} ADD TABLE {database.kinds}")
    connection.execute(f"UPDATE {database.kinds} SET number = 1 WHERE id = 1")
    connection.execute(f"DELETE FROM {database.kinds} WHERE id = 2")
    database.ask_for_snapshot()
    wait_until(lambda: snapshot_rows(slot, database) >= 5, 120)
    connection.execute(f"UPDATE {database.kinds} SET number = 3 WHERE id = 3")
    kafka_connect.wait_for_changes(connection, slot)
    run_once(table)
    assert_follows(table, database, database.kinds, KINDS)


def snapshot_rows(slot: str, database: Database) -> int:
    """The number of rows that the connector has sent in incremental snapshots."""
    messages = expected.messages(settings().kafka, f"{slot}.public.{database.kinds}")
    events = [json.loads(message.value) for message in messages if message.value]
    return sum(event["source"]["snapshot"] == "incremental" for event in events)


@only_in_full_runs
def test_a_transaction_that_is_open_while_the_connector_begins_is_not_lost(
    database: Database, capture, kafka_connect: Connect, run_once
):
    connection, form = (
        database.connection,
        Form({**PLAIN.properties, "snapshot.mode": "no_data"}, PLAIN.parse),
    )
    database.insert(database.kinds, KINDS, id=1)
    first, second, third = (psycopg.connect(database.address) for _ in range(3))
    write = f"INSERT INTO {database.signals} (id) VALUES (%s)"
    first.execute(write, ["first"])
    [slot] = capture({"plain": form}).values()
    # The slot waits for the first transaction, and then for the second. The third is open when it begins.
    waits = "SELECT FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT%%' AND wait_event = 'transactionid'"
    wait_until(lambda: connection.execute(waits).fetchall(), 60)
    second.execute(write, ["second"])
    first.commit()
    pid = second.info.backend_pid
    blocked = (
        f"SELECT FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted AND {pid} = ANY(pg_blocking_pids(pid))"
    )
    wait_until(lambda: connection.execute(blocked).fetchall(), 60)
    third.execute(f"UPDATE {database.kinds} SET name = 'new' WHERE id = 1")
    second.commit()
    begun = "SELECT FROM pg_replication_slots WHERE slot_name = %s AND active AND confirmed_flush_lsn IS NOT NULL"
    wait_until(lambda: connection.execute(begun, [slot]).fetchall(), 60)
    third.commit()
    kafka_connect.wait_for_changes(connection, slot)
    database.ask_for_snapshot()
    wait_until(lambda: snapshot_rows(slot, database) == 1, 120)
    table = silver(slot, database.kinds, KINDS, form)
    run_once(table)
    assert_follows(table, database, database.kinds, KINDS)
    for transaction in (first, second, third):
        transaction.close()
