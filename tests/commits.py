"""The moment of a batch's commit, by whichever path it is written."""

from collections.abc import Callable

import pytest

from include.engine import commit
from include.engine.fast_path.aggregate import Aggregator
from include.engine.fast_path.append import Appender
from include.spec import Table


def around_commits(patched: pytest.MonkeyPatch, act: Callable[[Table, Callable[[], None]], None]) -> None:
    """In place of each commit of a batch, its quarantine written, `act` is called with the flow and the commit."""
    by_spark, appended, replaced = commit.commit, Appender._commit, Aggregator._replace

    def write(rows, table, *given, **named):
        act(table, lambda: by_spark(rows, table, *given, **named))

    def append(self, *given, **named):
        act(self._table, lambda: appended(self, *given, **named))

    def replace(self, *given):
        act(self._table, lambda: replaced(self, *given))

    patched.setattr(commit, "commit", write)
    patched.setattr(Appender, "_commit", append)
    patched.setattr(Aggregator, "_replace", replace)
