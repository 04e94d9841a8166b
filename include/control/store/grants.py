"""The rights of three roles on a control database on PostgreSQL, where its owner alone changes the schema.

A login becomes a member of a role: `GRANT sluice_reader TO grafana`.
"""

from collections.abc import Iterator
from enum import StrEnum

from sqlalchemy import Connection, text

from include.control.store.job_schema import metadata
from include.control.store.schema import audits, versions


class Role(StrEnum):
    """READER: pages, reports and metrics. DRIVER: drivers and jobs. SUPERVISOR: Airflow and the commands of persons."""

    READER = "sluice_reader"
    DRIVER = "sluice_driver"
    SUPERVISOR = "sluice_supervisor"


WRITTEN = "SELECT, INSERT, UPDATE, DELETE"
# What differs from `WRITTEN`. The audit is added to, and the supervisor deletes what is too old of it.
OTHERWISE = {
    (Role.DRIVER, versions.name): "SELECT",
    (Role.SUPERVISOR, versions.name): "SELECT",
    (Role.DRIVER, audits.name): "SELECT, INSERT",
    (Role.SUPERVISOR, audits.name): "SELECT, INSERT, DELETE",
}


def rights(role: Role, table: str) -> str:
    """What the role may do with a table."""
    return "SELECT" if role is Role.READER else OTHERWISE.get((role, table), WRITTEN)


def statements(schema: str = "public") -> Iterator[str]:
    """SQL that creates the roles that are missing, and gives each exactly its rights. schema: with the tables."""
    for role in Role:
        exists = f"SELECT FROM pg_roles WHERE rolname = '{role}'"
        yield f"DO $$ BEGIN IF NOT EXISTS ({exists}) THEN CREATE ROLE {role} NOLOGIN; END IF; END $$"
    yield from _rights(schema)


def _rights(schema: str) -> Iterator[str]:
    everybody = ", ".join(Role)
    yield f"REVOKE ALL ON SCHEMA {schema} FROM PUBLIC, {everybody}"
    yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {schema} FROM PUBLIC, {everybody}"
    yield f"REVOKE ALL ON ALL SEQUENCES IN SCHEMA {schema} FROM PUBLIC, {everybody}"
    yield f"GRANT USAGE ON SCHEMA {schema} TO {everybody}"
    # Also of tables of earlier releases, which are empty.
    yield f"GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {everybody}"
    yield f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {Role.DRIVER}, {Role.SUPERVISOR}"
    for role in (Role.DRIVER, Role.SUPERVISOR):
        tables = sorted(metadata.tables)
        # Few statements, as a transaction has to be short.
        for right in sorted({rights(role, table) for table in tables}):
            listed = ", ".join(f"{schema}.{table}" for table in tables if rights(role, table) == right)
            yield f"GRANT {right} ON {listed} TO {role}"


def apply(connection: Connection) -> None:
    """Create the roles, and give them their rights. The connection's user owns the tables, and may create roles."""
    for statement in statements(_schema(connection)):
        connection.execute(text(statement))


def renew(connection: Connection) -> None:
    """Give the roles their rights on tables that a migration has added, if somebody has created the roles."""
    if connection.dialect.name != "postgresql":
        return
    known = connection.execute(text("SELECT rolname FROM pg_roles WHERE rolname LIKE 'sluice\\_%'")).scalars().all()
    if set(Role) <= set(known):
        for statement in _rights(_schema(connection)):
            connection.execute(text(statement))


def _schema(connection: Connection) -> str:
    return str(connection.execute(text("SELECT quote_ident(current_schema())")).scalar_one())
