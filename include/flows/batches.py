"""Lists every batch of every flow of a table, over all generations: its commit joined with its checkpoint files."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from include.checkpoints import checkpoint_files
from include.checkpoints.checkpoint_files import generations, numbers
from include.delta import commit_history, delta_log
from include.delta.delta_log import Commit, DeltaLog
from include.errors import FlowBroken
from include.flows import refreshes
from include.lake import locations
from include.lake.paths import LakePath
from include.spec import Table

# The states of a batch.
PLANNED = "planned"  # Its offsets are in the checkpoint, and it has no commit: a restart replays it.
WRITTEN = "written"  # The table has its commit, Spark's commits folder does not: a restart replays and skips it.
COMMITTED = "committed"
EMPTY = "empty"  # Committed, without rows.
HISTORY = "history"  # The table has its commit, and no checkpoint has it any more.
CLEANED = "cleaned"  # Done by the checkpoint, and its commit was cleaned from the table's log.
ABANDONED = "abandoned"  # Planned, and not written when a new generation began.
UNDONE = "undone"  # A RESTORE or an overwrite removed it from the table.
MISSING = "missing"  # Done by the checkpoint or between two commits, and the log has no commit of it.
DUPLICATED = "doubled"  # A second commit of the same batch.
# The states in which the table holds the batch's rows.
STATES_WITH_ROWS = (WRITTEN, COMMITTED, EMPTY, HISTORY)
# Operations that change no rows. The engine runs them without userMetadata.
DECLARATIONS = ("CREATE TABLE", "SET TBLPROPERTIES", "UNSET TBL", "ADD COLUMNS", "CHANGE COLUMN", "CLUSTER BY")
# The userMetadata key of a commit that replaced a range.
BACKFILL = "backfill"
# Key of the `userMetadata` of the commit by which a replay replaces failed rows of the source by what they make.
RETRIED = "retried"


@dataclass(frozen=True)
class BatchRecord:
    """One batch. Times are in seconds since 1970.

    rows, files, bytes: what its commit added to the table, by Delta's operation metrics.
    source: the topics, table or folder that it read. source_from, source_to: its offsets in Spark's checkpoint format.
    tally: the engine's count of what became of its rows; None where the engine does not count.
    lookups: the version of each table that it has looked into.
    merged: of a MERGE, by Delta's count; empty for others. skipped: by whom it was left out, and why (`who`, `reason`).
    has_lost_stamp: its commit bears no metadata, and its transaction tells which batch it is.
    suppressed: by topic and partition, the offsets of rows that it left out because their subjects were erased.

    Only `BatchHistory.detailed` sets planned_at, and the offsets of a batch without a commit.
    """

    flow: str
    generation: int
    batch: int
    state: str
    version: int | None = None
    committed_at: float | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    source: dict[str, Any] | None = None
    source_from: Any = None
    source_to: Any = None
    tally: dict[str, Any] | None = None
    lookups: dict[str, int] | None = None
    planned_at: float | None = None
    merged: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, str] | None = None
    has_lost_stamp: bool = False
    suppressed: dict[str, list[int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.flow} {self.generation}/{self.batch}"


@dataclass(frozen=True)
class OtherCommit:
    """A commit that is not a batch. note: what a refresh did. erased: what an erasure took out, as its metadata says.

    kind: window, replay, refresh, backfill, rewind, compaction, declaration or foreign.
    """

    version: int
    committed_at: float
    operation: str
    kind: str
    is_undone: bool = False
    note: str = ""
    erased: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Generation:
    """The batch files of one checkpoint generation. first: its first own batch, after the batch it was seeded with."""

    path: LakePath
    planned: frozenset[int]
    committed: frozenset[int]
    first: int

    @classmethod
    def at(cls, path: LakePath) -> "Generation":
        try:
            first = int(checkpoint_files.owner(path)["first"])
        except (FlowBroken, KeyError, TypeError, ValueError):
            # Readers of owner.json report the damage. All generations except the first are seeded.
            first = int(path.name != "1")
        return cls(path, frozenset(numbers(path / "offsets")), frozenset(numbers(path / "commits")), first)

    def is_done(self, batch: int) -> bool:
        """Returns whether Spark committed the batch. Spark purges old files, and commits batches in order."""
        return batch <= self.done

    @cached_property
    def done(self) -> int:
        return max(self.committed, default=-1)


class BatchHistory:
    """The batches of a stored table, with the flows' checkpoints as listed at construction.

    Raises Unreachable where the table is not stored. Methods raise FlowBroken for an unreadable log.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.log = DeltaLog(locations.table_path(table.name))
        self.generations = lru_cache(_generations)

    def entries(self) -> Iterator[BatchRecord | OtherCommit]:
        """Yields batches and other commits, newest first. A batch without a commit comes where its commit would be."""
        newer_places: dict[str, tuple[int, int]] = {}
        is_overwritten = False
        for commit, is_active in commit_history.commits_with_activity(self.log):
            is_undone = is_overwritten or not is_active
            if commit.batch:
                entry = self._batch_record(commit, is_undone)
                place, newer_place = (entry.generation, entry.batch), newer_places.get(entry.flow)
                if newer_place and place >= newer_place and not is_undone:
                    entry = replace(entry, state=DUPLICATED)
                yield from self._without_commit(entry.flow, place, newer_place)
                newer_places[entry.flow] = min(place, newer_place or place)
                yield entry
            else:
                fields = (commit.version, commit.timestamp, commit.operation, commit_kind(commit))
                erased = commit.metadata.get(commit_history.ERASED) or {}
                yield OtherCommit(*fields, is_undone, refreshes.describe(commit), erased)
            is_overwritten = is_overwritten or (is_active and commit_history.overwrites(commit))
        for flow in dict.fromkeys([*(flow.flow for flow in self.table.flows), *newer_places]):
            yield from self._without_commit(flow, None, newer_places.get(flow))

    def batches(self, flow: str | None = None) -> Iterator[BatchRecord]:
        """Yields the batches of `entries`, newest first. With flow, only those of that flow."""
        return (entry for entry in self.entries() if isinstance(entry, BatchRecord) and flow in (None, entry.flow))

    def with_checkpoint_details(self, entry: BatchRecord) -> BatchRecord:
        """Returns the batch with what its checkpoint adds: the planning time and, without a commit, the offsets."""
        generation = self.generations(entry.flow).get(entry.generation)
        if generation is None or entry.batch not in generation.planned:
            return entry
        try:
            planned = checkpoint_files.planned_batch(generation.path, entry.batch)
            if entry.version is not None:
                return replace(entry, planned_at=planned.at)
            start_offset = checkpoint_files.planned_batch(generation.path, entry.batch - 1).end if entry.batch else None
            source = checkpoint_files.owner(generation.path).get("source")
            return replace(entry, planned_at=planned.at, source=source, source_from=start_offset, source_to=planned.end)
        except FlowBroken:
            # `faults` reports the damaged file.
            return entry

    def _batch_record(self, commit: Commit, is_undone: bool) -> BatchRecord:
        metadata = commit.metadata
        flow, number, batch = str(metadata["flow"]), int(metadata["generation"]), int(metadata["batch"])
        generation = self.generations(flow).get(number)
        if is_undone:
            state = UNDONE
        elif generation is None:
            state = HISTORY
        elif generation.is_done(batch):
            state = EMPTY if commit.rows == 0 else COMMITTED
        else:
            state = WRITTEN if batch in generation.planned else HISTORY
        return BatchRecord(
            *(flow, number, batch, state, commit.version, commit.timestamp, commit.rows, commit.files, commit.bytes),
            *(metadata.get("source"), metadata.get("source_from"), metadata.get("source_to"), metadata.get("rows")),
            metadata.get("lookups"),
            merged=commit.merged,
            skipped=metadata.get("skipped"),
            has_lost_stamp=delta_log.LOST in metadata,
            suppressed=metadata.get("suppressed") or {},
        )

    def _without_commit(
        self, flow: str, older: tuple[int, int] | None, newer: tuple[int, int] | None
    ) -> Iterator[BatchRecord]:
        """Yields the batches without a commit between two batches that have one.

        older is None before the first commit, newer is None after the last one.
        """
        if older and newer and (older[0], older[1] + 1) == newer:
            return
        generations = self.generations(flow)
        # The log before its oldest commit is unknown.
        state_if_done = CLEANED if older is None and self.log.versions[0] > 0 else MISSING
        for number in sorted(
            {*generations, *([newer[0]] if newer else []), *([older[0]] if older else [])}, reverse=True
        ):
            generation = generations.get(number)
            batches = (generation.planned | generation.committed) if generation else frozenset()
            first = generation.first if generation else int(number != 1)
            if newer and number == newer[0] and (older is not None or state_if_done == MISSING):
                # All batches before a committed batch of the same generation must exist, whatever the checkpoint says.
                batches |= frozenset(range(first, newer[1]))
            for batch in sorted(batches, reverse=True):
                place = (number, batch)
                if batch < first or (newer and place >= newer) or (older and place <= older):
                    continue
                if generation is None or generation.is_done(batch) or (newer and number == newer[0]):
                    yield BatchRecord(flow, number, batch, state_if_done)
                else:
                    yield BatchRecord(flow, number, batch, PLANNED if number == max(generations) else ABANDONED)


def commit_kind(commit: Commit) -> str:
    """Classifies a commit that is not a batch, as `OtherCommit.kind`."""
    metadata = commit.metadata
    for key in ("replay", refreshes.RUN, BACKFILL, commit_history.REWIND, "window"):
        if key in metadata:
            return key
    if "inline" in metadata:
        return "compaction"
    if commit.operation.startswith(DECLARATIONS):
        return "declaration"
    return "foreign"


def _generations(flow: str) -> dict[int, Generation]:
    checkpoints = locations.checkpoints(flow)
    return {number: Generation.at(checkpoints / str(number)) for number in generations(checkpoints)}
