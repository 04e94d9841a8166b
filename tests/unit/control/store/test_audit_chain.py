"""Whoever changes, removes, inserts or moves a row of the audit is found, and honest writers never are."""

import sqlite3
import tarfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import Engine, delete, insert, select, text, update

from include import retention
from include.control import cleanup
from include.control.store import audit, audit_chain, database
from include.control.store.audit_chain import DAY_SECONDS, Chain, Kind, Verification
from include.control.store.schema import audits
from tests.conftest import ROOT

TABLE = "silver.orders"


def write(engine: Engine, *requesters: str) -> None:
    for who in requesters:
        with database.transaction(engine) as connection:
            audit.record(connection, who, "restart", TABLE, "stuck", "restarts after the current batch")


@pytest.fixture
def written(engine: Engine) -> Engine:
    """Six rows of persons, with rows of the schedule between them: numbers 1 to 8."""
    if engine.dialect.name == "postgresql":
        with database.transaction(engine) as connection:
            connection.execute(text("ALTER SEQUENCE audit_number_seq RESTART"))
    write(engine, "ada", "bob", audit.SCHEDULE, "cyd", audit.SCHEDULE, "dan", "eve", "fay")
    return engine


def verify(engine: Engine, at: float | None = None) -> Verification:
    with database.reading(engine) as connection:
        return audit_chain.verify(connection, at or database.now(connection))


def found(engine: Engine) -> list[tuple[Kind, int]]:
    return [(finding.kind, finding.number) for finding in verify(engine).findings]


def row(engine: Engine, number: int) -> dict:
    with database.reading(engine) as connection:
        return dict(connection.execute(select(audits).where(audits.c.number == number)).mappings().one())


def test_rows_as_they_were_written_are_verified_and_a_head_is_held(written):
    verification = verify(written)
    assert (verification.findings, verification.rows) == ([], 8)
    assert verification.heads == {"commands": row(written, 8)["hash"], "routine": row(written, 5)["hash"]}
    with database.reading(written) as connection:
        assert audit_chain.holds(connection, row(written, 4)["hash"])
        assert not audit_chain.holds(connection, "0" * 64)


@pytest.mark.parametrize(
    "column",
    [audits.c[name] for name in ("who", "approver", "action", "target", "reason", "result", "previous_hash")],
    ids=lambda column: column.name,
)
def test_a_changed_value_is_found(written, column):
    with database.transaction(written) as connection:
        connection.execute(update(audits).where(audits.c.number == 4).values({column: "mallory"}))
    assert (Kind.CHANGED, 4) in found(written)


@pytest.mark.parametrize(
    "values", [{"at": 1.5}, {"has_effect": False}, {"chain": "routine"}, {"hash": "0" * 64}], ids=str
)
def test_a_changed_time_effect_chain_or_hash_is_found(written, values):
    with database.transaction(written) as connection:
        connection.execute(update(audits).where(audits.c.number == 4).values(values))
    assert (Kind.CHANGED, 4) in found(written)


def test_a_row_that_was_changed_and_hashed_again_is_found_at_the_next_one(written):
    changed = {**row(written, 4), "who": "mallory"}
    with database.transaction(written) as connection:
        values = {"who": "mallory", "hash": audit_chain.digest(changed["previous_hash"], changed)}
        connection.execute(update(audits).where(audits.c.number == 4).values(values))
    assert found(written) == [(Kind.REMOVED, 6)]
    [finding] = verify(written).findings
    assert str(finding) == (
        f"removed: row 6 (restart {TABLE} by dan) does not continue row 4 (restart {TABLE} by mallory): rows between "
        f"were removed, or one was replaced"
    )


@pytest.mark.parametrize(("numbers", "at"), [([1], 2), ([4], 6), ([4, 6], 7), ([3], 5)], ids=str)
def test_removed_rows_are_found(written, numbers, at):
    with database.transaction(written) as connection:
        connection.execute(delete(audits).where(audits.c.number.in_(numbers)))
    assert found(written) == [(Kind.REMOVED, at)]


def test_removed_newest_rows_show_by_a_head_that_somebody_has_kept(written):
    head = verify(written).heads[Chain.COMMANDS]
    with database.transaction(written) as connection:
        connection.execute(delete(audits).where(audits.c.number == 8))
    assert found(written) == []
    with database.reading(written) as connection:
        assert not audit_chain.holds(connection, head)


