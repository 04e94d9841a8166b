"""python -m include.ledger verify [TABLE ...]: what was consumed against what was written, batch by batch."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from include.errors import Broken, Unbalanced
from include.ledger import verify_quarantine
from include.ledger.batch_files import Appends
from include.ledger.verify_offsets import PLACE, Arrived, check, columns, unaccounted, why_missing
from include.readers import batches, offset_ranges, refreshes
from include.readers.batches import HELD, BatchHistory, BatchRecord, Other
from include.readers.delta_log import Log
from include.readers.resume_position import behind_replacements
from include.settings import settings
from include.spec import Append, Delta, Files, Kafka, Table


@dataclass
class Verification:
    """One table without a difference. ranges: how many of a partition were counted, row by row. refreshes: of a view.

    notes: what is right although numbers differ, and what could not be looked at, and why.
    """

    table: str
    batches: int = 0
    ranges: int = 0
    refreshes: int = 0
    notes: list[str] = field(default_factory=list)


def verify(table: Table) -> Verification:
    """Raises Unbalanced at the first difference, Unreachable and Broken."""
    if table.is_view:
        return Verification(
            table.name, refreshes=len(list(refreshes.of_view(table.name))), notes=refreshes.verify(table.name)
        )
    account = BatchHistory(table)
    newest_first = list(account.entries())
    entries = [one for one in reversed(newest_first) if isinstance(one, BatchRecord)]
    others = [one for one in newest_first if isinstance(one, Other)]
    verdict = Verification(table.name, sum(one.state in HELD for one in entries))
    for one in entries:
        if one.state in (batches.MISSING, batches.DOUBLED):
            how = "has no commit in the table's log" if one.state == batches.MISSING else "was committed twice"
            raise Unbalanced(f"{one.name} {how}: see inspect {table.name}")
    for flow in dict.fromkeys(one.flow for one in entries):
        own = [one for one in entries if one.flow == flow and one.state in HELD]
        declared = next((one for one in table.flows if one.flow == flow), None)
        verdict.notes += _order(account, own)
        for entry in own:
            _tally(table, entry)
        if declared is None:
            verdict.notes.append(f"{flow} is declared no more: what it read is not counted again")
        elif isinstance(declared.source, Delta):
            verdict.notes += _source_rows(declared, declared.source, own)
    if all(isinstance(one.source, Kafka) for one in table.flows):
        _records(account, [one for one in entries if one.state in HELD], others, verdict)
    elif isinstance(table.source, Files):
        verify_quarantine.files(table)
    if isinstance(table.write, Append):
        verdict.notes += _total(account, entries, others)
    if table.has_quarantine and settings().is_stored(table.quarantine) and not isinstance(table.source, Files):
        verdict.notes += verify_quarantine.rows(table, entries)
    return verdict


def _order(account: BatchHistory, own: list[BatchRecord]) -> Iterator[str]:
    """That each batch begins where the one before ended, and that a restart goes on where the last one did."""
    for one, following in zip(own, own[1:], strict=False):
        is_files = isinstance(one.source_to, dict) and "logOffset" in one.source_to
        if one.generation != following.generation and is_files:
            continue
        how = offset_ranges.difference(one.source_to, following.source_from)
        if how is None:
            continue
        if one.generation != following.generation and _is_behind_a_replacement(one, following):
            yield f"{following.name} goes on where its source was backfilled or rewound behind what {one.name} had read"
            continue
        if one.generation != following.generation and (loss := verify_quarantine.accepted(following)):
            yield f"{following.name} goes on behind a loss that was accepted: {loss}"
            continue
        raise Unbalanced(f"{following.name} does not begin where {one.name} ended: {how}")
    if own and (generation := account.generations(own[-1].flow).get(own[-1].generation)):
        done = max((one.batch for one in own if one.generation == own[-1].generation), default=-1)
        is_newest = own[-1].generation == max(account.generations(own[-1].flow))
        if is_newest and generation.done > done:
            raise Unbalanced(
                f"{own[-1].flow}: its checkpoint is done up to batch {generation.done}, and the table's last one is "
                f"{own[-1].name}: a start would leave out what lies between"
            )


def _is_behind_a_replacement(one: BatchRecord, following: BatchRecord) -> bool:
    said = one.source or {}
    if "table" not in said or one.source != following.source or following.source_from is None:
        return False
    source = Delta(said["table"], changes=said.get("changes", False))
    # What was replaced later, right behind that, was not there yet when it began.
    begun = behind_replacements(one.source_to, source, before=following.source_from["reservoirVersion"])
    return offset_ranges.difference(begun, following.source_from) is None


def _tally(table: Table, entry: BatchRecord) -> None:
    tally = entry.tally
    if tally is None:
        return
    written = tally["kept"] if entry.rows is None else entry.rows
    if tally["read"] != tally["kept"] + tally["quarantined"] + tally["dropped"]:
        raise Unbalanced(f"{entry.name} read {tally['read']:,} rows, and accounts for others: {tally}")
    duplicates = tally["kept"] - written
    may_repeat = isinstance(table.write, Append) and bool(table.write.unique)
    if duplicates < 0 or (duplicates and not may_repeat):
        raise Unbalanced(f"{entry.name} kept {tally['kept']:,} rows, and version {entry.version} wrote {written:,}")


def _source_rows(flow: Table, source: Delta, own: list[BatchRecord]) -> Iterator[str]:
    """That the files it was handed hold as many rows as it read."""
    appends = Appends(Log(settings().table_path(source.table)), source)
    # What is no more in the log of the source, or is changes, is told once.
    unread: dict[str, int] = {}
    shaped = 0
    for entry in own:
        if entry.tally is None:
            continue
        try:
            counts = [one.rows for one in appends.of(entry)]
        except Broken as error:
            unread[str(error)] = unread.get(str(error), 0) + 1
            continue
        held = sum(count for count in counts if count is not None)
        if None in counts or held == entry.tally["read"]:
            continue
        if not any(one.transform for one in (flow, *flow.steps)):
            what = offset_ranges.say(entry.source, entry.source_from, entry.source_to)
            raise Unbalanced(f"{entry.name} read {entry.tally['read']:,} rows, and {what} holds {held:,}")
        shaped += 1
    yield from (f"{flow.flow}, {count:,} batches: {why}" for why, count in unread.items())
    if shaped:
        yield f"{flow.flow}: in {shaped:,} batches its transform makes more or fewer rows than it is given"


def _records(account: BatchHistory, held: list[BatchRecord], others: list[Other], verdict: Verification) -> None:
    """That each range that was read is in the table, each record once."""
    table = account.table
    if not set(PLACE) <= columns(table.name) or any(one.transform for one in table.flows):
        verdict.notes.append(f"{table.name} does not keep each record as it came: only its totals were counted")
        return
    arrived, told = Arrived(table.name), 0
    empty: dict[str, int] = {}
    for entry in held:
        begin = entry.source_from
        if begin is None:
            begin = verify_quarantine.beginning(account, entry)
        for span in offset_ranges.of_kafka(begin, entry.source_to):
            within = arrived.within(span)
            if without := check(entry.name, span, within):
                empty[span.topic] = empty.get(span.topic, 0) + without
            told += len(within)
            verdict.ranges += 1
    verdict.notes += [why_missing(topic, count) for topic, count in empty.items()]
    if account.log.versions[0] == 0 and not any(one.kind == "foreign" for one in others):
        for difference in unaccounted(table.name, arrived.count, told):
            raise Unbalanced(difference)


def _total(account: BatchHistory, entries: list[BatchRecord], others: list[Other]) -> Iterator[str]:
    """That the table holds as many rows as were written into it."""
    log, name = account.log, account.table.name
    strangers = [one for one in others if one.kind == "foreign" and not one.is_undone]
    if log.versions[0] > 0 or strangers:
        why = (
            f"its log begins with version {log.versions[0]}" if log.versions[0] else "others than its flows wrote to it"
        )
        yield f"{name}: its total was not compared with its batches, as {why}"
        return
    live = [file.rows for file in log.state.live]
    written = [one.rows for one in entries if one.state in HELD]
    replays = [log.commit(one.version).rows for one in others if one.kind == "replay" and not one.is_undone]
    if None in live or None in written or None in replays:
        yield f"{name}: its total was not compared with its batches, as a commit does not say its rows"
        return
    more = sum(verify_quarantine.more_by_backfill(log, one.version) for one in others if not one.is_undone)
    total, said = sum(filter(None, live)), sum(filter(None, [*written, *replays])) + more
    if total != said:
        raise Unbalanced(f"{name} holds {total:,} rows, and its commits wrote {said:,}")


def lines(verdict: Verification) -> list[str]:
    """For people: what was found, and below it what is worth a note."""
    counted = f", {verdict.ranges:,} ranges of Kafka counted record by record" if verdict.ranges else ""
    what = f"{verdict.refreshes:,} refreshes" if verdict.refreshes else f"{verdict.batches:,} batches"
    head = f"{verdict.table}: {what}, every row accounted for{counted}"
    return [head, *(f"  {note}" for note in verdict.notes)]
