"""Journals of query progress, one JSON object per line, that drivers write until `gather` moves them into a table.

A driver appends to one segment at a time, a file that it holds locked. The kernel releases the lock when the driver
dies. So a segment that can be locked is finished, however its driver ended.
"""

import fcntl
import time
from contextlib import suppress
from io import FileIO
from pathlib import Path

from include.retention import JOURNAL_BYTES
from include.settings import settings

SEGMENT_BYTES = 8_000_000
SEGMENT_SECONDS = 30


class Journal:
    """A driver's journal. It accepts no more lines while all journals together hold `JOURNAL_BYTES`."""

    def __init__(self) -> None:
        self._folder = settings().journals
        self._segment: FileIO | None = None
        self._opened_at = 0.0
        self._finished: Path | None = None

    def write(self, lines: list[str]) -> None:
        """Appends lines. Raises OSError.

        After an error some of the lines may be written. An incomplete line can only be the last one of a segment.
        """
        if not lines:
            return
        if self._segment is not None and not self._path.exists():
            # Writes to a deleted file would be lost without an error.
            self.finish()
        segment = self._segment or self._begin()
        data = "".join(f"{line}\n" for line in lines).encode()
        try:
            while data:
                data = data[segment.write(data) :]
        except OSError:
            self.finish()
            raise

    def turn(self) -> None:
        """Finishes the segment once it is old or large.

        Old segments wait until the last one is gathered. Raises OSError.
        """
        if self._segment is None:
            return
        is_old = time.monotonic() - self._opened_at >= SEGMENT_SECONDS
        is_fetched = self._finished is None or not self._finished.exists()
        if (is_old and is_fetched) or self._segment.tell() >= SEGMENT_BYTES:
            self.finish()

    def finish(self) -> None:
        """Makes the segment ready to be gathered. The next line begins another segment."""
        if self._segment is not None:
            self._finished, segment = self._path, self._segment
            self._segment = None
            segment.close()

    @property
    def _path(self) -> Path:
        assert self._segment is not None
        return Path(str(self._segment.name)).with_suffix(".jsonl")

    def _begin(self) -> FileIO:
        waiting = sum(size(segment) for segment in segments())
        if waiting >= JOURNAL_BYTES:
            raise OSError(f"{waiting / 1e6:,.0f} MB of query progress wait in {self._folder} to be gathered")
        self._folder.mkdir(parents=True, exist_ok=True)
        # It gets its final name only when it is locked.
        segment = FileIO(self._folder / f"{time.time_ns()}.new", "x")
        fcntl.flock(segment, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(str(segment.name)).rename(Path(str(segment.name)).with_suffix(".jsonl"))
        self._segment, self._opened_at = segment, time.monotonic()
        return segment


def size(segment: Path) -> int:
    """Returns the size in bytes; 0 for a segment that was moved meanwhile."""
    with suppress(FileNotFoundError):
        return segment.stat().st_size
    return 0


def segments() -> list[Path]:
    """Returns all segments that may not be gathered yet, oldest first."""
    # Segments move from waiting to claimed, so this order misses none.
    waiting = sorted(settings().journals.glob("*.jsonl"))
    claimed = [segment for claim in settings().journals.glob("claimed-*") for segment in _segments_of_claim(claim)]
    return [*claimed, *waiting]


def _segments_of_claim(claim: Path) -> list[Path]:
    # A claim is deleted once its segments are gathered.
    with suppress(FileNotFoundError):
        return sorted(path for path in claim.iterdir() if path.suffix == ".jsonl")
    return []


def claim_segment(segment: Path, claim: Path) -> bool:
    """Moves a finished segment into the folder `claim`. Returns False where its driver still writes it."""
    with segment.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        segment.rename(claim / segment.name)
    return True
