"""Journals: what drivers write down of their queries, one JSON object a line, until it is gathered into a table.

A driver appends to one segment at a time, a file that it holds locked; the kernel unlocks it when the driver dies. So a
segment that can be locked is finished, whoever wrote it and however that ended.
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
    """Of one driver. It is full, and takes nothing more, while `JOURNAL_BYTES` of all journals wait to be gathered."""

    def __init__(self) -> None:
        self._folder = settings().journals
        self._segment: FileIO | None = None
        self._opened_at = 0.0
        self._finished: Path | None = None

    def write(self, lines: list[str]) -> None:
        """Append them all. Raises OSError; some of them may then be there, and nothing torn stands before others."""
        if not lines:
            return
        if self._segment is not None and not self._path.exists():
            # Somebody deleted it, and what goes into it would be lost without an error.
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
        """Finish the segment if it is time to: later, where nobody has fetched the last one yet. Raises OSError."""
        if self._segment is None:
            return
        is_old = time.monotonic() - self._opened_at >= SEGMENT_SECONDS
        is_fetched = self._finished is None or not self._finished.exists()
        if (is_old and is_fetched) or self._segment.tell() >= SEGMENT_BYTES:
            self.finish()

    def finish(self) -> None:
        """What is written can be gathered from now on; the next line begins another segment."""
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
        # Nobody may see it before it is locked.
        new = FileIO(self._folder / f"{time.time_ns()}.new", "x")
        fcntl.flock(new, fcntl.LOCK_EX | fcntl.LOCK_NB)
        Path(str(new.name)).rename(Path(str(new.name)).with_suffix(".jsonl"))
        self._segment, self._opened_at = new, time.monotonic()
        return new


def size(segment: Path) -> int:
    """Bytes; 0 where somebody has just taken it away."""
    with suppress(FileNotFoundError):
        return segment.stat().st_size
    return 0


def segments() -> list[Path]:
    """All that is not gathered for certain, the oldest first."""
    # In this order, which is that in which they move.
    waiting = sorted(settings().journals.glob("*.jsonl"))
    claimed = [segment for claim in settings().journals.glob("claimed-*") for segment in _of_claim(claim)]
    return [*claimed, *waiting]


def _of_claim(claim: Path) -> list[Path]:
    # It may be gone by now: what was in it is gathered.
    with suppress(FileNotFoundError):
        return sorted(path for path in claim.iterdir() if path.suffix == ".jsonl")
    return []


def take(segment: Path, claim: Path) -> bool:
    """Move a finished segment into the folder `claim`; False where its driver still writes it."""
    with segment.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        segment.rename(claim / segment.name)
    return True
