"""What a flow asks of its source, without a JVM: its identity, where the flow resumes, and where the source ends."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from include.checkpoints import checkpoint_files
from include.checkpoints.checkpoint_files import Position
from include.checkpoints.landing_folder import PlannedFile
from include.checkpoints.offset_ranges import OffsetRange
from include.errors import FlowBroken
from include.flows.batch_files import SourceFile
from include.flows.batches import BatchRecord
from include.flows.lag import Lag, Movement, SourceSnapshot
from include.kafka.retention import LostOffsets
from include.lake.paths import LakePath
from include.spec import Flow


@dataclass(frozen=True)
class StartPosition:
    """Where a generation begins.

    offset: in Spark's checkpoint format; None for the source's beginning.
    after: generation and batch of the commit that it follows; None where it follows none.
    lost: what it skips because Kafka no longer holds it.
    files: the files that the table already holds.
    """

    offset: Any = None
    after: tuple[int, int] | None = None
    lost: tuple[LostOffsets, ...] = ()
    files: tuple[PlannedFile, ...] = ()


@dataclass(frozen=True)
class ReadData:
    """What some batches have read.

    ranges: offsets of topics. files: the names of landed files. appended: files of a table.
    note: why nothing more is known.
    """

    ranges: list[OffsetRange] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    appended: list[SourceFile] = field(default_factory=list)
    note: str = ""


class FlowSource(ABC):
    """The source of one flow. Its methods raise Unreachable."""

    def __init__(self, flow: Flow) -> None:
        self._flow = flow

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Returns what must stay the same for a checkpoint to be usable, for JSON."""

    def is_continuation(self, previous: dict[str, Any], current: dict[str, Any]) -> bool:
        """Whether a checkpoint of the previous identity can go on with the current one."""
        return previous == current

    def continues(self, previous: dict[str, Any], current: dict[str, Any]) -> bool:
        """As `is_continuation`. Raises FlowBroken with a remedy of its own for another source of the same name."""
        return self.is_continuation(previous, current)

    def require_unread_available(self, checkpoint: LakePath, batch: int, current: dict[str, Any]) -> None:
        """Raises FlowBroken where the source no longer holds what is unread after a batch of the checkpoint."""
        return

    def added(self, previous: dict[str, Any], current: dict[str, Any]) -> dict[str, str]:
        """Returns the topics that were not read before, with their ids."""
        return {}

    def start(self, metadata: dict[str, Any] | None, accepts_loss: bool) -> StartPosition:
        """Returns where a generation begins.

        metadata: the userMetadata of the flow's last commit to its table. accepts_loss: continues behind what Kafka no
        longer holds. Raises FlowBroken for a changed source.
        """
        if metadata is None:
            return StartPosition()
        previous, current = metadata["source"], self.identity()
        if not self.is_continuation(previous, current):
            raise self._another_source(previous, current)
        return self._after(metadata)

    @abstractmethod
    def _after(self, metadata: dict[str, Any]) -> StartPosition:
        """Returns the position after a commit."""

    def _another_source(self, previous: dict[str, Any], current: dict[str, Any]) -> FlowBroken:
        return FlowBroken(
            f"{changed(self._flow, previous, current)}: restore the declaration, or give the new one a name of its own",
            "CHECKPOINT_OF_ANOTHER_DEFINITION",
        )

    @abstractmethod
    def end(self) -> dict[str, Any]:
        """Returns the end of the source, for JSON. A topic, folder or table that does not exist holds nothing."""

    def has_reached(self, end: dict[str, Any]) -> bool:
        """Whether the flow has committed all up to an end, as `end` returns it."""
        if not end:
            return True
        flow_position = checkpoint_files.position_of(self._flow.flow)
        return flow_position is not None and flow_position.offset is not None and self._has_passed(flow_position, end)

    @abstractmethod
    def lag(self, lag: Lag, flow_position: Position | None, sources: SourceSnapshot) -> Lag:
        """Returns the lag with what the flow at that position has not read. Raises also FlowBroken."""

    @abstractmethod
    def movement(self, lag: Lag, metadata: dict[str, Any], sources: SourceSnapshot) -> Movement | None:
        """Returns what came and what was read since `sources.since`; None where it cannot be followed back that far.

        metadata: the userMetadata of the flow's newest commit before.
        """

    @abstractmethod
    def read_by(self, batches: Sequence[BatchRecord]) -> ReadData:
        """Returns what batches of the flow have read."""

    @abstractmethod
    def datasets(self, offset: Any) -> list[str]:
        """Returns the URIs of what the flow has read up to an offset, which may be None: topics, or a directory."""

    @abstractmethod
    def obstacles(self, metadata: dict[str, Any] | None, newest: dict[str, Any] | None) -> Iterator[str]:
        """Yields why the flow cannot read its source again from a commit.

        metadata: the userMetadata of that commit, None for the source's beginning. newest: that of the flow's newest
        commit.
        """

    @abstractmethod
    def _has_passed(self, flow_position: Position, end: dict[str, Any]) -> bool:
        """Whether a position with an offset lies behind the end."""


def changed(flow: Flow, previous: dict[str, Any], current: dict[str, Any]) -> str:
    return f"{flow.flow}: its table ends in {previous}, which is another source than today's {current}"


def commit_of(metadata: dict[str, Any] | None) -> tuple[int, int] | None:
    """Returns generation and batch of a commit."""
    return (int(metadata["generation"]), int(metadata["batch"])) if metadata else None
