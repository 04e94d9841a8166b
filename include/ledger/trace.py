"""Where a Kafka record or a landed file ended: in which tables, versions and quarantines."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow.compute as pc  # type: ignore[import-untyped]

from include.catalog import Catalog
from include.errors import Unreachable, UsageError
from include.ledger import provenance
from include.ledger.verify_offsets import columns
from include.readers import checkpoint, landing_folder, offset_ranges, stored_rows
from include.readers.batches import HELD, PLANNED, BatchHistory, BatchRecord
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table

FILE = "_filename"


@dataclass(frozen=True)
class Stop:
    """What became of it in one table. versions: that can hold it, by their batches.

    rows: how many of the table's rows are of it now, None where the table does not carry its place. rules: of the rows
    in the quarantine, or the files there, those they broke. sentence: for people.
    """

    table: str
    sentence: str
    versions: tuple[int, ...] = ()
    rows: int | None = None
    rules: tuple[str, ...] = ()
    below: list["Stop"] = field(default_factory=list)


def of_record(tables: Catalog, topic: str, partition: int, offset: int) -> list[Stop]:
    """By every flow that reads the topic. Raises UsageError where none is declared, and Unreachable where none has."""
    sought = {"topic": topic, "partition": partition, "offset": offset}
    stops = []
    for table in tables.tables.values():
        flows = [one.flow for one in table.flows if isinstance(one.source, Kafka)]
        if not flows or not settings().is_stored(table.name):
            continue
        detailed = _told(table, flows)
        if any(topic in (one.source_to or {}) for one in detailed):
            chosen = [one for one in detailed if _spans(one, topic, partition, offset)]
            stops.append(_stop(tables, table, chosen, sought, f"offset {offset} of {topic}/{partition}"))
    declared = [
        one.flow for one in tables.flows.values() if isinstance(one.source, Kafka) and topic in one.source.names
    ]
    if not stops and declared:
        raise Unreachable(f"--topic is '{topic}', and no batch has read it yet: start the flow {declared[0]} first")
    if not stops:
        raise UsageError(f"--topic is '{topic}', and no batch of a stored table has read it: name another topic")
    return stops


def of_file(tables: Catalog, table: Table, name: str) -> Stop:
    """Raises UsageError where the table reads no files, and Broken."""
    if not isinstance(table.source, Files):
        raise UsageError(f"{table.name} is not fed by files: leave out --file, or name a table that is")
    path = f"{landing_folder.file_system(settings().folder(table.source.path))[1]}/{name}"
    chosen = []
    for one in _told(table, [table.flow]):
        home = settings().checkpoints(one.flow) / str(one.generation)
        if any(taken.path == path for taken in landing_folder.of_batch(home, one.source_from, one.source_to)):
            chosen.append(one)
    return _stop(tables, table, chosen, {FILE: name}, f"file '{name}'")


def _told(table: Table, flows: list[str]) -> list[BatchRecord]:
    """All batches of these flows, with their offsets."""
    account = BatchHistory(table)
    found = (one for one in account.batches() if one.flow in flows)
    return [one if one.version is not None else account.detailed(one) for one in found]


def _spans(one: BatchRecord, topic: str, partition: int, offset: int) -> bool:
    ranges = offset_ranges.of_kafka(one.source_from, one.source_to)
    return any((r.topic, r.partition) == (topic, partition) and r.first <= offset < r.after for r in ranges)


def _stop(tables: Catalog, table: Table, entries: list[BatchRecord], sought: dict[str, Any], what: str) -> Stop:
    """entries: its batches that may have brought it."""
    held = [one for one in entries if one.state in HELD]
    versions = tuple(sorted(one.version for one in held if one.version is not None))
    if not held:
        planned = next((one for one in entries if one.state == PLANNED), None)
        why = f"is in batch {planned.name}, which is planned and not written" if planned else "no batch has read yet"
        gone = [f"batch {one.name} had it: {one.state}" for one in entries if one is not planned]
        return Stop(table.name, f"{table.name}: {what} {'; '.join(gone) or why}")
    rows = _count(table.name, sought)
    broken = _rules(table, sought)
    said = [f"{table.name}: {_batches(held)}"]
    if rows is None:
        said.append("its rows do not say where they are from: one of these versions holds it, if any does")
    elif rows:
        said.append(f"{rows:,} rows of the table are of it")
    if broken:
        said.append(f"it is in {table.quarantine}, as it broke {', '.join(map(repr, broken))}")
    elif rows == 0:
        said.append(_why_none(held))
    below = [stop for reader in tables.tables.values() for stop in _readers(tables, table, reader, versions, sought)]
    return Stop(table.name, "; ".join(said), versions, rows, broken, below)


def _readers(
    tables: Catalog, table: Table, reader: Table, versions: tuple[int, ...], sought: dict[str, Any]
) -> Iterator[Stop]:
    flows = [one.flow for one in reader.flows if isinstance(one.source, Delta) and one.source.table == table.name]
    if not flows or not settings().is_stored(reader.name):
        return
    chosen = [one for one in _told(reader, flows) if any(_reaches(one, version) for version in versions)]
    yield _stop(tables, reader, chosen, sought, f"what versions {versions} of {table.name} brought")


def _reaches(one: BatchRecord, version: int) -> bool:
    """Whether a batch read something of a version of its source."""
    if one.source_to is None:
        return False
    first = 0 if one.source_from is None else provenance.first_version(one.source_from)
    return first <= version <= checkpoint.read_version(one.source_to)


def _count(table: str, sought: dict[str, Any]) -> int | None:
    """How many rows of it the table holds; None where it lacks a column of what is sought."""
    known = columns(table)
    # Where all rows are of one topic, tables often leave its name out.
    wanted = {name: value for name, value in sought.items() if name in known}
    if not set(wanted) >= set(sought) - {"topic"}:
        return None
    return int(stored_rows.dataset(table).count_rows(filter=_filter(wanted)))


def _rules(table: Table, sought: dict[str, Any]) -> tuple[str, ...]:
    if not (table.has_quarantine and settings().is_stored(table.quarantine)):
        return ()
    known = columns(table.quarantine)
    wanted = {name: value for name, value in sought.items() if name in known}
    if not set(wanted) >= set(sought) - {"topic"}:
        return ()
    rows = stored_rows.dataset(table.quarantine).to_table(columns=["_rules"], filter=_filter(wanted))
    return tuple(dict.fromkeys(rule for names in rows["_rules"].to_pylist() for rule in names or []))


def _filter(wanted: dict[str, Any]) -> Any:
    condition = None
    for name, value in wanted.items():
        one = pc.field(name) == value
        condition = one if condition is None else condition & one
    return condition


def _batches(held: list[BatchRecord]) -> str:
    said = [f"batch {one.name}, version {one.version}" for one in held[:3]]
    return "; ".join(said) + (f" and {len(held) - 3:,} more" if len(held) > 3 else "")


def _why_none(held: list[BatchRecord]) -> str:
    """Where neither table nor quarantine has a row of it."""
    tallies = [one.tally for one in held if one.tally]
    if not tallies:
        return "no row is of it: the offset holds no record (compaction, transactions), or it is an empty file"
    dropped = sum(one["dropped"] for one in tallies)
    repeated = sum(one.tally["kept"] - one.rows for one in held if one.tally and one.rows is not None)
    rules = ", ".join(sorted({repr(name) for one in tallies for name, count in one["broke"].items() if count}))
    return (
        f"no row is of it: these batches dropped {dropped:,} rows{f' (broken: {rules})' if rules else ''} and left out "
        f"{repeated:,} that repeat another"
    )
