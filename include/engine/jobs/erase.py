"""Erases subjects from all that the lake and the home hold, and proves it by a scan of every object.

The stages: the subjects come onto the suppression list, so that no later batch brings them back; their rows are taken
out of each table that declares a subject, upstream first; views are refreshed; files that still hold them are deleted
or rewritten; a scan proves that nothing is left. Each stage may be repeated. Only a clean scan ends the job.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pyspark.sql import SparkSession
from sqlalchemy import Engine, select

from include import logs
from include.catalog import Catalog
from include.control import suppression, vacuum_holds
from include.control.jobs import store, windows
from include.control.jobs.job import Job
from include.control.jobs.store import DONE, StoredJob
from include.control.store import audit, database, job_events, job_schema
from include.control.store.job_events import Event
from include.control.store.job_id import JobId
from include.delta.delta_log import DeltaLog
from include.engine.fast_path.transaction import Target
from include.engine.jobs import job_progress, refresh
from include.engine.jobs.worker import Worker, open_worker
from include.engine.session import jvm_of
from include.engine.tables import erase_rows
from include.engine.tables.erase_rows import Found
from include.erasure import certificate, cleaning, needles, requests, scan
from include.erasure.needles import Needles
from include.erasure.requests import Request
from include.erasure.scan import Scan
from include.errors import FlowFailed, UsageError
from include.lake import locations
from include.lake.paths import LakePath
from include.maintenance import vacuum_guard
from include.settings import settings
from include.spec import Delta, Table, Via

STEP = "erase"
SUPPRESS, ROWS, VIEWS, FILES, PROVE = "suppress", "rows", "views", "files", "prove"
# How long a reader may take to read what it has not read of a table.
READ_SECONDS = 300
POLL_SECONDS = 1.0
# How long drivers may take to delete the shuffle files of earlier batches.
CLEANUP_SECONDS = 60
MOST_NAMED = 10


def resume(number: int, tables: Catalog, approved_by: str | None = None) -> None:
    """Does what is left of a planned erasure. approved_by: who approved it outside Airflow.

    Raises UsageError if nobody has approved it, or it was given up, LeaseHeld, Unreachable, and FlowFailed if a stage
    fails, or the scan finds something.
    """
    engine = database.connect(settings().control_url)
    job = store.get(engine, StoredJob, number, requests.KIND)
    if job.ended_at is not None:
        # A try that died may have left it.
        requests.forget(number)
        if job.state != DONE:
            raise UsageError(f"{job.id} was given up ({job.message}): ask for another one")
        logs.info(f"{job.id}: nothing done, it is done: {job.message}")
        return
    if approved_by and job.state == store.PLANNED:
        store.approve(engine, job, f"{approved_by}, by hand")
    store.require_approved(engine, job)
    names = [table.name for table in requests.declared_tables(tables) if locations.is_stored(table.name)]
    with open_worker(engine, tables, f"erase {job.number}", names[:1]) as worker:
        EraseJob(engine, job.id).work(worker)


@dataclass(frozen=True)
class Stage:
    """table: of the stage ROWS."""

    name: str
    table: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.table}".strip()


class EraseJob(Job[Worker, Stage]):
    """The erasure of subjects. Its outcome lists the stages that are done, and what they did."""

    KIND, SCRIPT = requests.KIND, "jobs/erase.py"

    def __init__(self, engine: Engine, id_: JobId) -> None:
        super().__init__(engine, id_)
        self._scan: Scan | None = None

    def plan(self, worker: Worker) -> list[Stage]:
        job = self.stored()
        if job.ended_at is not None:
            return []
        tables = [Stage(ROWS, table.name) for table in requests.declared_tables(worker.tables) if not table.is_view]
        stages = [Stage(SUPPRESS), *tables, Stage(VIEWS), Stage(FILES), Stage(PROVE)]
        return [stage for stage in stages if str(stage) not in job.outcome.get("done", [])]

    def run(self, worker: Worker, stage: Stage) -> None:
        job = self.stored()
        with store.failure_recorded(self.engine, job):
            store.require_approved(self.engine, job)
            request, message = requests.of(job), str(stage)
            state = requests.SEARCHING if stage.name in (FILES, PROVE) else requests.ERASING
            store.enter(self.engine, job, state, message)
            with job_progress.shown(worker, job, message):
                if stage.name == SUPPRESS:
                    self._suppress(worker, job, request)
                elif stage.name == ROWS:
                    self._take_rows(worker, job, request, worker.tables.table(stage.table))
                elif stage.name == VIEWS:
                    self._refresh_views(worker, job)
                elif stage.name == FILES:
                    self._clean_files(worker, request)
                else:
                    self._prove(worker, job, request)
                    return
            self._note(lambda outcome: outcome.setdefault("done", []).append(str(stage)))

    def _suppress(self, worker: Worker, job: StoredJob, request: Request) -> None:
        for table in requests.declared_tables(worker.tables):
            for name in [] if table.is_view else _stored(table):
                # Refuses a table whose rows cannot be taken out, before anything is done.
                erase_rows.require_erasable(worker.spark, name, request.needles)
        # The certificate says whom to tell, although a registration may end before that.
        readers = requests.registered_readers(self.engine, worker.tables)
        self._note(lambda outcome: outcome.update(readers=readers))
        secret = suppression.key()
        with database.transaction(self.engine) as connection:
            suppression.add(connection, requests.macs(request, secret), secret, job.number)

    def _take_rows(self, worker: Worker, job: StoredJob, request: Request, table: Table) -> None:
        """Takes the rows out of a table and its companions, in a window. No batch can bring them back: those before the
        window have been committed, and those after it know the suppression list.
        """
        names = _stored(table)
        if table.name not in names:
            return
        erased = job.outcome.get("tables", {}).keys()
        flows = [flow for flow in table.flows if flow.source.reads_table and flow.source.table in erased]
        _await({flow.flow: flow.source_as(Delta) for flow in flows})
        search = _Search(worker, table, request)
        # What is found now need not be looked for in the window, while the flows wait.
        known = {name: search.found(name, Found()) for name in names}
        prepared = {name: erase_rows.prepare(worker.spark, name, known[name].rows) for name in names}
        with worker.open_window(table, job.who, f"{STEP} {job.number}") as open_window:
            metadata = open_window.begin(STEP, table.name)
            found = {name: search.found(name, known[name]) for name in names}
            # Before the rows are gone, because a later try could not tell.
            requests.join(self.engine, job, {key for keys in found[table.name].joined.values() for key in keys})
            for name in names:
                erase_rows.take_out(worker.spark, name, found[name].rows, prepared[name], metadata, job.number)
        # By the log, because a try that died after its commit has noted nothing.
        taken = {name: asdict(erase_rows.taken(name, job.number, job.planned_at)) for name in names}
        self._note(lambda outcome: outcome.setdefault("tables", {}).update(taken))
        self._note_window(open_window.number)

    def _note_window(self, number: int) -> None:
        self._note(lambda outcome: outcome.setdefault("windows", []).append(number))

    def _refresh_views(self, worker: Worker, job: StoredJob) -> None:
        """Refreshes each stored view below a table from which rows were taken out."""
        tables = worker.tables.tables
        below = {
            view.name for name in _changed(job, worker.tables) for view in worker.tables.below(name) if view.is_view
        }
        views = [table for table in tables.values() if table.name in below]
        if stored := [view for view in views if locations.is_stored(view.name)]:
            run = refresh.RefreshRun.begin(f"{job.id}, {job.planned_at}", stored)
            for view in run.left:
                refresh.refresh_view(worker, run, view)

    def _clean_files(self, worker: Worker, request: Request) -> None:
        _delete_shuffles(worker.spark)
        cleaning.delete_leftovers()
        wanted = request.needles
        found = scan.scan(wanted, worker.tables, wait_seconds=CLEANUP_SECONDS)
        of_tables: dict[str, list[LakePath]] = {}
        done: list[str] = []
        # What nobody can read in a table is a file that a dead batch has left.
        for place in [*found.hits, *found.unread]:
            file = scan.path_of(place)
            if file is None:
                continue
            if table := scan.stored_table_of(file):
                of_tables.setdefault(table, []).append(file)
            elif cleaning.is_text_of_runs(file):
                cleaning.mask(file, wanted)
                done.append(place)
        for table, files in of_tables.items():
            done += [f"{table}/{name}" for name in self._clean_table(worker, table, files, request)]
        if cleaning.mask_control_database(self.engine, wanted) or any("control.db" in place for place in found.hits):
            cleaning.free_pages(self.engine)
            done.append("control database")
        self._note(lambda outcome: outcome.setdefault("files", {}).update(count=len(done)))

    def _clean_table(self, worker: Worker, name: str, files: list[LakePath], request: Request) -> list[str]:
        """Deletes what readers need no more, inside a window: what is then in no version is of no running batch."""
        owner = _owner(worker.tables, name)
        if owner is None:
            return []
        _await(vacuum_guard.readers(worker.tables, name))
        # Before the window, because flows wait in it, and this is a query.
        Target(worker.spark, name).checkpoint()
        with worker.open_window(owner, self.stored().who, f"{STEP} {self.id.number}: files") as open_window:
            open_window.begin(STEP, name)
            cleaned = cleaning.clean_table(name, request.needles, files)
        self._note_window(open_window.number)
        return cleaned

    def _prove(self, worker: Worker, job: StoredJob, request: Request) -> None:
        _delete_shuffles(worker.spark)
        found = scan.scan(request.needles, worker.tables, self.engine, CLEANUP_SECONDS)
        if not found.is_clean:
            # The next try begins again behind the suppression list: each stage looks for what is left.
            self._note(lambda outcome: outcome.update(done=[SUPPRESS]))
            places = [*found.hits, *found.unread]
            raise FlowFailed(
                f"{job.id}: it is not erased yet, as {len(places):,} places still hold a subject, or cannot be read: "
                f"{', '.join(places[:MOST_NAMED])}: delete or rewrite these, and run the job again"
            )
        pauses = self._pauses(job)
        self._note(lambda outcome: outcome.update(pauses=pauses))
        secret, approver = suppression.key(), _approver(self.engine, job)
        macs = requests.macs(request, secret)
        file = certificate.write(self.stored(), worker.tables, found, approver, macs, secret)
        message = f"{found.objects:,} objects, {found.bytes:,} bytes scanned, no hit: {file}"
        with database.transaction(self.engine) as connection:
            job_events.record(connection, job.id, Event.PAUSED, details=_paused_words(pauses))
            store.end(connection, job, DONE, message)
            audit.record(connection, job.who, requests.KIND, job.table, job.reason, message, approver=approver)
            for table in requests.with_tables_below(worker.tables, _changed(job, worker.tables)):
                vacuum_holds.begin_copies_left(connection, str(job.id), table)
        requests.forget(job.number)
        logs.info(f"{job.id}: {_paused_words(pauses)}")

    def _pauses(self, job: StoredJob) -> dict[str, float]:
        """By flow, the longest time that it waited for a window of the job, in seconds."""
        longest: dict[str, float] = {}
        for number in job.outcome.get("windows", []):
            for wait in store.get(self.engine, windows.Window, number).pauses:
                longest[wait.flow] = max(longest.get(wait.flow, 0.0), round(wait.seconds, 1))
        return longest

    def _note(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Stores what a stage did."""
        outcome = self.stored().outcome
        change(outcome)
        with database.transaction(self.engine) as connection:
            store.update_job(connection, self.id, outcome=json.dumps(outcome))


