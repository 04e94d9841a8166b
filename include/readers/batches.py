"""Every batch of every flow of a table, over all generations: its commit joined to what its checkpoint says of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from include.errors import Broken
from include.readers import active_commits, offset_log, refreshes
from include.readers.checkpoint import numbers
from include.readers.delta_log import Commit, Log
from include.settings import settings
from include.spec import Table

# What becomes of a batch, in the order of its life.
PLANNED = "planned"  # Its offsets are fixed, and nothing of it is in the table: a restart replays it.
WRITTEN = "written"  # It is in the table, and Spark has not acknowledged it: a restart replays it, and it is skipped.
COMMITTED = "committed"
EMPTY = "empty"  # Committed, without a row.
HISTORY = "history"  # The table has it, and no checkpoint knows of it any more.
CLEANED = "cleaned"  # Acknowledged by Spark, and its commit was cleaned from the table's log.
ABANDONED = "abandoned"  # Planned, and never written before a new generation began.
UNDONE = "undone"  # A RESTORE or an overwrite took it out of the table again.
MISSING = "missing"  # Acknowledged by Spark or between two others, and the table's log has no commit of it.
DOUBLED = "doubled"  # A second commit of one batch.
# Whose rows are in the table.
HELD = (WRITTEN, COMMITTED, EMPTY, HISTORY)
# The key under which a commit that replaced a range says what it did.
BACKFILL = "backfill"


@dataclass(frozen=True)
class BatchRecord:
    """One batch. Times: seconds since 1970. rows, files, bytes: added to the table, by Delta's own count.

    source: which topics, table or folder; source_from and source_to: its place there, as in Spark's checkpoint.
    tally: where its rows went, as the engine counted them; None where it does not judge rows.
    planned_at, and the offsets of a batch without a commit, are only filled in by `BatchHistory.detailed`.
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
    planned_at: float | None = None

    @property
    def name(self) -> str:
        return f"{self.flow} {self.generation}/{self.batch}"


@dataclass(frozen=True)
class Other:
    """A commit that is no batch's. kind: window, replay, refresh, backfill, rewind, compaction, declaration or foreign.

    note: what a refresh did.
    """

    version: int
    committed_at: float
    operation: str
    kind: str
    is_undone: bool = False
    note: str = ""


@dataclass(frozen=True)
class Generation:
    """What the directory of one generation lists. first: its own first batch, behind the one it is seeded with."""

    path: Path
    planned: frozenset[int]
    committed: frozenset[int]
    first: int

    @classmethod
    def at(cls, path: Path) -> "Generation":
        try:
            first = int(offset_log.owner(path)["first"])
        except (Broken, KeyError, TypeError, ValueError):
            # Who reads it names that. All but the first are seeded.
            first = int(path.name != "1")
        return cls(path, frozenset(numbers(path / "offsets")), frozenset(numbers(path / "commits")), first)

    def is_done(self, batch: int) -> bool:
        """Whether Spark acknowledged it; it purges old files, and acknowledges in order."""
        return batch <= self.done

    @cached_property
    def done(self) -> int:
        return max(self.committed, default=-1)


