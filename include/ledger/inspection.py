"""Gathers what `sluice inspect TABLE` shows: batches, other commits, restarts, and the faults of a table."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby, islice

from include.checkpoints import checkpoint_files
from include.checkpoints.checkpoint_files import Restart
from include.delta import commit_history
from include.errors import FlowBroken
from include.flows import batches
from include.flows.batches import STATES_WITH_ROWS, BatchHistory, BatchRecord, Generation, OtherCommit
from include.spec import Table

# Spark keeps about 100 batches. Of a longer checkpoint only the newest files are opened.
MOST_OPENED_BATCHES = 200
RESTORE = "restore it from its backup, or begin a new generation where the table ends (action reset checkpoint)"


@dataclass(frozen=True)
class Fault:
    """A fault of a table or a checkpoint, caused by somebody or by an accident.

    kind, for tables: restored, overwritten, vacuumed, foreign, log cleaned, log with a gap, missing, doubled.
    kind, for checkpoints: checkpoint lost, checkpoint of another flow, checkpoint damaged, checkpoint with a gap.
    """

    kind: str
    sentence: str


def table_faults(history: BatchHistory, entries: Iterable[BatchRecord | OtherCommit]) -> list[Fault]:
    """Returns the faults that a table's commits show. entries: all entries of the history."""
    listed = list(entries)
    name, log = history.table.name, history.log
    faults = [
        Fault("log with a gap", f"{name}: its log lacks versions {missing_versions}: restore them from a backup")
        for missing_versions in [ranges_text(set(range(log.versions[0], log.newest + 1)) - set(log.versions))]
        if missing_versions
    ]
    if log.versions[0] > 0:
        faults.append(Fault("log cleaned", f"{name}: its log begins with version {log.versions[0]}"))
    faults += [
        fault for entry in listed if isinstance(entry, OtherCommit) for fault in _of_other(history, entry, listed)
    ]
    for state, meaning in (
        (batches.MISSING, "Spark is done with them, and the table's log has no commit of theirs"),
        (batches.DUPLICATED, "the table holds a second commit of them, so their rows are in it twice"),
    ):
        faults += [
            Fault(state, f"{name}: batches {batch_words}: {meaning}")
            for batch_words in _batch_ranges(entry for entry in listed if _is_in_state(entry, state))
        ]
    return faults


def checkpoint_faults(history: BatchHistory, entries: Iterable[BatchRecord | OtherCommit]) -> list[Fault]:
    """Returns the faults of all checkpoint generations, missing ones included. entries: all entries of the history."""
    faults = []
    written = [entry for entry in entries if isinstance(entry, BatchRecord) and entry.version is not None]
    for flow in dict.fromkeys([*(flow.flow for flow in history.table.flows), *(batch.flow for batch in written)]):
        generations = history.generations(flow)
        newest = max((batch.generation for batch in written if batch.flow == flow), default=0)
        if newest > max(generations, default=0):
            faults.append(
                Fault(
                    "checkpoint lost",
                    f"{flow}: the table holds batches of generation {newest}, whose checkpoint is gone: {RESTORE}",
                )
            )
        for number, generation in generations.items():
            faults += _of_generation(flow, number, generation)
            unknown_to_checkpoint = [
                batch
                for batch in written
                if (batch.flow, batch.generation, batch.state) == (flow, number, batches.HISTORY)
            ]
            faults += [
                Fault(
                    "checkpoint lost",
                    f"batches {batch_words}: the table holds them, and their checkpoint does not know them: {RESTORE}",
                )
                for batch_words in _batch_ranges(unknown_to_checkpoint)
            ]
    return faults


def _of_other(history: BatchHistory, other: OtherCommit, entries: list[BatchRecord | OtherCommit]) -> Iterator[Fault]:
    name, what = history.table.name, f"version {other.version} ({other.operation})"
    if other.is_undone or other.kind not in ("foreign", "declaration"):
        return
    commit = history.log.commit(other.version)
    lost_batches = _batch_ranges(
        batch for batch in entries if _is_in_state(batch, batches.UNDONE) and (batch.version or 0) < other.version
    )
    without = f"; without batches {', '.join(lost_batches)}" if lost_batches else ""
    if other.operation == "RESTORE":
        restored_to = commit.parameters.get("version") or commit.parameters.get("timestamp")
        yield Fault("restored", f"{name}: {what} restored it to {restored_to}{without}")
    elif commit_history.overwrites(commit):
        yield Fault("overwritten", f"{name}: {what} replaced all it held{without}")
    elif other.operation.startswith("VACUUM"):
        yield Fault("vacuumed", f"{name}: {what} is by nobody Sluice knows: versions before it may be unreadable")
    elif other.kind == "foreign":
        yield Fault("foreign", f"{name}: {what} is by nobody Sluice knows")


