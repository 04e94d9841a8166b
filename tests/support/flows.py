"""Flows over the topic of a test, in the shared Spark session."""

import os
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime

import pytest
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database
from include.delta import stored_table
from include.engine.jobs.job_runner import JobRunner
from include.engine.stream.driver import jvm_pid
from include.engine.stream.host import Host
from include.ledger import verify
from include.settings import settings
from include.spec import Bucket, Delta, Expect, Flow, Kafka, Maintenance, Table, Upsert
from tests.support.expected import Message
from tests.support.topic import Topic
from tests.support.waiting import wait_until

FULL = os.environ.get("SLUICE_FAULTS") == "full"
# In short runs, slow flows leave CPU time to the killed jobs, which have a lower priority.
INTERVAL_SECONDS = 0.1 if FULL else 8.0
only_in_full_runs = pytest.mark.skipif(not FULL, reason="left to make faults, for time")


def declared(flow: Flow, **changes: object) -> Table:
    """The table of a flow, with other values in its declaration."""
    return Table(**{field.name: getattr(flow, field.name) for field in fields(Table)} | changes)


def numbers(rows, *extra_columns: str):
    """Columns: number (the value as INT), time (number as seconds since 1970), partition, offset, `extra_columns`."""
    rows = rows.selectExpr("try_cast(CAST(value AS STRING) AS INT) AS number", "partition", "offset", *extra_columns)
    return rows.selectExpr("*", "timestamp_seconds(number) AS time")


def digits(rows):
    rows = numbers(rows).filter("number IS NOT NULL")
    return rows.selectExpr("number % 10 AS digit", "number", "offset * 2 + partition AS place")


def double_numbers(rows):
    return numbers(rows).selectExpr("number * 2 AS number", "partition", "offset", "time")


def sums(rows):
    from pyspark.sql import functions as F

    return rows.groupBy("minute").agg(F.count("*").alias("rows"), F.sum("number").alias("total"))


@dataclass(frozen=True)
class Chain:
    """Three tables: bronze with raw records, silver with numbers, gold with the sums of the numbers by minute.

    Silver quarantines all other values. No table removes duplicates, so a row that is written twice is visible.
    """

    name: str
    topic: Topic

    @property
    def bronze(self) -> Flow:
        return Flow(name=f"bronze.{self.name}", comment="as it came", source=Kafka(self.topic.name))

    @property
    def silver(self) -> Flow:
        return Flow(
            name=f"silver.{self.name}",
            comment="numbers",
            source=Delta(f"bronze.{self.name}"),
            schema="number INT, time TIMESTAMP, partition INT, offset BIGINT",
            transform=numbers,
            expect=(Expect("is_number", "number IS NOT NULL"),),
        )

    @property
    def gold(self) -> Flow:
        return Flow(
            name=f"gold.{self.name}",
            comment="sums",
            source=Delta(f"silver.{self.name}"),
            schema="minute TIMESTAMP, rows BIGINT, total BIGINT",
            transform=sums,
            write=Upsert(keys=("minute",), recompute=Bucket("minute", of="time", unit="minute")),
        )

    @property
    def latest(self) -> Flow:
        """The latest number of each last digit, by place in the topic. A multiple of 7 deletes its digit."""
        return Flow(
            name=f"silver.{self.name}_latest",
            comment="latest numbers",
            source=Delta(f"bronze.{self.name}"),
            schema="digit INT, number INT, place BIGINT",
            transform=digits,
            write=Upsert(("digit",), sequence_by="place", deletes="number % 7 = 0"),
        )

    @property
    def all(self) -> tuple[Flow, Flow, Flow]:
        return self.bronze, self.silver, self.gold

    @property
    def in_windows(self) -> tuple[Flow, Flow, Flow]:
        """The same tables with a maintenance policy that finds work in small tables. Gold is merged only in windows."""
        policy = Maintenance(target_file_mb=0.01, time_travel_hours=0.0001, every_batches=3)
        bronze, silver, gold = (replace(table, maintain=policy, interval_seconds=0.1) for table in self.all)
        return bronze, silver, replace(gold, write=replace(gold.write, in_windows=True))

    @property
    def in_slices(self) -> tuple[Flow, Flow, Flow]:
        """The same tables with a silver table that can be backfilled."""
        bronze, silver, gold = (replace(table, interval_seconds=INTERVAL_SECONDS) for table in self.all)
        return bronze, replace(silver, time_column="time"), gold

    def assert_bronze_holds(self, messages: list[Message]) -> None:
        stored = Counter((row["partition"], row["offset"], row["value"]) for row in rows_of(f"bronze.{self.name}"))
        assert stored == Counter((message.partition, message.offset, message.value) for message in messages)

    def assert_silver_holds(self, messages: list[Message]) -> None:
        stored = Counter((row["partition"], row["offset"], row["number"]) for row in rows_of(f"silver.{self.name}"))
        quarantined = Counter((row["partition"], row["offset"]) for row in rows_of(f"quarantine.silver_{self.name}"))
        assert stored == Counter(
            (message.partition, message.offset, int(message.value)) for message in messages if message.value.isdigit()
        )
        assert quarantined == Counter(
            (message.partition, message.offset) for message in messages if not message.value.isdigit()
        )

    def assert_holds(self, messages: list[Message]) -> None:
        """Assert that each table holds exactly the rows that plain Python computes from these messages."""
        self.assert_bronze_holds(messages)
        self.assert_silver_holds(messages)
        groups = defaultdict(list)
        for number in [int(message.value) for message in messages if message.value.isdigit()]:
            groups[datetime.fromtimestamp(number - number % 60, UTC)].append(number)
        gold = {row["minute"]: (row["rows"], row["total"]) for row in rows_of(f"gold.{self.name}")}
        assert gold == {minute: (len(group), sum(group)) for minute, group in groups.items()}

    def assert_latest_holds(self, messages: list[Message]) -> None:
        places = {message.offset * 2 + message.partition: message.value for message in messages}
        latest = {int(places[place]) % 10: int(places[place]) for place in sorted(places) if places[place].isdigit()}
        stored = {row["digit"]: row["number"] for row in rows_of(self.latest.name)}
        assert stored == {digit: number for digit, number in latest.items() if number % 7}

    def assert_all_arrives(self, tables: tuple[Table, ...]) -> None:
        """Wait until all tables hold all messages, and verify them with the ledger. No producer may run."""
        messages = self.topic.messages()
        number_count = sum(message.value.isdigit() for message in messages)
        wait_for_rows(tables[1], number_count)
        wait_until(lambda: sum(row["rows"] for row in rows_of(tables[2].name)) == number_count, 180)
        self.assert_holds(messages)
        for table in tables:
            verify.verify(table)


