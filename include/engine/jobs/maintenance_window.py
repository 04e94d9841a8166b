"""A maintenance window of a table: opens when the table's flows wait at their gates, and closes after the work.

A table that is compacted online shares its window with its flows, until something needs the table alone.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include import logs
from include.catalog import Catalog
from include.control.jobs import rewinds, windows
from include.control.jobs.store import FAILED
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.lock import LockRequest
from include.control.store import database
from include.engine import failure
from include.engine.session import late_commits_fail
from include.engine.stream.host import Host
from include.engine.tables import maintain
from include.errors import FlowFailed, SluiceError
from include.maintenance import table_survey, vacuum_guard
from include.maintenance.plan import CLEAN_LOG, MERGE, OPTIMIZE, VACUUM
from include.maintenance.table_survey import CompactionPlace, TableSurvey
from include.spec import Table


@dataclass(frozen=True)
class Window:
    """One window. number: its number in the calendar. renewer: holds `leases(table)`. host: runs the table's flow for a
    merge.
    """

    engine: Engine
    renewer: LeaseRenewer
    host: Host
    spark: SparkSession
    table: Table
    tables: Catalog
    number: int

    def run(self, halt: Callable[[str], None]) -> None:
        """Does the maintenance in the window. Parameters and errors: as for `open`."""
        place, _ = table_survey.place_of_compaction(self.table, late_commits_fail(self.spark))
        if place is not CompactionPlace.ONLINE:
            with self.open(halt):
                self.maintain(MERGE, OPTIMIZE, VACUUM, CLEAN_LOG)
            return
        with self._in_calendar():
            with self._locked(halt, is_shared=True):
                self._open()
                self.maintain(OPTIMIZE)
            # Who deletes files, versions, or changes the table's properties needs the table alone.
            if self._is_worth_it(VACUUM, CLEAN_LOG):
                with self._locked(halt):
                    self.maintain(VACUUM, CLEAN_LOG)
            self._close()

    @contextmanager
    def open(self, halt: Callable[[str], None]) -> Iterator["Window"]:
        """Opens the window for the work of the caller, who has the table alone, and closes it after that.

        halt: ends this process when the window lasts too long. Raises FlowFailed and Unreachable.
        """
        with self._in_calendar(), self._locked(halt):
            self._open()
            yield self
            self._close()

    @contextmanager
    def _in_calendar(self) -> Iterator[None]:
        """Records that the window is asked for, and if it fails, why. Raises FlowFailed and Unreachable."""
        windows.request(self.engine, self.number, self.table.name, self.renewer.epoch(self._lease))
        try:
            yield
        except Exception as error:
            window_error = failure.of_exception(self.table.name, error, self.table)
            with suppress(SluiceError):
                windows.close_unfinished(self.engine, self.number, FAILED, str(window_error))
            raise window_error from error

    @contextmanager
    def _locked(self, halt: Callable[[str], None], is_shared: bool = False) -> Iterator[None]:
        """Holds the table's lock. is_shared: beside the table's flows."""
        longest_seconds = self.table.maintain.longest_minutes * 60
        deadline = time.monotonic() + longest_seconds
        lock_request = LockRequest(self._lease, self.table.name, alone=not is_shared, is_conditional=is_shared)
        timeout_timer = threading.Timer(longest_seconds, halt, ["its window lasts too long"])
        timeout_timer.daemon = True
        try:
            if not self.renewer.enter(lock_request, lambda: time.monotonic() < deadline):
                raise FlowFailed(
                    f"{self.table.name}: its window did not open within {longest_seconds / 60:g} minutes, because a "
                    f"batch was running all the time: see its driver's log, or raise longest_minutes"
                )
            timeout_timer.start()
            # Checked after the wait, because a rewind may begin while this job waits.
            rewinds.require_unblocked(self.engine, self.table.name, self.renewer.holds)
            yield
        finally:
            timeout_timer.cancel()
            self.renewer.leave(self._lease)

    @property
    def _lease(self) -> str:
        return lease.window_lease(self.table.name)

    def _open(self) -> None:
        windows.open_(self.engine, self.number, table_survey.shape_of(self.table))

    def _close(self) -> None:
        # Its lease, which needs the database too, limits how long a window waits for it.
        database.retry_while_unreachable(
            lambda: windows.close(self.engine, self.number, table_survey.shape_of(self.table))
        )

    def maintain(self, *kinds: str) -> None:
        """Does the steps of these kinds that are worth doing now; the table may have changed since the window was
        planned.
        """
        surveys = self._survey()
        if MERGE in kinds and (not surveys or surveys[0].plan.step(MERGE).is_worth_it):
            self.begin(MERGE, self.table.name)
            self.host.run_once([self.table.single_flow])
            surveys = self._survey()
        steps = [kind for kind in kinds if kind != MERGE]
        for kind in steps:
            due = [survey for survey in surveys if survey.plan.step(kind).is_worth_it]
            for survey in due:
                self._run_step(kind, survey)
            if due and kind != steps[-1]:
                # The step changes what the next ones have to do.
                surveys = self._survey()

    def _is_worth_it(self, *kinds: str) -> bool:
        return any(survey.plan.step(kind).is_worth_it for survey in self._survey() for kind in kinds)

    def _survey(self) -> list[TableSurvey]:
        return table_survey.survey(self.engine, self.table, self.tables)

    def _run_step(self, kind: str, survey: TableSurvey) -> None:
        step = survey.plan.step(kind)
        metadata = self.begin(kind, survey.name)
        if kind == OPTIMIZE:
            maintain.compact(self.spark, survey.name, step, metadata)
        elif kind == VACUUM:
            maintain.vacuum(self.spark, survey.name, survey.retention_seconds, metadata)
        else:
            vacuum_guard.clean_log(survey.log, survey.log_needed_from)

    def begin(self, kind: str, name: str) -> dict[str, object]:
        """Records in the calendar that a step begins; returns the `userMetadata` of the step's commits."""
        database.retry_while_unreachable(lambda: windows.begin_step(self.engine, self.number, f"{kind} {name}"))
        logs.info(f"window {self.number}: {kind} {name}")
        return {"window": self.number, "step": kind}
