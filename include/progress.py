"""How far long work is, for those who wait for it: a line that changes in a terminal, and plain lines anywhere else."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

# An hour of work makes 720 lines of a log, and who watches one sees soon that it moves.
LINE_SECONDS = 5
# A terminal that does not know how wide it is.
COLUMNS = 80


def counted(done: int, total: int, what: str) -> str:
    return f"{done:,} of {total:,} {what}"


class Progress:
    """How far one piece of work is, on a stream. On exit, a terminal shows nothing of it any more.

    Without a terminal, the first line comes after `LINE_SECONDS`: work that ends sooner says nothing.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream, self._clock = stream, clock
        self._is_terminal = stream.isatty()
        self._shown = ""
        self._next_line_at = clock() + LINE_SECONDS

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def show(self, words: str) -> None:
        """Show the words instead of those before. Call it as often as the work moves."""
        if self._is_terminal:
            # A line that is too long would stay on the screen.
            words = words[: self._columns - 1]
            # What another process prints meanwhile begins at the left.
            self._write(f"{words.ljust(len(self._shown))}\r")
            self._shown = words
        elif self._clock() >= self._next_line_at:
            self._write(f"{words}\n")
            self._next_line_at = self._clock() + LINE_SECONDS

    def clear(self) -> None:
        """Make room for other output on the same terminal."""
        if self._shown:
            self._write(f"{' ' * len(self._shown)}\r")
            self._shown = ""

    @property
    def _columns(self) -> int:
        return os.get_terminal_size(self._stream.fileno()).columns or COLUMNS

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


@contextmanager
def reported(report: Callable[[], None], seconds: float = LINE_SECONDS) -> Iterator[None]:
    """Calls `report` in a thread every few seconds, while the block runs."""
    is_done = threading.Event()

    def repeat() -> None:
        while not is_done.wait(seconds):
            report()

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_done.set()
        thread.join()
