"""On PostgreSQL, a reader only reads, a driver changes neither the audit nor the schema, and both do their work."""

import sys
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import Engine, delete, insert, select, text, update

from include import catalog
from include.catalog import Catalog
from include.cli import main as cli
from include.console.readings import Readings
from include.control import cleanup, commands
from include.control.cleanup import DAY_SECONDS
from include.control.commands import Action, Command
from include.control.flows import incidents, orders
from include.control.leases import lease
from include.control.store import audit, audit_chain, database, grants, migrations
from include.control.store.audit_chain import Kind
from include.control.store.grants import Role
from include.control.store.job_schema import metadata
from include.control.store.schema import audits, snapshots, versions
from include.errors import UsageError
from include.settings import settings
from include.spec import Delta, Table
from tests.support.postgresql import Server

FLOW = "silver.orders"


@pytest.fixture
def as_role(on_postgresql: Engine, postgresql: Server) -> Iterator[Callable[[Role], Engine]]:
    """`as_role(role)` connects as a login that is a member of the role. The roles have their rights."""
    with database.transaction(on_postgresql) as connection:
        grants.apply(connection)
    engines = []

    def connect(role: Role) -> Engine:
        login = f"one_{role}"
        with database.transaction(on_postgresql) as connection:
            if not connection.execute(text(f"SELECT 1 FROM pg_roles WHERE rolname = '{login}'")).first():
                connection.execute(text(f"CREATE ROLE {login} LOGIN IN ROLE {role}"))
        engines.append(database.connect.__wrapped__(postgresql.url.replace("sluice@", f"{login}@")))
        return engines[-1]

    yield connect
    for engine in engines:
        engine.dispose()


def refuses(engine: Engine, *statements) -> None:
    for statement in statements:
        with (
            pytest.raises(UsageError, match=r"login of SLUICE_CONTROL_URL may not do that .*(denied|must be owner)"),
            database.transaction(engine) as connection,
        ):
            connection.execute(text(statement) if isinstance(statement, str) else statement)


DDL = (
    "CREATE TABLE mine (number INTEGER)",
    "ALTER TABLE audit ADD COLUMN more VARCHAR",
    "DROP TABLE lease",
    "TRUNCATE audit",
    "ALTER TABLE audit DISABLE TRIGGER ALL",
)


def test_a_reader_sees_every_table_and_page_and_writes_nothing(on_postgresql, as_role):
    commands.execute(on_postgresql, Command(Action.STOP, (FLOW,), "ada", "a test"))
    reader = as_role(Role.READER)
    readings = Readings(lambda: reader)
    assert [line.who for line in readings.audit()] == ["ada"]
    assert (readings.jobs(), readings.incidents(), readings.look().lines) == ([], [], [])
    with database.reading(reader) as connection:
        for table in metadata.tables.values():
            connection.execute(select(table)).all()
        assert audit_chain.verify(connection, database.now(connection)).findings == []
    refuses(reader, *DDL, *(delete(table) for table in metadata.tables.values()))
    refuses(reader, insert(snapshots).values(part="x", at=1.0, document="{}"), update(audits).values(who="eve"))


@pytest.mark.parametrize(
    "words", [("stop", FLOW), ("ack", FLOW), ("release-hold", FLOW, "--name", "report"), ("grants", "--apply")]
)
def test_a_command_of_an_admin_is_refused_in_a_sentence_to_whoever_has_only_the_login_of_a_reader(
    as_role, own_settings, monkeypatch, words: tuple[str, ...]
):
    reader = as_role(Role.READER)
    own_settings(SLUICE_CONTROL_URL=reader.url.render_as_string(hide_password=False))
    tables = Catalog({FLOW: Table(name=FLOW, comment="", source=Delta("bronze.orders"), schema="id BIGINT")})
    monkeypatch.setattr(catalog, "load", lambda: tables)
    monkeypatch.setattr(sys, "argv", ["sluice", *words, "--reason", "a test"])
    with pytest.raises(UsageError, match="may not do that"):
        cli.main()
    # The command's own engine, which outlives it.
    database.connect(settings().control_url).dispose()
    with database.reading(reader) as connection:
        assert connection.execute(select(audits)).all() == []


def test_a_driver_does_its_work_and_changes_neither_the_audit_nor_the_schema(as_role, holder):
    driver = as_role(Role.DRIVER)
    leases = lease.acquire(driver, [lease.driver_lease("main"), FLOW], holder("main"), 60)
    orders.begin(driver, [FLOW], by_hand=False)
    orders.report_progress(driver, [FLOW])
    with database.transaction(driver) as connection:
        audit.record(connection, "driver main", "deploy", FLOW, "its definition is new", "batch 7 is its first")
    lease.release(driver, leases)
    with database.reading(driver) as connection:
        assert [row.action for row in connection.execute(select(audits))] == ["deploy"]
    refuses(driver, *DDL, update(audits).values(who="eve"), delete(audits), update(versions).values(version=1))


def test_the_supervisor_deletes_old_rows_of_the_audit_and_a_younger_one_is_missed(as_role):
    supervisor = as_role(Role.SUPERVISOR)
    commands.execute(supervisor, Command(Action.STOP, (FLOW,), "ada", "a test"))
    commands.execute(supervisor, Command(Action.START, (FLOW,), "ada", "a test"))
    with database.transaction(supervisor) as connection:
        incidents.begin(connection, FLOW, "STUCK", "it stands still")
        now_seconds = database.now(connection)
    assert cleanup.forget(supervisor, now_seconds + 500 * DAY_SECONDS) == {"audit": 1}
    refuses(supervisor, *DDL, update(audits).values(who="eve"))
    with database.reading(supervisor) as connection:
        assert [finding.kind for finding in audit_chain.verify(connection, now_seconds).findings] == [Kind.REMOVED]


def test_each_role_has_exactly_its_rights_on_each_table_also_of_a_table_that_a_migration_adds(on_postgresql, as_role):
    with database.transaction(on_postgresql) as connection:
        connection.execute(text("REVOKE ALL ON pulse FROM sluice_driver, sluice_reader"))
        connection.execute(text("GRANT UPDATE ON audit TO sluice_driver"))
        migrations.migrate(connection)
        query = text(
            "SELECT role, of, privilege, has_table_privilege(role, of, privilege) AS has"
            " FROM unnest(CAST(:roles AS text[])) role, unnest(CAST(:tables AS text[])) of,"
            " unnest(CAST(:rights AS text[])) privilege"
        )
        rights = ["SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE", "REFERENCES", "TRIGGER"]
        lists = {"roles": list(map(str, Role)), "tables": list(metadata.tables), "rights": rights}
        found = {tuple(row)[:3]: row.has for row in connection.execute(query, lists)}
    assert found == {
        (role, table, right): right in grants.rights(Role(role), table).split(", ")
        for role in lists["roles"]
        for table in lists["tables"]
        for right in rights
    }
