"""What erasures took out of a table, by the commits that did: rows that its batches count, and it holds no more."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from include.checkpoints.offset_ranges import OffsetRange
from include.delta import commit_history
from include.delta.commit_history import ERASED
from include.delta.delta_log import DeltaLog
from include.flows.batches import BatchRecord
from include.rules import SUPPRESSED


@dataclass
class Erasures:
    """rows: how many. offsets: by `<topic>/<partition>`, those of the rows that came from topics. batches: rows of a
    companion, by the batch that wrote them. files: rows by the file of a landing folder that they came from.
    """

    rows: int = 0
    offsets: dict[str, list[int]] = field(default_factory=dict)
    batches: Counter[str] = field(default_factory=Counter)
    files: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of_log(cls, log: DeltaLog) -> "Erasures":
        """Reads the active commits of a table."""
        commits = commit_history.commits_with_activity(log)
        return cls.of(commit.metadata.get(ERASED) for commit, is_active in commits if is_active)

    @classmethod
    def of(cls, stamps: Iterable[dict[str, Any] | None]) -> "Erasures":
        """stamps: what the metadata of active commits says about erasures."""
        found, offsets = cls(), dict[str, set[int]]()
        for erased in filter(None, stamps):
            found.rows += erased["rows"]
            found.batches.update(erased.get("batches") or {})
            found.files.update(erased.get("files") or {})
            for partition, values in (erased.get("offsets") or {}).items():
                offsets.setdefault(partition, set()).update(values)
        found.offsets = {partition: sorted(values) for partition, values in offsets.items()}
        return found

    def within(self, range_: OffsetRange) -> set[int]:
        return _within(self.offsets, range_)


def suppressed_within(batch: BatchRecord, range_: OffsetRange) -> set[int]:
    """Returns the offsets of the range that the batch left out, because their subjects were erased."""
    return _within(batch.suppressed, range_)


def notes(table: str, erased: Erasures, written: Sequence[BatchRecord]) -> list[str]:
    """Returns in words what erasures took out of a table, and what its batches left out."""
    suppressed = sum((batch.tally or {}).get("broke", {}).get(SUPPRESSED.name, 0) for batch in written)
    return [
        *([f"{erased.rows:,} rows of {table} were erased"] if erased.rows else []),
        *([f"{suppressed:,} rows of erased subjects were suppressed"] if suppressed else []),
    ]


def batch_key(flow: str, generation: int, batch: int) -> str:
    return f"{flow}/{generation}/{batch}"


def _within(offsets: Mapping[str, Sequence[int]], range_: OffsetRange) -> set[int]:
    found = offsets.get(f"{range_.topic}/{range_.partition}", ())
    return set(found[bisect_left(found, range_.first) : bisect_left(found, range_.after)])
