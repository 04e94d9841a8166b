"""Decodes changes of PostgreSQL, in the format of its plugin pgoutput, into events of Debezium.

The format: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html, protocol version 1.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any

# What Debezium writes in place of a large value that the change leaves as it is.
NOT_SENT = "__debezium_unavailable_value"
# Object identifiers of types, from the table pg_type.
BOOL, INTEGERS, FLOATS, DATE, TIMESTAMP, TIMESTAMPTZ = 16, (20, 21, 23), (700, 701), 1082, 1114, 1184
Row = dict[str, Any]
# PostgreSQL counts microseconds from the year 2000.
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Relation:
    """A table of the database. columns: name, type, and whether the column belongs to the key."""

    schema: str
    name: str
    columns: tuple[tuple[str, int, bool], ...]

    def key(self, row: Row) -> Row:
        return {name: row[name] for name, _, is_key in self.columns if is_key}


@dataclass(frozen=True)
class Event:
    """A change in the form of Debezium. key: None for a truncate. is_delete: a tombstone follows."""

    table: str
    key: Row | None
    value: Row

    @property
    def is_delete(self) -> bool:
        return self.value["op"] == "d"


@dataclass
class Decoder:
    """Decodes the messages of one call of `pg_logical_slot_peek_binary_changes`, in order."""

    relations: dict[int, Relation] = field(default_factory=dict)
    _transaction: int = 0
    _commit_millis: int = 0

    def events(self, lsn: int, message: bytes) -> Iterator[Event]:
        """Yields the events of one message. lsn: its position in the log."""
        kind, reader = chr(message[0]), Reader(message[1:])
        if kind == "B":
            _, micros, self._transaction = reader.unpack("!qqI")
            self._commit_millis = int(EPOCH.timestamp() * 1000) + micros // 1000
        elif kind == "R":
            self._describe(reader)
        elif kind in ("I", "U", "D"):
            yield from self._change(lsn, kind, reader)
        elif kind == "T":
            count, _ = reader.unpack("!ib")
            for _ in range(count):
                relation = self.relations[reader.unpack("!I")[0]]
                yield Event(relation.name, None, self._envelope(relation, lsn, "t", None, None))

    def _describe(self, reader: "Reader") -> None:
        [number] = reader.unpack("!I")
        schema, name = reader.text(), reader.text()
        _, count = reader.unpack("!bh")
        columns = []
        for _ in range(count):
            [flags] = reader.unpack("!b")
            column = reader.text()
            type_, _ = reader.unpack("!Ii")
            columns.append((column, type_, bool(flags & 1)))
        self.relations[number] = Relation(schema, name, tuple(columns))

    def _change(self, lsn: int, kind: str, reader: "Reader") -> Iterator[Event]:
        relation = self.relations[reader.unpack("!I")[0]]
        rows: dict[str, Row] = {}
        while not reader.is_at_end:
            # N: the new row. O: the old row. K: the old key.
            kind_of_row = chr(reader.unpack("!b")[0])
            rows[kind_of_row] = _row(relation, reader)
        before, after = rows.get("O") or rows.get("K"), rows.get("N")
        if before and after and relation.key(before) != relation.key(after):
            # As Debezium does it, a change of the key is a delete and an insert.
            yield self._event(relation, lsn, "d", before, None)
            yield self._event(relation, lsn, "c", None, after)
            return
        yield self._event(relation, lsn, {"I": "c", "U": "u", "D": "d"}[kind], before, after)

    def _event(self, relation: Relation, lsn: int, operation: str, before: Row | None, after: Row | None) -> Event:
        key = relation.key(after or before or {})
        return Event(relation.name, key, self._envelope(relation, lsn, operation, before, after))

    def _envelope(self, relation: Relation, lsn: int, operation: str, before: Row | None, after: Row | None) -> Row:
        source = {"schema": relation.schema, "table": relation.name, "lsn": lsn, "ts_ms": self._commit_millis}
        return envelope({**source, "txId": self._transaction}, operation, before, after)


def envelope(source: Row, operation: str, before: Row | None, after: Row | None) -> Row:
    """Returns the value of an event. source: where the change happened, as Debezium describes it."""
    millis = int(datetime.now(UTC).timestamp() * 1000)
    described = {"connector": "postgresql", **source}
    return {"before": before, "after": after, "source": described, "op": operation, "ts_ms": millis}


class Reader:
    """Reads the fields of one message."""

    def __init__(self, message: bytes) -> None:
        self._message, self._at = message, 0

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._message)

    def unpack(self, format_: str) -> tuple[Any, ...]:
        values = struct.unpack_from(format_, self._message, self._at)
        self._at += struct.calcsize(format_)
        return values

    def text(self) -> str:
        """Reads a string that ends with a zero byte."""
        end = self._message.index(0, self._at)
        text = self._message[self._at : end].decode()
        self._at = end + 1
        return text

    def bytes(self, length: int) -> bytes:
        self._at += length
        return self._message[self._at - length : self._at]


def _row(relation: Relation, reader: Reader) -> Row:
    [count] = reader.unpack("!h")
    row: Row = {}
    for name, type_, _ in relation.columns[:count]:
        kind = chr(reader.unpack("!b")[0])
        # n: NULL. u: a large value that is unchanged. t: text.
        if kind == "t":
            row[name] = json_value(reader.bytes(reader.unpack("!i")[0]).decode(), type_)
        else:
            row[name] = NOT_SENT if kind == "u" else None
    return row


def json_value(text: str, type_: int) -> Any:
    """Returns a value of PostgreSQL as Debezium writes it in JSON, decimals as strings."""
    if type_ == BOOL:
        return text in ("t", "true")
    if type_ in INTEGERS:
        return int(text)
    if type_ in FLOATS:
        return float(text)
    if type_ == DATE:
        return (date.fromisoformat(text) - date(1970, 1, 1)).days
    if type_ == TIMESTAMP:
        micros = datetime.fromisoformat(text).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
        return (micros.days * 86_400 + micros.seconds) * 1_000_000 + micros.microseconds
    if type_ == TIMESTAMPTZ:
        return datetime.fromisoformat(text).astimezone(UTC).isoformat().replace("+00:00", "Z")
    return text
