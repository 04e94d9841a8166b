"""Prepares the start of a flow: its declaration, its stored table and its checkpoint."""

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include import catalog, logs
from include.checkpoints import checkpoint_files
from include.control import skips, vacuum_holds
from include.control.definitions import INVALID_DEFINITION
from include.control.flows import resets
from include.control.jobs import rewinds, stale_rows
from include.control.lease_renewer import LeaseRenewer
from include.control.leases.lock import LockRequest
from include.control.store import audit, database
from include.delta import commit_history, stored_table
from include.delta.backlog import CHANGES_DATA
from include.delta.delta_log import DeltaLog
from include.engine.checkpoints import checkpoint
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.tables import create_table
from include.errors import DeclarationError, FlowFailed, Unreachable
from include.flows import resume_position
from include.flows.batches import BACKFILL
from include.lake import locations
from include.monitoring.stale_rows import range_of
from include.project.ranges import Slice, from_stored_texts
from include.spec import Flow


def record(engine: Engine, driver: str, table: Flow, flow_checkpoint: Checkpoint) -> None:
    """Records the first batch of the new definition in the audit log, and which stored rows are older.

    Raises Unreachable.
    """
    if flow_checkpoint.deployed_from is None:
        return
    result = f"holds from batch {flow_checkpoint.deployed_from} of generation {flow_checkpoint.generation} on"
    definition = checkpoint_files.owner(flow_checkpoint.path)["definitions"][-1]["rows"]
    is_outdated = flow_checkpoint.has_older_rows and not table.write.recomputes_all and _holds_rows(table)
    recomputed = _recomputed(table, definition) if is_outdated else []
    is_outdated &= Slice() not in recomputed
    range_, has_rows_without_time = range_of(table) if is_outdated else (Slice(), False)
    place = (table.flow, flow_checkpoint.generation, flow_checkpoint.deployed_from)
    with database.transaction(engine) as connection:
        audit.record(connection, f"driver {driver}", "deploy", table.flow, "its definition is new", result)
        stale_rows.unmark_undone(connection, table.flow, flow_checkpoint.last_commit)
        if is_outdated:
            stale_rows.mark_outdated(connection, *place, range_, definition)
        if is_outdated and has_rows_without_time:
            stale_rows.mark_outdated(connection, *place, Slice(), definition, without_time=True)
        for part in recomputed:
            stale_rows.unmark_outdated(connection, table.name, part, {table.flow: definition}, asked_at=0)


def _recomputed(table: Flow, definition: str) -> list[Slice]:
    """Returns the ranges that backfills with this definition have replaced, and to which nobody has added since."""
    log, ranges = DeltaLog(locations.table_path(table.name)), list[Slice]()
    for commit, is_active in commit_history.commits_with_activity(log):
        backfill = commit.metadata.get(BACKFILL) or {}
        if is_active and backfill.get("definitions", {}).get(table.flow) == definition:
            ranges.append(from_stored_texts(backfill["from"], backfill["to"]))
        elif is_active and any(log.actions(commit.version, CHANGES_DATA)):
            break
    return ranges


def _holds_rows(table: Flow) -> bool:
    return stored_table.open_table(table.name).count() > 0


DDL_TIMEOUT_SECONDS = 20


def declared(name: str) -> Flow:
    """Reads the table file of a flow again: a restart deploys it. Raises FlowFailed for a wrong one."""
    try:
        return catalog.reload().flow(name)
    except DeclarationError as error:
        # The supervisor tries again, and at once when the file changes.
        raise FlowFailed(str(error), INVALID_DEFINITION) from error


def claim(spark: SparkSession, engine: Engine, renewer: LeaseRenewer, table: Flow) -> Checkpoint:
    """Brings the stored table to its declaration, and claims the flow's checkpoint. The caller holds the flow's lease.

    Raises FlowBroken and FlowFailed where the flow cannot go on, and Unreachable.
    """
    rewinds.require_unblocked(engine, table.name, renewer.holds)
    create_table.create(spark, table, partial(_run_ddl, spark, renewer, table))
    reset = resets.pending(engine, table.flow)
    if reset is None or resume_position.last_commit_metadata(table):
        vacuum_holds.require_unreleased(engine, table.flow)
    claimed = checkpoint.claim(spark, table, reset)
    if reset:
        resets.complete(engine, reset, claimed.generation, claimed.lost)
    return replace(claimed, skip=skips.of_batch(engine, table.flow, claimed.generation, claimed.written + 1))


def keep_definition(table: Flow) -> None:
    """Keeps this definition as the last good one, from which the flow restarts if its file is broken by then."""
    declared = catalog.load()
    if warning := declared.warnings.get(table.name):
        logs.warning(warning, table.flow)
    with suppress(OSError):
        catalog.store_definitions(declared, [table.name])


def _run_ddl(spark: SparkSession, renewer: LeaseRenewer, table: Flow, statement: str) -> None:
    """Runs DDL while it holds the table alone, as a batch does, because DDL commits. Raises Unreachable."""
    deadline = time.monotonic() + DDL_TIMEOUT_SECONDS
    try:
        if not renewer.enter(LockRequest(table.flow, table.name, alone=True), lambda: time.monotonic() < deadline):
            raise Unreachable(
                f"{table.flow}: its file changes its table, which others have been writing for "
                f"{DDL_TIMEOUT_SECONDS} s: it is tried again"
            )
        spark.sql(statement)
    finally:
        renewer.leave(table.flow)
