"""The commands about rows: rules they broke, quarantines, batches, where a record ended, and the accounting."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from include import catalog
from include.checkpoints import offset_ranges
from include.checkpoints.checkpoint_files import Restart
from include.cli.output import Json, Limit, TableName, moment, show
from include.control import accepted_differences, personal_data
from include.control.requesters import system_user
from include.control.store import database
from include.errors import LedgerMismatch, UsageError
from include.flows.batches import BatchRecord, OtherCommit
from include.lake import locations
from include.ledger import explain, row_outcomes
from include.ledger.explain import Origin, TraceStep
from include.ledger.inspection import Inspection, inspect, utc_time
from include.ledger.quarantine import SHOWN_CHARACTERS, Row, Sample, sample
from include.ledger.row_outcomes import Batch, Rule, batches, rules
from include.ledger.verify import Verification, lines, verify
from include.settings import settings
from include.spec import Table
from include.text_columns import one_line


def show_expectations(table: TableName, limit: Limit = 20, as_json: Json = False) -> None:
    """Show how many rows broke each rule of a table, and what became of the rows of its newest N batches."""
    owner = catalog.load().owner(table)
    newest = batches(owner, limit)
    checked_rules = rules(owner, newest)
    listed = [{**asdict(rule), "pass_rate": rule.pass_rate} for rule in checked_rules]
    document = {"table": owner.name, "rules": listed, "batches": [asdict(batch) for batch in newest]}
    outcomes = [*map(outcome_line, newest)] or [f"no batch of {owner.name} has counted its rows yet"]
    show(as_json, document, [*map(_rule_line, checked_rules), *outcomes])


def _rule_line(rule: Rule) -> str:
    rate = "not judged yet" if rule.pass_rate is None else f"{rule.pass_rate:.2%} of {rule.rows:,} rows pass"
    return f"{rule.name} ({rule.otherwise or 'declared no more'}): {rate}, {rule.broke:,} broke it"


def outcome_line(batch: Batch) -> str:
    """Describes what became of the rows of a batch in one line."""
    broke = ", ".join(f"{count:,} broke '{name}'" for name, count in batch.broke.items() if count)
    kept = [f"{batch.written:,} written", f"{batch.duplicates:,} duplicates"]
    return (
        f"{batch.name}  {moment(batch.at)}  version {batch.version}: "
        f"{batch.read:,} read = {' + '.join(row_outcomes.words(batch.outcomes) if batch.outcomes else kept)} + "
        f"{batch.quarantined:,} quarantined + {batch.dropped:,} dropped{'; ' if broke else ''}{broke}"
    )


def show_quarantine(
    table: TableName,
    limit: Limit = 20,
    show_personal: Annotated[
        bool, typer.Option("--show-personal", help="And personal data; --reason says why.")
    ] = False,
    reason: Annotated[str | None, typer.Option(metavar="WHY", help="For the audit, with --show-personal.")] = None,
    as_json: Json = False,
) -> None:
    """Show the newest N rows of a table's quarantine, and why they are there."""
    owner = catalog.load().owner(table)
    if show_personal:
        owner = personal_data.shown(owner, system_user(), reason)
    newest = sample(owner, limit) if locations.is_stored(owner.quarantine) else Sample([], 0, 0, {})
    document = {"table": owner.name, "quarantine": owner.quarantine, **asdict(newest)}
    nothing = f"{owner.quarantine} holds no rows" if owner.has_quarantine else f"no rule of {owner.name} quarantines"
    is_empty = not newest.rows and newest.total in (0, None)
    show(as_json, document, [nothing] if is_empty else map(one_line, _sample_lines(owner, newest)), default=_text)


def _sample_lines(table: Table, newest: Sample) -> Iterator[str]:
    total = f"{newest.counted:,} or more" if newest.total is None else f"{newest.total:,}"
    yield f"{table.quarantine}: {total} rows; the newest {len(newest.rows):,} of them are shown"
    counted_rows = "" if newest.counted == newest.total else f" of the newest {newest.counted:,}"
    for rule, count in newest.broke.items():
        yield f"  {count:,} rows{counted_rows} are here by '{rule}'"
    for row in newest.rows:
        rules = ", ".join(f"'{rule}'" for rule in row.rules)
        yield f"{row.flow} {row.generation}/{row.batch}  {moment(row.at)}  {rules}  {_origin(row)}"
        if row.reason:
            yield f"    {row.reason}"
        yield from (f"    {error['field']}: {error['message']}" for error in row.errors)
        yield "    " + ", ".join(f"{name}={_cell(value)}" for name, value in row.row.items())


def _origin(row: Row) -> str:
    """Describes where a row came from; if the row does not say, where its batch ended."""
    if "topic" in row.origin:
        return f"{row.origin['topic']}/{row.origin.get('partition')} offset {row.origin.get('offset')}"
    if "_filename" in row.origin:
        index = row.origin.get("_index")
        return str(row.origin["_filename"]) + ("" if index is None else f" record {index}")
    return f"its batch ended at {json.dumps(row.source_to)}"


