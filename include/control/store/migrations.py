"""The version of the control database's schema, and what brings an older database to it.

A table that is new is created wherever it is missing, and needs no version. Whoever changes a table that was released
appends to `MIGRATIONS`. Processes of the build before may still run on the database, so a change only adds: a column
that may be NULL, or one with a default.
"""

from sqlalchemy import Connection, inspect, select, text, update

from include.control.store import schema
from include.control.store.job_schema import metadata
from include.errors import UsageError

# Of the databases that carry no version.
FIRST_VERSION = 1
# From version 1 on, the statements that lead to the next, in SQL that SQLite and PostgreSQL share.
MIGRATIONS: tuple[tuple[str, ...], ...] = ()


def newest_version() -> int:
    """That this build knows."""
    return FIRST_VERSION + len(MIGRATIONS)


def is_done(connection: Connection) -> bool:
    """Whether the database is as this build needs it; looked at, and nothing is changed."""
    if not metadata.tables.keys() <= set(inspect(connection).get_table_names()):
        return False
    return connection.execute(select(schema.versions.c.version)).scalar_one_or_none() == newest_version()


def migrate(connection: Connection) -> None:
    """Bring the database to the newest version. The caller sees to it that nobody else does so at the same time.

    Raises UsageError for a database that a newer build has migrated.
    """
    versions = schema.versions
    is_new = not inspect(connection).has_table(schema.leases.name)
    metadata.create_all(connection)
    version = connection.execute(select(versions.c.version)).scalar_one_or_none()
    if version is None:
        version = newest_version() if is_new else FIRST_VERSION
        connection.execute(versions.insert().values(version=version))
    if version > newest_version():
        raise UsageError(
            f"the control database has version {version} of its schema, and this build knows up to "
            f"{newest_version()}: run the newer build again, or put back the backup of before the upgrade"
        )
    for statements in MIGRATIONS[version - FIRST_VERSION :]:
        for statement in statements:
            connection.execute(text(statement))
    if version < newest_version():
        connection.execute(update(versions).values(version=newest_version()))
