"""Surveys what maintenance a table and its quarantine need now, from their logs."""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import starmap

from sqlalchemy import Engine

from include.catalog import Catalog
from include.checkpoints import checkpoint_files
from include.control import vacuum_holds
from include.control.flows import orders
from include.control.jobs import backfills, windows
from include.control.jobs.windows import TableSize
from include.control.store import database
from include.delta import versions
from include.delta.delta_log import DeltaLog, Tombstone
from include.delta.versions import VersionToCome
from include.errors import FlowBroken
from include.flows.batches import BACKFILL
from include.lake import locations
from include.maintenance import plan, vacuum_guard
from include.maintenance.plan import GOOD_SHARE, MB, OPTIMIZE, Facts, MaintenancePlan, Step
from include.maintenance.vacuum_guard import Consumer
from include.settings import settings
from include.spec import Flow, Maintenance, Table


class CompactionPlace(StrEnum):
    """ONLINE: beside its writers. INLINE: by its own stream, between two batches. WINDOW: with no other writer."""

    ONLINE = "online"
    INLINE = "inline"
    WINDOW = "in a window"


def needs_exclusive_write(flow: Flow, late_commits_fail: bool) -> bool:
    """Returns whether a batch of the flow excludes every other writer of its table.

    late_commits_fail: a commit fails if another process has made its version. Where it does not, of several flows one
    commits at a time. Flows whose batches could miss each other's rows also do so. A table with one append flow has no
    other writer but jobs, and these take the table alone, or share it.
    """
    if not flow.write.appends:
        return True
    return flow.branch is not None and (_reads_itself(flow) or not late_commits_fail)


def place_of_compaction(table: Table, late_commits_fail: bool) -> tuple[CompactionPlace, str]:
    """Returns where the table is compacted, and why, in words. late_commits_fail: as for `needs_exclusive_write`."""
    if table.merges_in_windows:
        return CompactionPlace.WINDOW, "its upserts are gathered for windows, so it is compacted where they are merged"
    if table.is_view:
        return CompactionPlace.WINDOW, "each refresh has it to itself, and so has the window"
    if not table.write.appends:
        interval = f"every {table.maintain.every_batches} batches"
        return CompactionPlace.INLINE, f"a stream upserts it all the time, so that stream compacts it {interval}"
    if table.has_quarantine:
        return CompactionPlace.WINDOW, "a batch that is tried again rewrites its quarantine, which goes with it"
    if _reads_itself(table):
        return (
            CompactionPlace.WINDOW,
            "its batches look for their rows in it, and fail if files are replaced meanwhile",
        )
    if late_commits_fail:
        return CompactionPlace.ONLINE, "it is only appended to, and on this store a late commit fails by itself"
    return CompactionPlace.WINDOW, "two processes that commit at once can overwrite each other"


def _reads_itself(table: Table) -> bool:
    return bool(table.expect or table.write.unique)


# A retention beyond the promise is rounded up to this, so that it does not change with every window.
ROUND_SECONDS = 3600
# The clock of the control database may be ahead of that of a driver by this much.
CLOCK_SKEW_SECONDS = 3600


@dataclass(frozen=True)
class TableSurvey:
    """The maintenance state of a stored table. plan: for its windows. compaction: the step, wherever it runs.

    retention_seconds: the retention that VACUUM must use. held: the consumer that needs the oldest version.
    log_needed_from: the oldest version that the log must keep.
    """

    name: str
    log: DeltaLog
    plan: MaintenancePlan
    compaction: Step
    retention_seconds: float
    held: Consumer
    log_needed_from: int
    shape: TableSize
    policy: str

    def lines(self) -> list[str]:
        """Describes the survey for people: each step with its reason, then who holds VACUUM back."""
        steps = [f"{'' if step.is_worth_it else 'not '}worth it, {step.kind}: {step.why}" for step in self.plan.steps]
        retention = f"VACUUM keeps what was deleted in the last {self.retention_seconds:,.0f} s"
        oldest = f"the oldest version needed is {self.held.version}, by {self.held.name}"
        return [f"{self.name}: {line}" for line in (*steps, self.policy, f"{retention}; {oldest}")]

    def would_delete(self, now_seconds: float) -> list[Tombstone]:
        """Returns the files that a VACUUM would delete now. now_seconds: since 1970."""
        return vacuum_guard.would_vacuum(self.log, self.retention_seconds, now_seconds)