def _cell(value: Any) -> str:
    text = "NULL" if value is None else value if isinstance(value, str) else json.dumps(value, default=_text)
    text = " ".join(str(text).strip('"').split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[: SHOWN_CHARACTERS - 3]}..."


def _text(value: Any) -> str:
    """Converts a value that JSON cannot represent: bytes, times, decimals."""
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value.isoformat() if isinstance(value, datetime) else str(value)


def show_inspection(
    table: TableName,
    flow: Annotated[str | None, typer.Option(help="Of this flow only, where the table has several.")] = None,
    limit: Limit = 20,
    as_json: Json = False,
) -> None:
    """Show what the newest N batches and commits of a table read and wrote, and what a restart will do."""
    tables = catalog.load()
    declared = tables.table(table)
    if flow:
        tables.flow(flow)
    inspection = inspect(declared, limit, flow)
    show(as_json, asdict(inspection), inspection_lines(inspection))


def inspection_lines(inspection: Inspection) -> Iterator[str]:
    """Describes an inspection for people: the table, its restarts and faults, then its newest batches and commits."""
    counts = [f"{count:,} {kind}" for kind, count in {**inspection.states, **inspection.others}.items()]
    yield (
        f"{inspection.table}: versions {inspection.versions[0]} to {inspection.versions[1]}: "
        f"{', '.join(counts) or 'no batch yet'}"
    )
    yield (
        f"  held by its batches: {inspection.rows:,} rows, added as {inspection.files:,} files, "
        f"{inspection.bytes / 1e6:,.1f} MB"
    )
    for flow, restart in inspection.restarts.items():
        yield from (f"  {flow}: {line}" for line in _restart_lines(restart))
    yield from (f"  {fault.kind.upper()}: {fault.sentence}" for fault in inspection.faults)
    yield from map(entry_line, inspection.newest)


def _restart_lines(restart: Restart | None) -> Iterator[str]:
    if restart is None:
        yield "no checkpoint says what a restart would do"
        return
    if restart.replays is None:
        yield f"a restart replays nothing and plans batch {restart.next_batch}"
    else:
        yield (
            f"a restart replays batch {restart.replays.batch} up to {json.dumps(restart.replays.end)} with its frozen "
            f"settings and today's code, then plans batch {restart.next_batch}"
        )
    # Spark restores the settings of OffsetSeqMetadata at every start, and stores them again with the next batch.
    if restart.conf:
        yield (
            f"the {len(restart.conf)} Spark settings frozen in its checkpoint hold until it has a new generation; a "
            f"changed option of its source (max_offsets, max_files) and the interval hold from batch "
            f"{restart.next_batch} on"
        )
    for batch, sha256 in restart.deployed.items():
        yield f"definition {sha256[:12]} from batch {batch} on"


def entry_line(entry: BatchRecord | OtherCommit) -> str:
    """Describes a batch, or another commit, in one line."""
    if isinstance(entry, OtherCommit):
        undone = (", replaced" if entry.kind == "refresh" else ", undone") if entry.is_undone else ""
        text = f": {entry.note}" if entry.note else ""
        committed = f"version {entry.version} at {utc_time(entry.committed_at)}"
        return f"{entry.operation:<24} {entry.kind:<10} {committed}{undone}{text}"
    text = f"{entry.name:<24} {entry.state:<10}"
    if entry.planned_at:
        text += f" planned at {utc_time(entry.planned_at)},"
    if entry.version is not None:
        amounts = ", ".join(
            f"{count:,} {what}" for what in ("rows", "files", "bytes") if (count := getattr(entry, what)) is not None
        )
        text += f" version {entry.version} at {utc_time(entry.committed_at or 0)}: {amounts or 'rows unknown'},"
    if entry.tally:
        duplicates = entry.tally["kept"] - (entry.tally["kept"] if entry.rows is None else entry.rows)
        outcomes = row_outcomes.of(entry.tally, entry.merged)
        kept = ", ".join(row_outcomes.words(outcomes)) if outcomes else f"{duplicates:,} duplicates"
        text += (
            f" of {entry.tally['read']:,} read, {kept}, {entry.tally['quarantined']:,} quarantined, "
            f"{entry.tally['dropped']:,} dropped,"
        )
    return f"{text} from {offset_ranges.describe(entry.source, entry.source_from, entry.source_to)}"