@dataclass(frozen=True)
class _Search:
    """Looks for the rows of subjects in a table and its companions."""

    worker: Worker
    table: Table
    request: Request

    def found(self, name: str, known: Found) -> Found:
        """Returns the rows in the table's present files. known: what an earlier search has found."""
        files = frozenset(erase_rows.live_files(self.worker.spark, name))
        return known.within(files).plus(self._in(name, files - known.files))

    def _in(self, name: str, files: frozenset[str]) -> Found:
        spark, paths = self.worker.spark, sorted(files)
        if name != self.table.name:
            values = (*self.request.subjects, *self._joined_values())
            numbers = scan.number_columns(self.worker.tables)
            return Found(files, erase_rows.find_by_content(spark, name, Needles(values), paths, numbers))
        secret, columns = suppression.key(), requests.joined_columns(self.table, self.worker.tables)
        macs = [suppression.mac(secret, key) for key in (*self.request.subjects, *self.request.joined)]
        return erase_rows.find(spark, self.table, secret, macs, paths, columns)

    def _joined_values(self) -> Iterator[str]:
        """The values by which the table's subject finds rows, as far as they are long enough to be recognised."""
        if isinstance(via := self.table.subject, Via):
            prefixes = tuple(Via.key(via.table, column, "") for column in via.columns.values())
            values = (key.split("=", 1)[1] for key in self.request.joined if key.startswith(prefixes))
            yield from (value for value in values if needles.is_long_enough(value))


