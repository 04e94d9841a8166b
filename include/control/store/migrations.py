"""The version of the control database's schema, and the migrations to it.

A new table is created wherever it is missing, and needs no version. To change a released table, append to `MIGRATIONS`.
Processes of the previous build may still use the database, so a migration only adds nullable columns, or columns with a
default. A table whose rows have moved stays, empty: what such a process has begun there fails, as if it had died. Marks
that it writes there are moved when the next process connects.
"""

import re
from collections.abc import Callable

from sqlalchemy import Connection, inspect, select, text, update

from include import logs
from include.control.store import audit_chain, grants, schema
from include.control.store.job_schema import metadata
from include.errors import UsageError

# The version of databases that do not store one.
FIRST_VERSION = 1
# Tables of earlier versions, whose rows are in `job`, `job_event` and `stale` now.
JOBS = ("maintenance_window", "window_request", "backfill", "backfill_request", "rewind", "approval")
MOVED = (*JOBS, "outdated")
_JOB = "kind, number, root, target, state, who, reason, message, planned_at, state_at, ended_at"
_OUTDATED = "target, flow, generation, batch, begins, ends, since, definition, without_time"
_MOVE_MARKS = (
    f"INSERT INTO stale (cause, why, {_OUTDATED}) SELECT 'definition', '', {_OUTDATED} FROM outdated ORDER BY number",
    "DELETE FROM outdated",
)
# For each version from 1 on, what the next one changes, in a line for people, and the statements that lead to it, in
# SQL common to SQLite and PostgreSQL, or a function where SQL cannot do it.
MIGRATIONS: dict[str, tuple[str | Callable[[Connection], None], ...]] = {
    "marks of outdated rows get the definition of these rows, and whether they have no time": (
        "ALTER TABLE outdated ADD COLUMN definition VARCHAR",
        "ALTER TABLE outdated ADD COLUMN without_time BOOLEAN",
    ),
    "the audit gets whether a command had an effect, and marks of stale rows the backfill that follows": (
        "ALTER TABLE audit ADD COLUMN has_effect BOOLEAN",
        "ALTER TABLE stale ADD COLUMN follows INTEGER",
        "ALTER TABLE stale ADD COLUMN given_up BOOLEAN",
        # Until this version, a sentence named the backfill.
        "UPDATE stale SET follows = (SELECT MAX(root) FROM backfill"
        " WHERE stale.why LIKE '%: backfill ' || root || ' is to make it again')",
        "UPDATE stale SET why = REPLACE(why, ': backfill ' || follows || ' is to make it again', '')"
        " WHERE follows IS NOT NULL",
    ),
    "alarms get the flow, the table or the part of the platform that they are about": (
        "ALTER TABLE incident ADD COLUMN subject VARCHAR",
        # Until this version, the target named the part of the table.
        "UPDATE incident SET subject = REPLACE(REPLACE(REPLACE("
        "target, 'definition ', ''), 'window ', ''), 'vacuum ', '')",
    ),
    "requests of windows get the number of their tries": ("ALTER TABLE window_request ADD COLUMN tries INTEGER",),
    "windows, backfills and rewinds, their requests and approvals move into the tables job and job_event": (
        f"INSERT INTO job ({_JOB}, outcome, epoch)"
        " SELECT 'window', number, number, target, state, who, why, COALESCE(step, ''), planned_at,"
        " COALESCE(closed_at, opened_at, asked_at, planned_at),"
        " CASE WHEN state = 'skipped' THEN COALESCE(closed_at, planned_at) ELSE closed_at END,"
        " CASE WHEN before IS NOT NULL THEN"
        """ '{"before": ' || before || ', "after": ' || COALESCE(after, 'null') || '}' END, epoch"""
        " FROM maintenance_window",
        "INSERT INTO job_event (kind, number, at, event)"
        " SELECT 'window', number, asked_at, 'asked' FROM maintenance_window WHERE asked_at IS NOT NULL",
        "INSERT INTO job_event (kind, number, at, event)"
        " SELECT 'window', number, opened_at, 'open' FROM maintenance_window WHERE opened_at IS NOT NULL",
        f"INSERT INTO job ({_JOB}, failure, stopped, parameters, outcome)"
        " SELECT 'backfill', number, root, target, phase, who, '', said, planned_at, phase_at, ended_at, failure,"
        """ readers, '{"begins": ' || COALESCE('"' || begins || '"', 'null') || ', "ends": '"""
        """ || COALESCE('"' || ends || '"', 'null') || ', "key": "' || key || '"}', CASE WHEN rows_after IS NOT NULL"""
        """ THEN '{"version": ' || COALESCE(CAST(version AS VARCHAR), 'null') || ', "rows_before": '"""
        """ || rows_before || ', "rows_after": ' || rows_after || '}' END FROM backfill""",
        f"INSERT INTO job ({_JOB}, failure, stopped, parameters)"
        " SELECT 'rewind', number, number, target, phase, who, reason, said, planned_at, phase_at, ended_at, failure,"
        """ stopped, '{"moment": "' || moment || '", "cut": ' || cut || ', "views": ' || views"""
        """ || ', "key": "' || key || '"}' FROM rewind""",
        "INSERT INTO job_event (kind, number, at, event, who)"
        " SELECT 'rewind', CAST(SUBSTR(job, 8) AS INTEGER), at, 'approved', who FROM approval"
        " WHERE job LIKE 'rewind %'",
        *(
            f"UPDATE job SET driver = (SELECT driver FROM {requests} WHERE {number} = job.number), asked_at ="
            f" (SELECT asked_at FROM {requests} WHERE {number} = job.number), tries ="
            f" (SELECT COALESCE(tries, 0) FROM {requests} WHERE {number} = job.number)"
            f" WHERE kind = '{kind}' AND number IN (SELECT {number} FROM {requests})"
            for kind, requests, number in (
                ("window", "window_request", "number"),
                ("backfill", "backfill_request", "root"),
            )
        ),
        *(f"DELETE FROM {table}" for table in JOBS),
    ),
    "marks of outdated rows move into the table stale": (
        # A process of the previous build marks rows by no other cause than the default.
        "ALTER TABLE stale ADD COLUMN cause VARCHAR DEFAULT 'source'",
        "ALTER TABLE stale ADD COLUMN flow VARCHAR",
        "ALTER TABLE stale ADD COLUMN generation INTEGER",
        "ALTER TABLE stale ADD COLUMN batch BIGINT",
        "ALTER TABLE stale ADD COLUMN definition VARCHAR",
        "ALTER TABLE stale ADD COLUMN without_time BOOLEAN",
        *_MOVE_MARKS,
    ),
    "alarms get their cause and the time of the message that they are over, and drivers the place of their output": (
        "ALTER TABLE incident ADD COLUMN cause VARCHAR",
        "ALTER TABLE incident ADD COLUMN over_told_at FLOAT",
        # Nobody expects a message about an alarm that was over long ago.
        "UPDATE incident SET over_told_at = ended_at WHERE ended_at IS NOT NULL AND told_at IS NOT NULL",
        "ALTER TABLE driver ADD COLUMN log VARCHAR",
    ),
    "the audit gets approvers, and hashes that chain its rows": (
        "ALTER TABLE audit ADD COLUMN approver VARCHAR",
        "ALTER TABLE audit ADD COLUMN chain VARCHAR",
        "ALTER TABLE audit ADD COLUMN previous_hash VARCHAR",
        "ALTER TABLE audit ADD COLUMN hash VARCHAR",
        "CREATE INDEX IF NOT EXISTS audit_of_chain ON audit (chain, number)",
        "ALTER TABLE reset ADD COLUMN approver VARCHAR",
        audit_chain.seal,
    ),
    "alarms get the time at which a person had their flow started again": (
        "ALTER TABLE incident ADD COLUMN retried_at FLOAT",
    ),
    "samples of flows get CPU time, bytes written, and the definition that the flow runs by": (
        "ALTER TABLE sample ADD COLUMN cpu_ms BIGINT",
        "ALTER TABLE sample ADD COLUMN bytes_written BIGINT",
        "ALTER TABLE sample ADD COLUMN definition VARCHAR",
    ),
}