def show_origin(
    table: Annotated[str | None, typer.Argument(metavar="TABLE", help="With --version or --file.")] = None,
    version: Annotated[
        int | None, typer.Option(metavar="N", help="Of the table: which offsets, versions, files are in it.")
    ] = None,
    file: Annotated[
        str | None, typer.Option(metavar="NAME", help="Below the folder of the table's source: where it ended.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="With --partition and --offset: where that record ended.")] = None,
    partition: Annotated[int | None, typer.Option(metavar="N", help="Of that topic.")] = None,
    offset: Annotated[int | None, typer.Option(metavar="N", help="Of that record.")] = None,
    as_json: Json = False,
) -> None:
    """Show what is in a version of a table, or where a Kafka record or a file ended."""
    tables = catalog.load()
    match table, version, file, topic, partition, offset:
        case str(name), int(number), None, None, None, None:
            origin = explain.of_version(tables, tables.table(name), number)
            show(as_json, asdict(origin), origin_lines(origin))
            return
        case str(name), None, str(file_name), None, None, None:
            steps = [explain.of_file(tables, tables.table(name), file_name)]
        case None, None, None, str(topic_name), int(partition_number), int(record_offset):
            steps = list(explain.of_record(tables, topic_name, partition_number, record_offset))
        case _:
            raise UsageError(
                "explain takes TABLE --version N, TABLE --file NAME, or --topic T --partition P --offset O"
            )
    show(as_json, [asdict(step) for step in steps], (line for step in steps for line in _trace_lines(step)))


def origin_lines(origin: Origin) -> Iterator[str]:
    """Describes an origin for people. The table itself comes first."""
    for entry in origin.entries[:1] if len(origin.entries) == 1 else ():
        what = offset_ranges.describe(entry.source, entry.source_from, entry.source_to)
        yield f"{origin.table} version {entry.version} is batch {entry.name}: {what}"
    if len(origin.entries) > 1:
        versions = [entry.version for entry in origin.entries if entry.version is not None]
        yield f"{origin.table}: {len(origin.entries):,} batches, versions {min(versions)} to {max(versions)}"
    if origin.reads:
        rows = sum(read.rows or 0 for read in origin.reads)
        by_version: dict[tuple[int, bool], set[int]] = {}
        for read in origin.reads:
            by_version.setdefault((read.version, read.is_of_snapshot), set()).add(read.index)
        yield f"  {len(origin.reads):,} files with {rows:,} rows, by (version, index):"
        for (version, is_of_snapshot), indexes in by_version.items():
            what = "snapshot of version" if is_of_snapshot else "version"
            yield f"  {what} {version}, files {min(indexes)} to {max(indexes)}"
    yield from (f"  {range_}{offset_ranges.cluster_words(origin.entries[-1].source)}" for range_ in origin.ranges)
    yield from (f"  file {name}" for name in origin.files)
    if origin.note:
        yield f"  {origin.note}"
    if origin.above:
        yield from origin_lines(origin.above)


def _trace_lines(step: TraceStep, depth: int = 0) -> Iterator[str]:
    yield f"{'  ' * depth}{step.sentence}"
    for step_below in step.below:
        yield from _trace_lines(step_below, depth + 1)


def show_verification(
    table: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE", help="These only; else all that are stored.")
    ] = None,
    accept: Annotated[list[str] | None, typer.Option(metavar="KEY", help="A difference of the one table.")] = None,
    reason: Annotated[str | None, typer.Option(help="Why it is accepted, for the audit.")] = None,
    as_json: Json = False,
) -> None:
    """Compare what was consumed with what was written. A difference ends it with exit code 10."""
    tables = catalog.load()
    named = [tables.table(name) for name in table or ()]
    chosen = named or [stored for stored in tables.tables.values() if locations.is_stored(stored.name)]
    if accept:
        _accept(named, accept, reason)
    results: list[Verification] = []
    differences: list[tuple[Table, LedgerMismatch]] = []
    for declared in chosen:
        try:
            results.append(verify(declared))
        except LedgerMismatch as error:
            differences += [(declared, difference) for difference in error.differences]
        else:
            if not as_json:
                print("\n".join(lines(results[-1])), flush=True)
    sentences = [f"{one} ({_remedy(declared, one)})" for declared, one in differences]
    document = {"tables": [asdict(result) for result in results], "difference": "\n".join(sentences) or None}
    listed = [{"table": declared.name, "key": one.key, "difference": str(one)} for declared, one in differences]
    show(as_json, {**document, "differences": listed}, ())
    if sentences:
        raise LedgerMismatch("\nsluice: ".join(sentences))


def _remedy(table: Table, difference: LedgerMismatch) -> str:
    return f"docs/runbooks/differs.md; once it is known: verify {table.name} --accept {difference.key} --reason '...'"


def _accept(named: list[Table], keys: Iterable[str], reason: str | None) -> None:
    """Raises UsageError for what no verification of the table finds now."""
    if len(named) != 1 or not reason:
        raise UsageError("--accept is for differences of one table: name the table, and write --reason why")
    try:
        verify(named[0])
        found: dict[str, LedgerMismatch] = {}
    except LedgerMismatch as error:
        found = {difference.key: difference for difference in error.differences}
    for key in keys:
        if key not in found:
            raise UsageError(f"{named[0].name} has no difference '{key}': verify {named[0].name} lists them")
        engine = database.connect(settings().control_url)
        accepted_differences.accept(engine, named[0].name, key, str(found[key]), system_user(), reason)
