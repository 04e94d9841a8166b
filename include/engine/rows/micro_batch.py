"""One micro-batch of a flow, as Spark's path and the fast path write it."""

from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession

from include.checkpoints import offset_ranges
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.commit import CommitMetadata
from include.engine.rows import watermark
from include.engine.rows.watermark import EventTimes
from include.rules import Expect, Rule
from include.spec import Flow


@dataclass(frozen=True)
class FailedRows:
    """Rows of the source for the quarantine, with columns of it, `_rules` and how each failed."""

    rows: DataFrame
    count: int


@dataclass(frozen=True)
class Written:
    """What a batch leaves for the next one. rows: how many it read. newest: the watermark time by which rows are late,
    in microseconds since 1970. written: rows that its commit has added, changed or deleted; None: only the log tells.
    """

    rows: int
    newest: int | None
    written: int | None = None


@dataclass(frozen=True)
class Refusal:
    """Why the fast path leaves a batch or a table to Spark. Nothing was committed.

    is_large: the batch is too large, as others may be.
    """

    reason: str
    is_large: bool = False


@dataclass(frozen=True)
class MicroBatch:
    """What is read, what its rows are judged by, and what its commit says.

    rows: columns of the source, or those of `prepare.prepared` if `is_prepared`. times: what makes a row late, or too
    far ahead. last_commit: generation and batch of the flow's newest commit before it; None if there is none.
    may_be_replay: an earlier try may have left rows in the companions of the table, after `last_commit`. constraints:
    CHECK constraints of the table, as rules. left_out: for an aggregate, source rows as JSON of which none can be
    computed. failed: rows of the source of which no row can be made. rows_before: rows of the last batch; 0 if unknown.
    """

    table: Flow
    rows: DataFrame
    checkpoint: Checkpoint
    metadata: CommitMetadata
    times: EventTimes
    last_commit: tuple[int, int] | None
    may_be_replay: bool
    is_prepared: bool = False
    constraints: tuple[Expect, ...] = ()
    left_out: frozenset[str] = frozenset()
    failed: FailedRows | None = None
    rows_before: int = 0

    @property
    def spark(self) -> SparkSession:
        """The session of the flow's query."""
        return self.rows.sparkSession

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What its rows are checked by, also by the watermark, but without the constraints."""
        return watermark.rules_of(self.table, self.times)

    @property
    def offsets(self) -> int:
        """How many offsets of topics it reads; 0 of another source."""
        if not self.table.source.reads_topics:
            return 0
        ranges = offset_ranges.kafka_ranges(self.metadata.source_from, self.metadata.source_to)
        return sum(range_.count for range_ in ranges)

    def noting(self, **fields: object) -> "MicroBatch":
        """Returns the batch with these fields in the metadata of its commit."""
        return replace(self, metadata=replace(self.metadata, **fields))  # type: ignore[arg-type]
