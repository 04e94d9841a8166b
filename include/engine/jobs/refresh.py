"""Refreshes materialized views: recomputes each in full and replaces it in one commit, in its own window.

All views of a run read a table at the same version. Each commit stores these versions, so that a retry of a dead run
uses them again. It also stores the run's name, so that a run refreshes no view twice.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from sqlalchemy import Engine

from include import logs
from include.catalog import Catalog
from include.control import requesters
from include.control.jobs import stale_rows, store
from include.control.jobs.job import Job
from include.control.store import database
from include.control.store.job_id import JobId, JobKind
from include.delta import stored_table, versions
from include.engine import commit, failure, struct_type
from include.engine.commit import read_as_of
from include.engine.jobs import job_progress
from include.engine.jobs.incremental import EMPTY_COMMITS, Change, Computation
from include.engine.jobs.maintenance_window import Window
from include.engine.jobs.worker import Worker, open_worker
from include.engine.rows import quality
from include.engine.rows.quality import RowCounts
from include.engine.rows.transform import SOURCE, apply, apply_join
from include.errors import FlowBroken, SluiceError, Unreachable
from include.flows import refreshes
from include.lake import locations
from include.monitoring import first_load
from include.progress import counted
from include.project.ranges import Slice
from include.settings import settings
from include.spec import Delta, Table

STEP = "refresh"


@dataclass(frozen=True)
class RefreshRun:
    """One refresh run. views: in graph order. reads: versions of the tables that the views read and that are no views
    of this run. A pinned source has its own version, in any run.
    """

    name: str
    views: tuple[Table, ...]
    reads: dict[str, int]

    @classmethod
    def begin(cls, name: str, views: list[Table]) -> "RefreshRun":
        """Pins the versions to read, or takes them from the commits of an earlier try. Raises Unreachable if a table is
        not stored.
        """
        followed = {source.table for view in views for source in _sources(view).values() if not source.is_pinned}
        upstream = followed - {view.name for view in views}
        reads = {table: _newest(table) for table in sorted(upstream)}
        for view in views:
            if refreshed := refreshes.in_run(view.name, name):
                reads |= refreshed.run_reads
        return cls(name, tuple(views), reads)

    @property
    def left(self) -> list[Table]:
        """The views that this run has not refreshed yet."""
        return [view for view in self.views if not refreshes.in_run(view.name, self.name)]

    @property
    def how_far(self) -> str:
        return counted(len(self.views) - len(self.left), len(self.views), "views are refreshed")

    def version(self, table: str) -> int:
        """Returns the version at which views read `table`. A view of this run is read as this run has written it."""
        if table in self.reads:
            return self.reads[table]
        refreshed = refreshes.in_run(table, self.name)
        assert refreshed, "a view is refreshed after those it reads"
        return refreshed.commit.version


def run(name: str, views: list[Table], tables: Catalog, table: str = "", reason: str | None = None) -> None:
    """Refreshes those of `views`, in graph order, that the run `name` has not refreshed yet. table: that was named, or
    else the first view. reason: for the audit, of who begins it by hand; None: a run of Airflow.

    Skips a view whose source is not stored yet, or that waits for a first load, and logs that. Raises LeaseHeld if a
    view has another window, Unreachable, and FlowFailed if a view cannot be computed. Raises FlowBroken if another run
    has refreshed one from newer versions.
    """
    engine = database.connect(settings().control_url)
    refresh_run = _prepared(engine, name, views, tables)
    target = table or views[0].name
    if reason is not None:
        requesters.record(engine, requesters.REFRESH, target, reason)
    for view in refresh_run.views:
        if view not in refresh_run.left:
            logs.info(f"nothing done, run '{name}' has refreshed it", view.name)
    if not refresh_run.left:
        # An earlier try may have died before it stored that.
        for unfinished in store.unfinished(engine, JobKind.REFRESH, target, name):
            store.finish(engine, unfinished, unfinished.message)
        return
    job = begin(engine, refresh_run, target)
    with open_worker(engine, tables, f"refresh {name}", list(refresh_run.reads)) as worker:
        RefreshJob(engine, job, refresh_run).work(worker)


def begin(engine: Engine, run: RefreshRun, table: str) -> JobId:
    """Stores the refresh of all views of a run, or finds that of an earlier try. table: that was named.

    Raises UsageError if it was given up, and Unreachable.
    """
    names = [view.name for view in run.views]
    reason = "" if names == [table] else f"of {', '.join(names)}"
    return store.begin(engine, JobKind.REFRESH, table, run.name, reason=reason, parameters={"views": names})


def _prepared(engine: Engine, name: str, views: list[Table], tables: Catalog) -> RefreshRun:
    """Returns the run of those views that can be refreshed. Logs why others cannot."""
    missing_sources = refreshes.missing_sources(views)
    awaited = {
        view.name: "" if view.name in missing_sources else first_load.awaited_by_view(engine, tables, view)
        for view in views
    }
    # A view that waits makes no source of another one.
    missing_sources |= refreshes.missing_sources([view for view in views if not awaited[view.name]])
    for view in views:
        if view.name in tables.warnings:
            logs.warning(tables.warnings[view.name])
        if view.name in missing_sources:
            logs.warning(refreshes.not_refreshed_words(view, missing_sources[view.name]))
        if awaited[view.name]:
            logs.warning(refreshes.not_loaded_words(view, awaited[view.name]))
    ready = [view for view in views if not awaited[view.name] and view.name not in missing_sources]
    return RefreshRun.begin(name, ready)


class RefreshJob(Job[Worker, Table]):
    """The refresh of views; who asked for it names its run. Each view is a stage. refresh_run: None in a driver."""

    KIND, SCRIPT = JobKind.REFRESH, "jobs/refresh.py"

    def __init__(self, engine: Engine, id_: JobId, refresh_run: RefreshRun | None = None) -> None:
        super().__init__(engine, id_)
        self._refresh_run = refresh_run
        self._results: list[str] = []

    def plan(self, worker: Worker) -> list[Table]:
        job = self.stored()
        if job.ended_at is not None:
            return []
        if self._refresh_run is None:
            views = [worker.tables.table(view) for view in job.parameters["views"]]
            self._refresh_run = _prepared(self.engine, job.who, views, worker.tables)
        if not self._refresh_run.left:
            store.finish(self.engine, job, "; ".join(self._results) or job.message)
        return self._refresh_run.left

    def run(self, worker: Worker, stage: Table) -> None:
        assert self._refresh_run, "it was planned"
        job, message = self.stored(), f"{self._refresh_run.how_far}; next {stage.name}"
        with store.failure_recorded(self.engine, job):
            store.enter(self.engine, job, "refreshing", message)
            with job_progress.shown(worker, job, message):
                result = refresh_view(worker, self._refresh_run, stage)
            self._results.append(f"{stage.name}: {result}")


def refresh_view(worker: Worker, run: RefreshRun, view: Table) -> str:
    """Refreshes one view of the run in its own window. Returns in words what was done. Raises as `run`."""
    with worker.open_window(view, run.name, STEP, wait_seconds=0) as open_window:
        result = _refresh(open_window, run)
        with database.transaction(worker.engine) as connection:
            stale_rows.unmark_range(connection, view.name, Slice(), {}, database.now(connection))
    return result


def _refresh(open_window: Window, run: RefreshRun) -> str:
    view = open_window.table
    if locations.is_stored(view.name):
        commit.require_own(view)
    if refreshes.in_run(view.name, run.name):
        return "another job of the same run has refreshed it before this one opened the window"
    sources = _sources(view)
    versions = {source.table: run.version(source.table) for source in sources.values() if not source.is_pinned}
    refreshes.require_newest(view.name, run.name, versions)
    pinned = {
        name: pinned_rows(open_window.spark, view.name, source) for name, source in sources.items() if source.is_pinned
    }
    pinned_frames = {name: rows for name, (_, rows) in pinned.items()}
    computation = Computation(open_window.spark, view, versions, partial(_of_tables, view, pinned_frames))
    change = computation.change()
    checked_rows = quality.with_violations(change.rows, view.expect).persist()
    try:
        groups = checked_rows.groupBy(quality.RULES).count().collect()
        counts = RowCounts.of([(group[quality.RULES], group["count"]) for group in groups], view.expect)
        _require_none_fails(view, counts, run)
        rows = checked_rows.filter(quality.ends_as("warn", view.expect)).drop(quality.RULES)
        # Counted by the log: an incremental refresh reads no file of rows that are in its view already.
        empty_tables = sorted(name for name in versions if not stored_table.open_table(name, versions[name]).count())
        metadata = open_window.begin(STEP, view.name) | _metadata(run, versions, change, counts, empty_tables)
        as_of = {name: {"table": sources[name].table, "version": version} for name, (version, _) in pinned.items()}
        metadata |= {refreshes.AS_OF: as_of} if as_of else {}
        with commit.user_metadata(open_window.spark, metadata, EMPTY_COMMITS):
            change.write(view, rows, counts.kept)
    except (PySparkException, Py4JError) as error:
        raise _error_of_rows(view, run, change, versions, error) from error
    finally:
        checked_rows.unpersist()
    return _log_result(view, change, counts, empty_tables)


def _log_result(view: Table, change: Change, counts: RowCounts, empty_tables: list[str]) -> str:
    done = "replaced" if change.base is None else "added"
    result = f"{done}: {counts.kept:,} rows, {counts.dropped:,} dropped"
    logs.info(result, view.name)
    if change.method.recomputed:
        logs.info(f"all rows were recomputed: {change.method.recomputed}", view.name)
    if empty_tables:
        words = f"{' and '.join(empty_tables)} held no rows yet; {refreshes.next_refresh_words(view)}"
        logs.warning(words, view.name)
    return result


def _metadata(
    run: RefreshRun, versions: dict[str, int], change: Change, counts: RowCounts, empty_tables: list[str]
) -> dict[str, object]:
    """Returns the `userMetadata` of a refresh. counts: of the rows that it writes; the view's total is in `rows`."""
    total, method = counts, change.method
    if change.base:
        total, method = counts + RowCounts(**change.base.tally), replace(method, added=asdict(counts))
    metadata: dict[str, object] = {refreshes.RUN: run.name, "read": versions, "run_reads": run.reads}
    metadata |= {"rows": asdict(total), refreshes.METHOD: asdict(method)}
    return metadata | ({refreshes.EMPTY: empty_tables} if empty_tables else {})