def newest_version() -> int:
    """The version of this build."""
    return FIRST_VERSION + len(MIGRATIONS)


def is_done(connection: Connection) -> bool:
    """Whether the database has the schema of this build, and no mark is left to move. Changes nothing."""
    found = set(inspect(connection).get_table_names())
    if not metadata.tables.keys() <= found:
        return False
    version = connection.execute(select(schema.versions.c.version)).scalar_one_or_none()
    return version == newest_version() and not _has_marks_to_move(connection, found)


def migrate(connection: Connection) -> None:
    """Bring the database to the newest version. The caller ensures that no other process migrates at the same time.

    Raises UsageError if a newer build has migrated the database.
    """
    versions, found = schema.versions, set(inspect(connection).get_table_names())
    is_new, missing = schema.leases.name not in found, {*metadata.tables, *MOVED} - found
    if not is_new and (added := sorted(metadata.tables.keys() - found)):
        _announce(f"it gets the tables {', '.join(added)}")
    metadata.create_all(connection)
    version = connection.execute(select(versions.c.version)).scalar_one_or_none()
    if version is None:
        version = newest_version() if is_new else FIRST_VERSION
        connection.execute(versions.insert().values(version=version))
    if version > newest_version():
        raise UsageError(
            f"the control database has version {version} of its schema, and this build knows up to "
            f"{newest_version()}: run the newer build again, or restore the backup of before the upgrade"
        )
    due = list(MIGRATIONS.items())[version - FIRST_VERSION :]
    for older_version, (change, _) in enumerate(due, version):
        _announce(f"version {older_version} to {older_version + 1}: {change}")
    late = _MOVE_MARKS if version == newest_version() and _has_marks_to_move(connection, found) else ()
    for statements in (*(statements for _, statements in due), late):
        for statement in statements:
            if not isinstance(statement, str):
                statement(connection)
                continue
            table = re.search(r"(?:ALTER TABLE|FROM) (\w+)", statement)
            # A table that was missing has all its columns, and no rows.
            if table is None or table[1] not in missing:
                connection.execute(text(statement))
    if version < newest_version():
        connection.execute(update(versions).values(version=newest_version()))
    grants.renew(connection)


def _announce(change: str) -> None:
    # Commands keep no log, and show warnings on the terminal.
    logs.warning(f"the control database is migrated: {change}")


def _has_marks_to_move(connection: Connection, found: set[str]) -> bool:
    """found: the tables that the database has."""
    return "outdated" in found and connection.execute(text("SELECT 1 FROM outdated LIMIT 1")).first() is not None