def _changed(job: StoredJob, tables: Catalog) -> list[str]:
    """The tables that rows were taken out of."""
    taken = job.outcome.get("tables", {}).items()
    return [name for name, found in taken if found["rows"] and name in tables.tables]


def _paused_words(pauses: Mapping[str, float]) -> str:
    waits = (f"{flow} at most {seconds:g} s" for flow, seconds in sorted(pauses.items()))
    return f"flows waited: {', '.join(waits)}" if pauses else "no flow waited"


def _await(readers: Mapping[str, Delta]) -> None:
    """Waits until these flows have read what their tables hold now. Raises FlowFailed if that takes too long.

    A reader that is behind needs files which the erasure deletes, and would write the rows of a subject late.
    """
    newest = {source.table: DeltaLog(locations.table_path(source.table)).newest for source in readers.values()}
    deadline = time.monotonic() + READ_SECONDS
    for flow, source in readers.items():
        while behind := _unread(flow, source, newest[source.table]):
            if time.monotonic() > deadline:
                raise FlowFailed(
                    f"{flow}: it has not read version {behind} of {source.table}, whose files the erasure deletes: let "
                    f"it run until it has, and run the job again"
                )
            threading.Event().wait(POLL_SECONDS)


def _unread(flow: str, source: Delta, until: int) -> int | None:
    """Returns the first version up to this one whose rows the flow has not read; None if there is none."""
    log = DeltaLog(locations.table_path(source.table))
    consumers = vacuum_guard.consumers((), log, {flow: source}, time_travel_hours=0, now_seconds=time.time())
    reading = [consumer.version for consumer in consumers if consumer.needs_files and not consumer.is_declared]
    later = log.after(min(reading)) if reading else []
    return next((version for version in later if version <= until and _changes_data(log, version)), None)