def survey(engine: Engine, table: Table, tables: Catalog) -> list[TableSurvey]:
    """Surveys the table and its companions, as far as they are stored. Raises FlowBroken."""
    return [_look(engine, table, tables, name, time.time()) for name in stored_tables(table)]


def stored_tables(table: Table) -> list[str]:
    """Names the table and its companions, as far as they are stored."""
    return [name for name in (table.name, table.quarantine, table.retained) if locations.is_stored(name)]


@dataclass(frozen=True)
class WindowPlan:
    """What a window of a table would do now. surveys: of the table and its companions, as far as they are stored."""

    table: Table
    surveys: list[TableSurvey]
    is_worth_it: bool

    def lines(self) -> list[str]:
        """Describes for people each step with its reason."""
        return [line for survey in self.surveys for line in survey.lines()]

    def deletions(self) -> list[str]:
        """Names the files that a VACUUM would delete now."""
        return [
            f"{survey.name}: would delete {file.path} ({file.bytes:,} bytes)"
            for survey in self.surveys
            for file in survey.would_delete(time.time())
        ]

    @property
    def why(self) -> str:
        """What is worth doing or why nothing is, in one line for the calendar."""
        steps = [(survey.name, step) for survey in self.surveys for step in survey.plan.steps]
        worthwhile = [f"{step.kind} {name}: {step.why}" for name, step in steps if step.is_worth_it]
        if not self.surveys:
            return "the table is not stored yet"
        return "; ".join(worthwhile) or "nothing is worth it: " + "; ".join(step.why for _, step in steps)

    def store(self, engine: Engine, requester: str) -> int | None:
        """Stores the window, or that it is skipped. Returns its number; None if it is not worth it."""
        rewritten = sum(survey.plan.step(OPTIMIZE).numbers.get("bytes_rewritten", 0) for survey in self.surveys)
        number = windows.plan(engine, self.table.name, requester, self.why, self.is_worth_it, rewritten)
        return number if self.is_worth_it else None


def plan_window(engine: Engine, table: Table, tables: Catalog) -> WindowPlan:
    """Surveys the table for a window. Raises FlowBroken and Unreachable."""
    surveys = survey(engine, table, tables)
    is_worth_it = any(found.plan.is_worth_it for found in surveys) or (not surveys and _merges(engine, table))
    return WindowPlan(table, surveys, is_worth_it)


def consumers_of(
    engine: Engine, table: Table, tables: Catalog, log: DeltaLog, name: str, now_seconds: float
) -> list[Consumer]:
    """Returns who needs old versions of the table, or of its companion `name`. log: of that one."""
    writers = [flow.flow for flow in table.flows] if name == table.name else []
    others = [*_unfinished_backfills(engine, log, name), *_pinned_by_views(tables, log, name)]
    others += starmap(Consumer, vacuum_holds.registered(engine, name))
    readers, released = vacuum_guard.readers(tables, name), vacuum_holds.released(engine)
    promise = table.maintain.time_travel_hours
    return vacuum_guard.consumers(writers, log, readers, promise, now_seconds, others, released)


def _look(engine: Engine, table: Table, tables: Catalog, name: str, now_seconds: float) -> TableSurvey:
    log = DeltaLog(locations.table_path(name))
    consumers = consumers_of(engine, table, tables, log, name, now_seconds)
    # The retention itself keeps the promised time travel.
    without_promise = [consumer for consumer in consumers if not consumer.name.startswith(vacuum_guard.PROMISE)]
    kept_since = vacuum_guard.files_kept_since(log, without_promise, now_seconds, table.maintain.longest_seconds)
    retention_seconds = _retention(table.maintain, kept_since, now_seconds)
    oldest_consumer = vacuum_guard.oldest_consumer(consumers)
    assert oldest_consumer, "the promised time travel is one of them"
    needed_from = vacuum_guard.log_needed_from(log, consumers)
    facts = Facts(
        live=log.state.live,
        dead=vacuum_guard.dead_files(log),
        now_seconds=now_seconds,
        kept_since=now_seconds - retention_seconds,
        held_by=oldest_consumer.name,
        removable_log_files=len(vacuum_guard.removable_log_files(log, needed_from)),
        unread_versions=_unread_versions(table.single_flow) if name == table.name and _merges(engine, table) else 0,
        seconds_since_compaction=_seconds_since_compaction(log, now_seconds),
    )
    found = plan.plan_stored_table(facts, table) if name == table.name else plan.plan(facts, table.maintain)
    # Only a driver can tell whether it has the classes for that, and its window says if it has not.
    place, reason = place_of_compaction(table, late_commits_fail=settings().has_s3_lake)
    is_inline = place is CompactionPlace.INLINE and name == table.name
    return TableSurvey(
        name,
        log,
        plan=_without_compaction(found, reason) if is_inline else found,
        compaction=found.step(OPTIMIZE),
        retention_seconds=retention_seconds,
        held=oldest_consumer,
        log_needed_from=needed_from,
        shape=shape(log, _good_bytes(table)),
        policy=f"compacted {place}: {reason}",
    )