def _of_tables(view: Table, pinned: Mapping[str, DataFrame], rows: Mapping[str, DataFrame]) -> DataFrame:
    """Returns the view's rows. pinned: rows of the pinned sources, by name. rows: of the other tables, by table."""
    followed = {name: rows[source.table] for name, source in _sources(view).items() if not source.is_pinned}
    return computed({**pinned, **followed}, view)


def computed(frames: Mapping[str, DataFrame], view: Table) -> DataFrame:
    """Returns the view's rows, in the columns of its schema. frames: the rows of its sources, by name."""
    if isinstance(view.source, Mapping):
        assert view.transform, "the catalog has checked it"
        rows: DataFrame = apply_join(frames, view.transform)
    else:
        rows = apply(frames[SOURCE], view.transform) if view.transform else frames[SOURCE]
    return rows.select(*[F.col(f"`{name}`") for name in struct_type.from_ddl(view.schema).fieldNames()])


def pinned_rows(spark: SparkSession, view: str, source: Delta) -> tuple[int, DataFrame]:
    """Returns the version that a pinned source declares, and its rows. Raises Unreachable and FlowBroken."""
    version = versions.version_of(view, source)
    versions.require_files(view, source, version)
    return version, read_as_of(spark, source.table, version)


def _sources(view: Table) -> dict[str, Delta]:
    """Returns the sources by the names that the transform uses."""
    return {reader.branch or SOURCE: reader.source_as(Delta) for reader in view.readers}


