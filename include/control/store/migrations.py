"""The version of the control database's schema, and the migrations to it.

A new table is created wherever it is missing, and needs no version. To change a released table, append to `MIGRATIONS`.
Processes of the previous build may still use the database, so a migration only adds nullable columns, or columns with a
default.
"""

import re

from sqlalchemy import Connection, inspect, select, text, update

from include.control.store import schema
from include.control.store.job_schema import metadata
from include.errors import UsageError

# The version of databases that do not store one.
FIRST_VERSION = 1
# For each version from 1 on, the statements that lead to the next, in SQL common to SQLite and PostgreSQL.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    ("ALTER TABLE outdated ADD COLUMN definition VARCHAR", "ALTER TABLE outdated ADD COLUMN without_time BOOLEAN"),
    (
        "ALTER TABLE audit ADD COLUMN has_effect BOOLEAN",
        "ALTER TABLE stale ADD COLUMN follows INTEGER",
        "ALTER TABLE stale ADD COLUMN given_up BOOLEAN",
        # Until this version, a sentence named the backfill.
        "UPDATE stale SET follows = (SELECT MAX(root) FROM backfill"
        " WHERE stale.why LIKE '%: backfill ' || root || ' is to make it again')",
        "UPDATE stale SET why = REPLACE(why, ': backfill ' || follows || ' is to make it again', '')"
        " WHERE follows IS NOT NULL",
    ),
    (
        "ALTER TABLE incident ADD COLUMN subject VARCHAR",
        # Until this version, the target named the part of the table.
        "UPDATE incident SET subject = REPLACE(REPLACE(REPLACE("
        "target, 'definition ', ''), 'window ', ''), 'vacuum ', '')",
    ),
    ("ALTER TABLE window_request ADD COLUMN tries INTEGER",),
)


def newest_version() -> int:
    """The version of this build."""
    return FIRST_VERSION + len(MIGRATIONS)


def is_done(connection: Connection) -> bool:
    """Whether the database has the schema of this build. Changes nothing."""
    if not metadata.tables.keys() <= set(inspect(connection).get_table_names()):
        return False
    return connection.execute(select(schema.versions.c.version)).scalar_one_or_none() == newest_version()


def migrate(connection: Connection) -> None:
    """Bring the database to the newest version. The caller ensures that no other process migrates at the same time.

    Raises UsageError if a newer build has migrated the database.
    """
    versions, created = schema.versions, metadata.tables.keys() - set(inspect(connection).get_table_names())
    is_new = schema.leases.name in created
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
    for statements in MIGRATIONS[version - FIRST_VERSION :]:
        for statement in statements:
            altered = re.match(r"ALTER TABLE (\w+)", statement)
            # A table that was missing has all its columns.
            if altered is None or altered[1] not in created:
                connection.execute(text(statement))
    if version < newest_version():
        connection.execute(update(versions).values(version=newest_version()))
