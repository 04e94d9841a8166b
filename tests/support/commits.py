"""Intercepts the commits of batches, on the Spark path and on the fast path."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from include.engine import commit
from include.engine.batch import merge_batch
from include.engine.fast_path import path
from include.engine.fast_path.aggregate import Aggregator
from include.engine.fast_path.append import Appender
from include.engine.fast_path.merge import Merger
from include.errors import FlowFailed
from include.settings import settings
from include.spec import Table


def switch_fast_path(monkeypatch: pytest.MonkeyPatch, is_on: bool) -> None:
    """Switch the fast path on or off for flows that this process starts later."""
    changed = replace(settings(), fast_path=is_on)
    monkeypatch.setattr(path, "settings", lambda: changed)


def intercept_commits(monkeypatch: pytest.MonkeyPatch, action: Callable[[Table, Callable[[], None]], None]) -> None:
    """Replace each commit of a batch by a call of `action(table, commit)`. The quarantine is written before."""
    spark_commit, append_commit, replace_commit = commit.commit, Appender._commit, Aggregator._replace
    merge_commit, fast_merge_commit = merge_batch.replace_rows, Merger._replace

    def write(rows, table, *arguments, **options):
        action(table, lambda: spark_commit(rows, table, *arguments, **options))

    def append(self, *arguments, **options):
        action(self._table, lambda: append_commit(self, *arguments, **options))

    def replace_files(self, *arguments):
        action(self._table, lambda: replace_commit(self, *arguments))

    def merge(merged, table, *arguments):
        action(table, lambda: merge_commit(merged, table, *arguments))

    def merge_files(self, *arguments):
        action(self._table, lambda: fast_merge_commit(self, *arguments))

    monkeypatch.setattr(merge_batch, "replace_rows", merge)
    monkeypatch.setattr(Merger, "_replace", merge_files)
    monkeypatch.setattr(commit, "commit", write)
    monkeypatch.setattr(Appender, "_commit", append)
    monkeypatch.setattr(Aggregator, "_replace", replace_files)


def fail_commits(monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """Fail all commits except the first `after`. Batches are planned, and their quarantines written, before."""
    committed_tables = []

    def fail(table: Table, commit: Callable[[], None]) -> None:
        if len(committed_tables) >= after:
            raise OSError("the disk is gone")
        commit()
        committed_tables.append(table)

    intercept_commits(monkeypatch, fail)


@contextmanager
def kill_next_batch(monkeypatch, flow: str, is_written: bool) -> Iterator[None]:
    """The flow's next batch fails after the commit of its table if `is_written`, else after its quarantine."""

    def die(table, commit) -> None:
        if table.flow != flow:
            return commit()
        if is_written:
            commit()
        raise OSError("the lights went out")

    with monkeypatch.context() as patch, pytest.raises(FlowFailed, match="the lights went out"):
        intercept_commits(patch, die)
        yield