def rows_of(table: str) -> list[dict]:
    """All rows of a stored table, read without Spark."""
    return stored_table.dataset(table).to_table().to_pylist()


def wait_for_rows(table: Table, count: int) -> None:
    def has_count() -> bool:
        # The table may not exist yet.
        with suppress(TableNotFoundError):
            return stored_table.open_table(table.name).count() == count
        return False

    wait_until(has_count, 180)


def has_rows(table: Table) -> bool:
    # The table may not exist yet.
    with suppress(TableNotFoundError):
        return bool(rows_of(table.name))
    return False


class Driver:
    """A driver in a thread of this process. tables: the current definitions, which a test may change."""

    def __init__(self, spark: SparkSession, name: str, tables: tuple[Table, ...], is_supervised: bool) -> None:
        self.name, self.tables = name, {table.flow: table for table in tables}
        self.engine = database.connect(settings().control_url)
        self.lease_renewer = LeaseRenewer(self.engine, Holder.here(name, jvm_pid()), 60, lambda reason: os.abort())
        self.host = Host(spark, self.engine, self.lease_renewer, name)
        self.job_runner = JobRunner(spark, self.engine, name)
        self.is_supervised = is_supervised
        self.error: Exception | None = None
        self.thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self.lease_renewer.take([lease.driver_lease(self.name)])
        self.lease_renewer.start()
        orders.begin(self.engine, list(self.tables), by_hand=not self.is_supervised)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.host.run(list(self.tables.values()), self.is_supervised, self.job_runner)
        except Exception as error:
            self.error = error

    def change(self, table: Table, **values: object) -> Table:
        self.tables[table.flow] = replace(table, **values)
        return self.tables[table.flow]

    def query(self, table: Table):
        """The streaming query of a flow; None while it does not run."""
        flow = self.host._flows.get(table.flow)
        return flow and flow.query

    def end(self) -> None:
        commands.execute(self.engine, Command(Action.STOP, tuple(self.tables), "test", "the test is over"))
        self.thread.join(300)
        self.lease_renewer.stop()
        assert not self.thread.is_alive()