def test_an_inserted_row_is_found_also_if_it_is_hashed_like_a_true_one(written):
    with database.transaction(written) as connection:
        # Row 5 is of the schedule, and makes room.
        connection.execute(delete(audits).where(audits.c.number == 5))
        forged = {**row(written, 6), "number": 5, "who": "mallory", "previous_hash": row(written, 4)["hash"]}
        forged["hash"] = audit_chain.digest(forged["previous_hash"], forged)
        connection.execute(insert(audits), [forged])
    assert found(written) == [(Kind.INSERTED, 5)]


def test_an_inserted_row_without_a_hash_is_found(written):
    plain = {name: value for name, value in row(written, 4).items() if name in ("who", "action", "target", "reason")}
    with database.transaction(written) as connection:
        connection.execute(insert(audits), [{**plain, "at": 1.0, "result": "stops", "number": 99}])
    assert found(written) == [(Kind.INSERTED, 99)]


def test_rows_that_changed_places_are_found(written):
    with database.transaction(written) as connection:
        for old, new in ((4, 1000), (6, 4), (1000, 6)):
            connection.execute(update(audits).where(audits.c.number == old).values(number=new))
    assert {number for _, number in found(written)} & {4, 6}
    assert {kind for kind, _ in found(written)} == {Kind.MOVED}


def test_many_writers_keep_the_chain(engine):
    def write_two(who: str) -> None:
        with database.transaction(engine) as connection:
            for target in ("silver.a", "silver.b"):
                audit.record(connection, who, "stop", target, "why", "stops")

    def write_some(writer: int) -> None:
        for _ in range(10):
            # SQLite gives the lock to whoever asks at the right moment, so that one of them may wait too long.
            database.retry_while_unreachable(partial(write_two, f"writer {writer}"))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write_some, range(4)))
    verification = verify(engine)
    assert (verification.findings, verification.rows) == ([], 80)


def test_a_transaction_that_fails_leaves_no_row_and_no_gap(written):
    with pytest.raises(RuntimeError, match="mind"), database.transaction(written) as connection:
        audit.record(connection, "ada", "stop", TABLE, "why", "stops")
        raise RuntimeError("changed its mind")
    write(written, "gil")
    verification = verify(written)
    assert (verification.findings, verification.rows) == ([], 9)


def test_text_that_a_database_cannot_store_is_chained_as_it_is_stored(engine):
    write(engine, "a\x00b", "half \udce9", "żółć 🦆")
    assert verify(engine).findings == []


def test_old_rows_are_deleted_and_the_rest_is_still_verified(engine, monkeypatch):
    monkeypatch.setattr(cleanup, "MOST_ROWS", 2)
    now_seconds = [1_000_000_000.0]
    with monkeypatch.context() as patch:
        patch.setattr(database, "now", lambda _connection: now_seconds[0])
        for _ in range(50):
            write(engine, "ada", audit.SCHEDULE)
            now_seconds[0] += 10 * DAY_SECONDS
    now = now_seconds[0]
    assert cleanup.forget(engine, now)["audit"] > 50
    assert verify(engine, now).findings == []
    with database.reading(engine) as connection:
        oldest = connection.execute(select(audits.c.number).order_by(audits.c.number).limit(1)).scalar_one()
    with database.transaction(engine) as connection:
        connection.execute(delete(audits).where(audits.c.number == oldest))
    # A row is missing that nobody was to delete yet: the one that begins the chain is too young.
    assert [finding.kind for finding in verify(engine, now).findings] == [Kind.REMOVED]
    assert retention.ROUTINE_DAYS < 50 * 10


def test_rows_of_a_build_without_the_chain_are_sealed_by_the_migration(tmp_path: Path):
    with tarfile.open(ROOT / "tests" / "upgrades" / "home-1.tar.gz") as home:
        home.extract("control.db", tmp_path, filter="data")
    with closing(sqlite3.connect(tmp_path / "control.db")) as older, older:
        (before,) = older.execute("SELECT COUNT(*) FROM audit").fetchone()
        older.execute(
            "INSERT INTO audit (at, who, action, target, reason, result) VALUES"
            " (1.25, 'ann, approved by bob', 'skip', 'silver.a', 'poison', 'leaves out batch 3'),"
            " (2.5, 'schedule', 'stop', 'silver.a', 'its schedule', 'stops')"
        )
    engine = database.connect(f"sqlite:///{tmp_path / 'control.db'}")
    assert (verify(engine, 3.0).findings, verify(engine).rows) == ([], before + 2)
    with database.reading(engine) as connection:
        persons = connection.execute(text("SELECT who, approver FROM audit WHERE action = 'skip'")).all()
    assert persons == [("ann", "bob")]
    write(engine, "cyd")
    assert verify(engine, 3.0).findings == []
    engine.dispose()
