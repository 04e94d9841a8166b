"""What Debezium's connector sends for each type of PostgreSQL becomes the row of the database."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from include.examples import connector
from include.ledger import verify
from include.settings import settings
from include.spec import Debezium, Kafka, Table, Upsert
from tests.support import expected
from tests.support.connect import Connect
from tests.support.flows import rows_of
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
MILLIS = {"local0": "millis", "local3": "millis"}


@dataclass(frozen=True)
class Form:
    """properties: of the connector, beside those of the example. parse: arguments of `Debezium`.

    without: columns that this form changes.
    """

    properties: dict[str, str] = field(default_factory=dict)
    parse: dict[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()


PLAIN = Form({"binary.handling.mode": "hex"}, {"integer_times": MILLIS, "binary": "hex"})


class Database:
    """Two tables with random names."""

    def __init__(self, server: Server, name: str) -> None:
        self.kinds, self.signals = (f"{name}_{suffix}" for suffix in ("kinds", "signals"))
        self.address = f"host=127.0.0.1 port={server.port} user=sluice dbname=postgres"
        self.connection = psycopg.connect(self.address, autocommit=True)
        self.connection.execute("SET intervalstyle = 'iso_8601'; SET TimeZone = 'UTC'")
        if not self.connection.execute("SELECT to_regtype('mood')").fetchone()[0]:
            self.connection.execute("CREATE TYPE mood AS ENUM ('sad', 'happy')")
        listed = ", ".join(f"{column} {kind.type}" for column, kind in KINDS.items())
        self.connection.execute(f"CREATE TABLE {self.kinds} ({listed})")
        self.connection.execute(f"ALTER TABLE {self.kinds} REPLICA IDENTITY FULL")
        self.connection.execute(f"CREATE TABLE {self.signals} (id TEXT PRIMARY KEY, type TEXT, data TEXT)")

    def insert(self, table: str, columns: dict[str, Column], **values: Any) -> None:
        """Insert a row. values: those that differ from the values of the columns."""
        row = {name: column.value for name, column in columns.items()} | values
        places = ", ".join(f"%s::{columns[name].type.split(' DEFAULT')[0].split(' PRIMARY')[0]}" for name in row)
        self.connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({places})", list(row.values()))

    def rows(self, table: str, columns: dict[str, Column], names: tuple[str, ...]) -> list[tuple]:
        reads = ", ".join(columns[name].read.format(name) for name in names)
        return self.connection.execute(f"SELECT {reads} FROM {table} ORDER BY id").fetchall()

    def ask_for_snapshot(self) -> None:
        """Ask all connectors for an incremental snapshot of `kinds`."""
        request = json.dumps({"data-collections": [f"public.{self.kinds}"], "type": "incremental"})
        self.connection.execute(f"INSERT INTO {self.signals} VALUES ('now', 'execute-snapshot', %s)", [request])


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
        tables = ",".join(rf"public\.{table}" for table in (database.kinds, database.signals))
        for form, slot in slots_by_form.items():
            example = connector.debezium(database.connection, f"public.{database.kinds}", "", slot)
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


def silver(slot: str, source: str, columns: dict[str, Column], form: Form) -> Table:
    """The table that follows `source`, a table of the database."""
    into = tuple(name for name in columns if name not in form.without)
    return Table(
        name=f"silver.{slot}",
        comment="as the database has it",
        source=Kafka(f"{slot}.public.{source}"),
        schema=", ".join(f"{name} {columns[name].ddl}" for name in into) + f", _sequence BIGINT, {ERRORS}",
        parse=Debezium("value", into=into, **form.parse),
        write=Upsert(("id",), sequence_by="_sequence", deletes="_op = 'd'", truncates="_op = 't'"),
    )


def assert_follows(table: Table, database: Database, source: str, columns: dict[str, Column]) -> None:
    """Assert that the table has the rows of the database, value by value, and that nothing is left out."""
    into = table.parse.into
    stored = sorted(tuple(row[name] for name in into) for row in rows_of(table.name))
    assert stored == database.rows(source, columns, into)
    assert not rows_of(table.quarantine)
    assert all(not row["_errors"] for row in rows_of(table.name))
    verify.verify(table)


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
