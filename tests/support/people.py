"""Tables of persons over a topic, which tell whose a row is, and what they hold by plain Python."""

import base64
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from include.catalog import Catalog
from include.lake import locations
from include.spec import Delta, Expect, Flow, Kafka, Table, Upsert, View
from tests.support.expected import Message
from tests.support.flows import rows_of

# With these, an erasure has twenty tables and a hundred places.
ARCHIVES = 16
OTHERS = tuple(f"person-{number:02}" for number in range(20))
# Each number that it divides is quarantined.
BROKEN = 50
NEW_VALUES = ("insert", "update_postimage")
TYPED = "person STRING, email STRING, number INT, partition INT, offset BIGINT"


def typed(rows: Any) -> Any:
    text = "CAST(value AS STRING)"
    person, email, number = (f"get_json_object({text}, '$.{field}')" for field in ("person", "email", "number"))
    columns = f"{person} AS person|{email} AS email|CAST({number} AS INT) AS number|partition|offset".split("|")
    return rows.selectExpr(*columns, f"CAST({number} AS INT) % 3 AS shelf")


def latest(rows: Any) -> Any:
    return rows.selectExpr("person", "email", "number", "offset * 2 + partition AS place")


def counts(rows: Any) -> Any:
    return rows.groupBy("person").count().withColumnRenamed("count", "rows")


def record(person: str, number: int) -> str:
    note = base64.b64encode(f"from {person}".encode()).decode()
    return json.dumps({"person": person, "email": f"{person}@example.org", "note": note, "number": number})


@dataclass(frozen=True)
class People:
    """What streams write: records, typed rows in partitions with a quarantine, the latest row of each person, and the
    changes of these. A view: how many rows each person has. Archives: tables that nobody writes any more.
    """

    name: str
    topic: str

    @property
    def bronze(self) -> Flow:
        subject = "get_json_object(CAST(value AS STRING), '$.person')"
        return Flow(name=f"bronze.{self.name}", comment="as it came", source=Kafka(self.topic), subject=subject)

    @property
    def silver(self) -> Flow:
        return Flow(
            name=f"silver.{self.name}",
            comment="typed",
            source=Delta(self.bronze.name),
            schema=f"{TYPED}, shelf INT",
            transform=typed,
            expect=(Expect("is_sound", f"number % {BROKEN} <> 0"),),
            partition_by=("shelf",),
            subject="person",
        )

    @property
    def latest(self) -> Flow:
        return Flow(
            name=f"gold.{self.name}_latest",
            comment="the latest of each person",
            source=Delta(self.silver.name),
            schema="person STRING, email STRING, number INT, place BIGINT",
            transform=latest,
            write=Upsert(("person",), sequence_by="place"),
            properties={"delta.enableChangeDataFeed": "true"},
            subject="person",
        )

    @property
    def changes(self) -> Flow:
        return Flow(
            name=f"gold.{self.name}_changes",
            comment="each change of the latest",
            source=Delta(self.latest.name, changes=True),
            schema="person STRING, number INT, _change_type STRING, _commit_version BIGINT",
            subject="person",
        )

    @property
    def counts(self) -> View:
        return View(
            name=f"gold.{self.name}_counts",
            comment="rows of each person",
            source=Delta(self.silver.name),
            schema="person STRING, rows BIGINT",
            transform=counts,
        )

    @property
    def archives(self) -> tuple[Flow, ...]:
        schema, names = "person STRING, number INT", (f"silver.{self.name}_{number:02}" for number in range(ARCHIVES))
        return tuple(
            Flow(name=name, comment="old", source=Delta(self.bronze.name), schema=schema, subject="person")
            for name in names
        )

    def fill_archives(self, subject: str) -> None:
        """Each holds a row of the subject, and one of each other person."""
        people = pa.table({"person": [subject, *OTHERS], "number": pa.array(range(len(OTHERS) + 1), pa.int32())})
        for table in self.archives:
            write_deltalake(locations.table_path(table.name), people)

    @property
    def flows(self) -> tuple[Flow, ...]:
        return self.bronze, self.silver, self.latest, self.changes

    @property
    def catalog(self) -> Catalog:
        tables: tuple[Table, ...] = (*self.flows, self.counts, *self.archives)
        return Catalog({table.name: table for table in tables})

    def expected(self, messages: list[Message], subject: str) -> dict[str, Any]:
        """What each table holds of everybody but the subject."""
        records = list(_records(messages, subject))
        valid = [(message, row) for message, row in records if row["number"] % BROKEN]
        newest = {row["person"]: row["number"] for _, row in sorted(valid, key=lambda pair: _place(pair[0]))}
        return {
            "bronze": Counter((message.partition, message.offset, message.value) for message, _ in records),
            "silver": Counter(
                (row["person"], row["email"], row["number"], message.partition, message.offset)
                for message, row in valid
            ),
            "quarantine": Counter(
                (message.partition, message.offset) for message, row in records if not row["number"] % BROKEN
            ),
            "latest": newest,
            "changes": newest,
            "counts": dict(Counter(row["person"] for _, row in valid)),
            "archives": {table.name: list(OTHERS) for table in self.archives},
        }

    def stored(self) -> dict[str, Any]:
        """The same by the tables, without the view."""
        of_changes = (
            row for row in rows_of(self.changes.name) if row["_change_type"] in ("insert", "update_postimage")
        )
        columns = ("person", "email", "number", "partition", "offset")
        return {
            "bronze": Counter((row["partition"], row["offset"], row["value"]) for row in rows_of(self.bronze.name)),
            "silver": Counter(tuple(row[name] for name in columns) for row in rows_of(self.silver.name)),
            "quarantine": Counter((row["partition"], row["offset"]) for row in rows_of(self.silver.quarantine)),
            "latest": {row["person"]: row["number"] for row in rows_of(self.latest.name)},
            "changes": {
                row["person"]: row["number"] for row in sorted(of_changes, key=lambda row: row["_commit_version"])
            },
            "archives": {table.name: sorted(row["person"] for row in rows_of(table.name)) for table in self.archives},
        }


def _records(messages: list[Message], subject: str) -> Iterator[tuple[Message, dict[str, Any]]]:
    for message in messages:
        row = json.loads(message.value or b"")
        if row["person"] != subject:
            yield message, row


def _place(message: Message) -> int:
    return message.offset * 2 + message.partition
