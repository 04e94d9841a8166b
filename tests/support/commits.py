"""The moment of a batch's commit, by whichever path it is written."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from include.engine.fast_path import path
from include.engine.fast_path.aggregate import Aggregator
from include.engine.fast_path.append import Appender
from include.engine.tables import commit
from include.settings import settings
from include.spec import Table


def switch_fast_path(patched: pytest.MonkeyPatch, is_on: bool) -> None:
    """For the flows that this process runs from now on."""
    switched = replace(settings(), fast_path=is_on)
    patched.setattr(path, "settings", lambda: switched)


def around_commits(patched: pytest.MonkeyPatch, act: Callable[[Table, Callable[[], None]], None]) -> None:
    """In place of each commit of a batch, its quarantine written, `act` is called with the flow and the commit."""
    by_spark, appended, replaced = commit.commit, Appender._commit, Aggregator._replace

    def write(rows, table, *given, **named):
        act(table, lambda: by_spark(rows, table, *given, **named))

    def append(self, *given, **named):
        act(self._table, lambda: appended(self, *given, **named))

    def replace_files(self, *given):
        act(self._table, lambda: replaced(self, *given))

    patched.setattr(commit, "commit", write)
    patched.setattr(Appender, "_commit", append)
    patched.setattr(Aggregator, "_replace", replace_files)


def fail_commits(patched: pytest.MonkeyPatch, after: int = 0) -> None:
    """Batches are planned, quarantined, and never written, but for the first `after`."""
    written = []

    def fail(table: Table, commit: Callable[[], None]) -> None:
        if len(written) >= after:
            raise OSError("the disk is gone")
        commit()
        written.append(table)

    around_commits(patched, fail)