def _unfinished_backfills(engine: Engine, log: DeltaLog, table: str) -> Iterator[Consumer]:
    """Yields the commits by which unfinished backfills have replaced their ranges: whoever finishes one reads it."""
    unfinished = {backfill.key: backfill for backfill in backfills.unfinished(engine, table=table)}
    for commit in log.commits():
        first_planned_at = min((backfill.planned_at for backfill in unfinished.values()), default=math.inf)
        if commit.timestamp < first_planned_at - CLOCK_SKEW_SECONDS:
            return
        if backfill := unfinished.pop((commit.metadata.get(BACKFILL) or {}).get("key", ""), None):
            name = f"backfill {backfill.number}, which is not finished"
            yield Consumer(name, commit.version, commit.timestamp, needs_files=False)


def _pinned_by_views(tables: Catalog, log: DeltaLog, table: str) -> Iterator[Consumer]:
    """Yields the versions of the table at which views read it by their declaration."""
    for view in tables.views.values():
        for source in view.upstream:
            if source.table != table or not source.is_pinned:
                continue
            try:
                version = versions.version_of(view.name, source, log)
            except VersionToCome:
                version = log.newest
            except FlowBroken:
                # It is gone, and the next refresh says so.
                continue
            yield Consumer(f"{view.name}, which declares this version", version, is_declared=True)


def _without_compaction(plan: MaintenancePlan, reason: str) -> MaintenancePlan:
    """Returns the plan without its OPTIMIZE, for a table that is compacted elsewhere."""
    compaction = plan.step(OPTIMIZE)
    explained = Step(OPTIMIZE, False, f"{reason}; {compaction.why}")
    return MaintenancePlan(tuple(explained if step is compaction else step for step in plan.steps))


def shape_of(table: Table) -> TableSize | None:
    """Returns the numbers of the table's newest version; None if it is not stored."""
    if not locations.is_stored(table.name):
        return None
    return shape(DeltaLog(locations.table_path(table.name)), _good_bytes(table))


def _good_bytes(table: Table) -> float:
    return GOOD_SHARE * table.maintain.target_file_mb * MB


def shape(log: DeltaLog, good_bytes: float) -> TableSize:
    """Returns the numbers of the newest version."""
    live = log.state.live
    rows = sum(file.rows for file in live if file.rows is not None)
    is_counted = all(file.rows is not None for file in live)
    small = sum(file.bytes < good_bytes for file in live)
    return TableSize(log.newest, len(live), sum(file.bytes for file in live), small, rows if is_counted else None)


def _retention(maintain: Maintenance, kept_since: float | None, now_seconds: float) -> float:
    """Returns VACUUM's retention in seconds.

    kept_since: files removed since then must survive, even if VACUUM runs at the end of a window that begins now.
    """
    if kept_since is None or now_seconds + maintain.longest_seconds - kept_since <= maintain.retention_seconds:
        return maintain.retention_seconds
    return math.ceil((now_seconds + maintain.longest_seconds - kept_since) / ROUND_SECONDS) * ROUND_SECONDS


def _merges(engine: Engine, table: Table) -> bool:
    """Returns whether the table's windows merge, and its flow is not stopped."""
    with database.reading(engine) as connection:
        return table.merges_in_windows and orders.order(connection, table.single_flow.flow).state != "stopped"


def _unread_versions(flow: Flow) -> int:
    """Returns how many source versions the flow has not merged."""
    newest = DeltaLog(locations.table_path(flow.source.table)).newest
    flow_position = checkpoint_files.position_of(flow.flow)
    if flow_position is None or flow_position.offset is None:
        return newest + 1
    return newest - checkpoint_files.read_version(flow_position.offset)


def _seconds_since_compaction(log: DeltaLog, now_seconds: float) -> float | None:
    compaction = next((commit for commit in log.commits() if commit.operation == "OPTIMIZE"), None)
    return None if compaction is None else now_seconds - compaction.timestamp