def _of_generation(flow: str, number: int, generation: Generation) -> Iterator[Fault]:
    path = generation.path
    try:
        recorded_flow = checkpoint_files.owner(path).get("flow")
        if recorded_flow != flow:
            yield Fault(
                "checkpoint of another flow",
                f"{flow}: its checkpoint {path} is that of {recorded_flow}: restore its own",
            )
    except FlowBroken as error:
        yield Fault("checkpoint damaged", f"{flow}: {error}")
    if generation.planned or generation.committed:
        try:
            checkpoint_files.check_metadata(path / "metadata")
        except FlowBroken as error:
            yield Fault("checkpoint damaged", f"{flow}: {error}")
    for kind, listed in (("offsets", generation.planned), ("commits", generation.committed)):
        # A seeded checkpoint keeps its batch 0 until Spark purges it.
        missing_batches = set(range(min(listed), max(listed))) - listed if listed else set()
        if missing_batches:
            yield Fault(
                "checkpoint with a gap", f"{flow}: {path / kind} lacks {ranges_text(missing_batches)}: {RESTORE}"
            )
    newest, newest_done = max(generation.planned, default=-1), generation.done
    if newest - newest_done not in (0, 1):
        sentence = (
            f"{flow}: {path} plans up to batch {newest} and is done up to {newest_done}, files are missing: {RESTORE}"
        )
        yield Fault("checkpoint with a gap", sentence)
    for listed, read in (
        (generation.planned, checkpoint_files.planned_batch),
        (generation.committed, checkpoint_files.check_commit),
    ):
        for batch in sorted(listed)[-MOST_OPENED_BATCHES:]:
            try:
                read(path, batch)
            except FlowBroken as error:
                yield Fault("checkpoint damaged", f"{flow}: {error}")


def _is_in_state(entry: BatchRecord | OtherCommit, state: str) -> bool:
    return isinstance(entry, BatchRecord) and entry.state == state


def _batch_ranges(entries: Iterable[BatchRecord | OtherCommit]) -> list[str]:
    """Describes batches in words: one string for each flow and generation."""
    places = sorted(
        ((entry.flow, entry.generation), entry.batch) for entry in entries if isinstance(entry, BatchRecord)
    )
    groups = groupby(places, key=lambda place: place[0])
    return [f"{flow} {number}/{ranges_text({batch for _, batch in group})}" for (flow, number), group in groups]


def ranges_text(numbers: set[int]) -> str:
    """Describes numbers as ranges, such as `3 to 7, 9`."""
    ranges = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        first, *rest = [number for _, number in group]
        ranges.append(f"{first} to {rest[-1]}" if rest else f"{first}")
    return ", ".join(ranges)


@dataclass(frozen=True)
class Inspection:
    """The state of a stored table.

    versions: the oldest and the newest version in its log.
    states: the number of batches in each state.
    others: the number of commits of each kind that are not batches.
    rows, files, bytes: what batches added and the table still holds, as far as its log goes back.
    restarts: by flow, None where the checkpoint cannot tell.
    newest: the newest entries, newest first.
    """

    table: str
    versions: tuple[int, int]
    states: dict[str, int]
    others: dict[str, int]
    rows: int
    files: int
    bytes: int
    restarts: dict[str, Restart | None]
    faults: list[Fault]
    newest: list[BatchRecord | OtherCommit]


def inspect(table: Table, limit: int, flow: str | None = None) -> Inspection:
    """Inspects a stored table. With flow, `newest` holds only batches of that flow.

    Raises Unreachable where the table is not stored, and FlowBroken.
    """
    history = BatchHistory(table)
    entries = list(history.entries())
    written = [entry for entry in entries if isinstance(entry, BatchRecord) and entry.state in STATES_WITH_ROWS]
    listed = (entry for entry in entries if flow is None or (isinstance(entry, BatchRecord) and entry.flow == flow))
    return Inspection(
        table=table.name,
        versions=(history.log.versions[0], history.log.newest),
        states=dict(Counter(entry.state for entry in entries if isinstance(entry, BatchRecord))),
        others=dict(Counter(entry.kind for entry in entries if isinstance(entry, OtherCommit))),
        rows=sum(batch.rows or 0 for batch in written),
        files=sum(batch.files or 0 for batch in written),
        bytes=sum(batch.bytes or 0 for batch in written),
        restarts={writer.flow: _restart(history, writer.flow) for writer in table.flows if flow in (None, writer.flow)},
        faults=[*table_faults(history, entries), *checkpoint_faults(history, entries)],
        newest=[
            history.with_checkpoint_details(entry) if isinstance(entry, BatchRecord) else entry
            for entry in islice(listed, limit)
        ],
    )


def _restart(history: BatchHistory, flow: str) -> Restart | None:
    generations = history.generations(flow)
    if not generations:
        return None
    try:
        return checkpoint_files.restart(generations[max(generations)].path)
    except FlowBroken:
        return None


def utc_time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}Z"