def _changes_data(log: DeltaLog, version: int) -> bool:
    actions = (action.get(kind) for action in log.actions(version) for kind in ("add", "remove", "cdc"))
    return any(action.get("dataChange", True) for action in actions if action)


def _delete_shuffles(spark: SparkSession) -> None:
    """Deletes the temporary files of this process. No query of it runs now, and it has no flows."""
    jvm, context = jvm_of(spark), spark.sparkContext._jsc.sc()
    stored = jvm.org.apache.spark.SparkEnv.get().mapOutputTracker().shuffleStatuses()
    for shuffle in list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(stored).keySet()):
        context.cleaner().get().doCleanupShuffle(shuffle, True)


def _stored(table: Table) -> list[str]:
    """The names of a table and its companions, as far as they are stored; the table last, as a batch writes them."""
    return [name for name in (table.quarantine, table.retained, table.name) if locations.is_stored(name)]


def _owner(tables: Catalog, name: str) -> Table | None:
    """Returns the table that a stored table is, or is a companion of."""
    owned = ((table, (table.name, table.quarantine, table.retained)) for table in tables.tables.values())
    return next((table for table, names in owned if name in names), None)


def _approver(engine: Engine, job: StoredJob) -> str:
    events = job_schema.job_events.c
    is_approval = (events.kind == job.kind) & (events.number == job.number) & (events.event == Event.APPROVED)
    newest = select(events.who).where(is_approval).order_by(events.id.desc())
    with database.reading(engine) as connection:
        return str(connection.execute(newest).scalars().first())
