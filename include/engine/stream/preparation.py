"""Prepares the start of a flow: its declaration, its stored table and its checkpoint."""

import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

from pyspark.sql import SparkSession
from sqlalchemy import Engine

from include import catalog, logs
from include.control import resets, skips, vacuum_holds
from include.control.definitions import INVALID_DEFINITION
from include.control.jobs import rewinds
from include.control.lease_renewer import LeaseRenewer
from include.control.lock import LockRequest
from include.engine.checkpoints import checkpoint
from include.engine.checkpoints.checkpoint import Checkpoint
from include.engine.tables import create_table
from include.errors import DeclarationError, FlowFailed, Unreachable
from include.flows import resume_position
from include.spec import Table

DDL_TIMEOUT_SECONDS = 20


def declared(name: str) -> Table:
    """Reads the table file of a flow again: a restart deploys it. Raises FlowFailed for a wrong one."""
    try:
        return catalog.reload().flow(name)
    except DeclarationError as error:
        # The supervisor tries again, and at once when the file changes.
        raise FlowFailed(str(error), INVALID_DEFINITION) from error


def claim(spark: SparkSession, engine: Engine, renewer: LeaseRenewer, table: Table) -> Checkpoint:
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


def keep_definition(table: Table) -> None:
    """Keeps this definition as the last good one, from which the flow restarts if its file is broken by then."""
    declared = catalog.load()
    if warning := declared.warnings.get(table.name):
        logs.warning(warning, table.flow)
    with suppress(OSError):
        catalog.store_definitions(declared, [table.name])


def _run_ddl(spark: SparkSession, renewer: LeaseRenewer, table: Table, statement: str) -> None:
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
