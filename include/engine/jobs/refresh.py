"""Refreshes materialized views: each is computed in full, and replaced in one commit, in a window of its own.

All views of a run read a table at one version. Each commit keeps these, so that a run that died is ended by the same
versions; and it names the run, so that no view is refreshed twice by one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial

from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from include.catalog import Catalog
from include.control.jobs import stale_tables, windows
from include.control.store import database
from include.engine.batch import quality
from include.engine.batch.quality import RowCounts
from include.engine.batch.transform import SOURCE, joined, transformed
from include.engine.jobs import window
from include.engine.jobs.window import Window, Worker
from include.engine.tables import commit, create_table
from include.errors import Broken, SluiceError, Unreachable
from include.readers import refreshes
from include.settings import settings
from include.spec import Delta, Table
from include.validation.slices import Slice

STEP = "refresh"


@dataclass(frozen=True)
class Run:
    """views: in graph order. reads: the version of each table that they read and that is none of them."""

    name: str
    views: tuple[Table, ...]
    reads: dict[str, int]

    @classmethod
    def begin(cls, name: str, views: list[Table]) -> "Run":
        """Look at the tables, unless it has begun before. Raises Unreachable where one is not stored."""
        begun = [done.run_reads for view in views if (done := refreshes.in_run(view.name, name))]
        above = {table for view in views for table in _sources(view).values()} - {view.name for view in views}
        now = {table: _newest(table) for table in sorted(above)}
        return cls(name, tuple(views), now | (begun[0] if begun else {}))

    @property
    def left(self) -> list[Table]:
        """The views that it has not refreshed yet."""
        return [view for view in self.views if not refreshes.in_run(view.name, self.name)]

    def version(self, table: str) -> int:
        """At which its views read a table; a view of the run is read as the run has made it."""
        if table in self.reads:
            return self.reads[table]
        done = refreshes.in_run(table, self.name)
        assert done, "a view is refreshed after those it reads"
        return done.commit.version


def run(name: str, views: list[Table], tables: Catalog) -> None:
    """Refresh those of the views, given in graph order, that the run of this name has not refreshed yet.

    A view that reads what is not stored yet is left as it was, and named.

    Raises LeaseHeld where a view has another window, Unreachable, FlowFailed where one cannot be computed, and Broken
    where another run has made one of newer versions meanwhile.
    """
    lacking = refreshes.lacking(views)
    for view in views:
        if view.name in tables.warnings:
            print(tables.warnings[view.name], flush=True)
        if view.name in lacking:
            print(refreshes.not_refreshed(view, lacking[view.name]), flush=True)
    begun = Run.begin(name, [view for view in views if view.name not in lacking])
    for view in begun.views:
        if view not in begun.left:
            print(f"{view.name}: nothing done, run '{name}' has refreshed it", flush=True)
    if not begun.left:
        return
    engine = database.connect(settings().control_url)
    with window.worker(engine, tables, f"refresh {name}", list(begun.reads)) as own:
        do(own, begun)


def do(own: Worker, run: Run) -> None:
    """What is left of the run, a window for each view. Raises as `run`."""
    for view in run.left:
        number = windows.plan(own.engine, view.name, run.name, STEP, is_worth_it=True)
        try:
            own.keeper.take(window.leases(view))
        except SluiceError as error:
            windows.end(own.engine, number, "skipped", str(error))
            raise
        own.window(view, number).run(own.halt, partial(_refresh, run=run))
        with database.transaction(own.engine) as connection:
            stale_tables.end(connection, view.name, Slice())
        # Not where it failed: then the leases go back when nothing of this process can write any more.
        own.keeper.give_back(window.leases(view))


def _refresh(opened: Window, run: Run) -> None:
    view = opened.table
    if refreshes.in_run(view.name, run.name):
        # By another job of the same name, before this one had the view to itself.
        return
    read = {table: run.version(table) for table in _sources(view).values()}
    refreshes.require_newest(view.name, run.name, read)
    frames = {name: _rows(opened.spark, table, read[table]) for name, table in _sources(view).items()}
    judged = quality.with_violations(computed(frames, view), view.expect).persist()
    try:
        groups = judged.groupBy(quality.RULES).count().collect()
        tally = RowCounts.of([(group[quality.RULES], group["count"]) for group in groups], view.expect)
        _require_none_fails(view, tally, run)
        rows = judged.filter(quality.ends_as("warn", view.expect)).drop(quality.RULES)
        stamp = opened.begin(STEP, view.name)
        stamp |= {refreshes.RUN: run.name, "read": read, "run_reads": run.reads, "rows": asdict(tally)}
        empty = sorted({table for name, table in _sources(view).items() if frames[name].isEmpty()})
        stamp |= {refreshes.EMPTY: empty} if empty else {}
        with commit.stamped(opened.spark, stamp, {}):
            create_table.replace(rows, view)
    finally:
        judged.unpersist()
    print(f"{view.name}: replaced: {tally.kept:,} rows, {tally.dropped:,} dropped", flush=True)
    if empty:
        print(f"{view.name}: {' and '.join(empty)} held no rows yet; {refreshes.comes(view)}", flush=True)


def computed(frames: Mapping[str, DataFrame], view: Table) -> DataFrame:
    """The view's rows out of those of its sources, by name, in the order of its schema."""
    if isinstance(view.source, Mapping):
        assert view.transform, "the catalog has checked it"
        rows = joined(frames, view.transform)
    else:
        rows = transformed(frames[SOURCE], view.transform) if view.transform else frames[SOURCE]
    return rows.select(*[F.col(f"`{name}`") for name in StructType.fromDDL(view.schema).fieldNames()])


def _sources(view: Table) -> dict[str, str]:
    """The tables it reads, by the names its transform has for them."""
    return {one.branch or SOURCE: one.source.table for one in view.readers if isinstance(one.source, Delta)}


def _newest(table: str) -> int:
    if not settings().is_stored(table):
        raise Unreachable(f"{table} is not stored yet, and a view reads it: start its flow, or refresh it, first")
    return DeltaTable(str(settings().table_path(table))).version()


def _rows(spark: SparkSession, table: str, version: int) -> DataFrame:
    return spark.read.format("delta").option("versionAsOf", version).load(str(settings().table_path(table)))


def _require_none_fails(view: Table, tally: RowCounts, run: Run) -> None:
    if counts := tally.failing(view.expect):
        raise Broken(
            f"{view.name}: run '{run.name}' breaks {counts}, and the view is left as it was: mend the rule or the "
            f"transform, and begin another run",
            "EXPECTATION_FAILED",
        )