def _newest(table: str) -> int:
    if not locations.is_stored(table):
        raise Unreachable(f"{table} is not stored yet, and a view reads it: start its flow, or refresh it, first")
    return stored_table.open_table(table).version()


def _require_none_fails(view: Table, counts: RowCounts, run: RefreshRun) -> None:
    if failing := counts.failing(view.expect):
        raise FlowBroken(
            f"{view.name}: run '{run.name}' breaks {failing}, and the view is left as it was: fix the rule or the "
            f"transform, and begin another run",
            "EXPECTATION_FAILED",
        )


def _error_of_rows(
    view: Table, run: RefreshRun, change: Change, versions: Mapping[str, int], error: Exception
) -> SluiceError:
    """Returns the error of a refresh. If rows may cause it, it names the versions that they come from."""
    plain = failure.of_exception(view.name, error, view)
    if not isinstance(plain, FlowBroken) or not failure.may_follow_a_row(error):
        return plain
    known = change.base.read if change.base else {}
    read = [
        f"{table}, version {version}"
        if known.get(table) in (None, version)
        else f"{table}, new since version {known[table]} and up to version {version}"
        for table, version in versions.items()
    ]
    expression = failure.expression(error)
    return FlowBroken(
        f"{view.name}: run '{run.name}' fails with rows of {' and '.join(read) or 'its sources'}, and the view is left "
        f"as it was: {failure.reason(error, view)}{f', in {expression}' if expression else ''}: let its transform bear "
        f"such rows, or keep them out of its sources by a rule, and begin another run",
        plain.error,
    )