class BatchHistory:
    """A stored table and its flows as they were listed when this was made. Raises Unreachable where it is not stored.

    Its methods raise Broken for a log that cannot be read.
    """

    def __init__(self, table: Table) -> None:
        self.table = table
        self.log = Log(settings().table_path(table.name))
        self.generations = lru_cache(_generations)

    def entries(self) -> Iterator[BatchRecord | Other]:
        """Newest first, each commit read when it is asked for. Batches without one stand where theirs would be."""
        newer: dict[str, tuple[int, int]] = {}
        is_overwritten = False
        for commit, stands in active_commits.commits(self.log):
            is_undone = is_overwritten or not stands
            if _is_batch(commit):
                entry = self._entry(commit, is_undone)
                place, later = (entry.generation, entry.batch), newer.get(entry.flow)
                if later and place >= later and not is_undone:
                    entry = replace(entry, state=DOUBLED)
                yield from self._between(entry.flow, place, later)
                newer[entry.flow] = min(place, later or place)
                yield entry
            else:
                own = (commit.version, commit.timestamp, commit.operation, kind(commit))
                yield Other(*own, is_undone, refreshes.words(commit))
            is_overwritten = is_overwritten or (stands and active_commits.overwrites(commit))
        for flow in dict.fromkeys([*(flow.flow for flow in self.table.flows), *newer]):
            yield from self._between(flow, None, newer.get(flow))

    def batches(self, flow: str | None = None) -> Iterator[BatchRecord]:
        """Those of `entries` that are batches, of this flow where one is named."""
        return (one for one in self.entries() if isinstance(one, BatchRecord) and flow in (None, one.flow))

    def detailed(self, entry: BatchRecord) -> BatchRecord:
        """With what its checkpoint still says of it."""
        generation = self.generations(entry.flow).get(entry.generation)
        if generation is None or entry.batch not in generation.planned:
            return entry
        try:
            found = offset_log.batch(generation.path, entry.batch)
            if entry.version is not None:
                return replace(entry, planned_at=found.at)
            before = offset_log.batch(generation.path, entry.batch - 1).end if entry.batch else None
            source = offset_log.owner(generation.path).get("source")
            return replace(entry, planned_at=found.at, source=source, source_from=before, source_to=found.end)
        except Broken:
            # `faults` names it.
            return entry

    def _entry(self, commit: Commit, is_undone: bool) -> BatchRecord:
        said = commit.metadata
        flow, number, batch = str(said["flow"]), int(said["generation"]), int(said["batch"])
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
            *(said.get("source"), said.get("source_from"), said.get("source_to"), said.get("rows")),
        )

    def _between(
        self, flow: str, older: tuple[int, int] | None, newer: tuple[int, int] | None
    ) -> Iterator[BatchRecord]:
        """The batches that have no commit between two that have one; None: before the first, after the last."""
        if older and newer and (older[0], older[1] + 1) == newer:
            return
        generations = self.generations(flow)
        # Below the oldest commit that is left, nobody can tell what the log held.
        gone = CLEANED if older is None and self.log.versions[0] > 0 else MISSING
        for number in sorted(
            {*generations, *([newer[0]] if newer else []), *([older[0]] if older else [])}, reverse=True
        ):
            generation = generations.get(number)
            known = (generation.planned | generation.committed) if generation else frozenset()
            first = generation.first if generation else int(number != 1)
            if newer and number == newer[0] and (older is not None or gone == MISSING):
                # No checkpoint is needed to see a hole in front of a batch that is there.
                known |= frozenset(range(first, newer[1]))
            for batch in sorted(known, reverse=True):
                place = (number, batch)
                if batch < first or (newer and place >= newer) or (older and place <= older):
                    continue
                if generation is None or generation.is_done(batch) or (newer and number == newer[0]):
                    yield BatchRecord(flow, number, batch, gone)
                else:
                    yield BatchRecord(flow, number, batch, PLANNED if number == max(generations) else ABANDONED)


def kind(commit: Commit) -> str:
    """Whose a commit is that is no batch's."""
    said = commit.metadata
    for one in ("replay", refreshes.RUN, BACKFILL, active_commits.REWIND, "window"):
        if one in said:
            return one
    if "inline" in said:
        return "compaction"
    # The engine creates and alters tables without a stamp; by themselves these change no row.
    if commit.operation.startswith(("CREATE TABLE", "SET TBLPROPERTIES", "UNSET TBL", "ADD COLUMNS", "CLUSTER BY")):
        return "declaration"
    return "foreign"


def _is_batch(commit: Commit) -> bool:
    return {"flow", "generation", "batch"} <= commit.metadata.keys()


def _generations(flow: str) -> dict[int, Generation]:
    home = settings().checkpoints(flow)
    return {number: Generation.at(home / str(number)) for number in numbers(home)}
