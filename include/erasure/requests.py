"""The subjects of an erasure, by name. Only a file of the home has them, until the erasure is over.

Everything else knows their keyed hashes alone: the control database, Airflow, the commits and the certificate.
"""

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from sqlalchemy import Engine, select

from include import private_files
from include.catalog import Catalog
from include.control import suppression, vacuum_holds
from include.control.jobs import store
from include.control.jobs.store import StoredJob
from include.control.store import audit, database
from include.control.store.job_schema import jobs
from include.erasure.needles import Needles
from include.errors import UsageError
from include.spec import Table, Via

# The kind of the jobs.
KIND = "erase"
# Their states between the first and the last one: rows are taken out; what is left is looked for.
ERASING, SEARCHING = "erasing", "searching"


@dataclass(frozen=True)
class Request:
    """subjects: the keys that tables declare. also: further values that are to be gone, such as an address.

    joined: keys of rows that were taken out, by which other tables tell whose their rows are (`Via`).
    """

    subjects: tuple[str, ...]
    also: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()

    @property
    def needles(self) -> Needles:
        """Raises UsageError for a value that is too short."""
        return Needles((*self.subjects, *self.also))


def declared_tables(tables: Catalog) -> list[Table]:
    """The stored tables that declare a subject, upstream first, and each behind the table that its subject joins.

    Raises UsageError if there is none.
    """
    if found := [table for table in tables.tables.values() if table.subject]:
        return sorted(found, key=lambda table: _joins(table, tables))
    raise UsageError("no table declares a subject, so nobody can tell whose a row is: declare `subject` in table files")


def _joins(table: Table, tables: Catalog) -> int:
    """How many joins tell whose its rows are."""
    return 1 + _joins(tables.table(table.subject.table), tables) if isinstance(table.subject, Via) else 0


def joins(tables: Catalog) -> dict[str, str]:
    """By name of a table whose subject joins another one, that one."""
    return {table.name: table.subject.table for table in tables.tables.values() if isinstance(table.subject, Via)}


def joined_columns(table: Table, tables: Catalog) -> list[str]:
    """The columns of a table by which others tell whose their rows are."""
    others = [other.subject for other in tables.tables.values() if isinstance(other.subject, Via)]
    return sorted({column for via in others if via.table == table.name for column in via.columns.values()})


def with_tables_below(tables: Catalog, names: Collection[str]) -> list[str]:
    """These tables, and those downstream of them, which may have their rows."""
    return list(dict.fromkeys([*names, *(table.name for name in names for table in tables.below(name))]))


def registered_readers(engine: Engine, tables: Catalog) -> dict[str, str]:
    """By name, what each registered reader keeps of tables that an erasure changes, in words. Raises Unreachable.

    Such a reader may have copies, and loses old versions that it counts on.
    """
    kept: dict[str, list[str]] = {}
    for name in with_tables_below(tables, [table.name for table in tables.tables.values() if table.subject]):
        for reader, version, _ in vacuum_holds.registered(engine, name):
            kept.setdefault(reader, []).append(f"{name} since version {version}")
    return {reader: ", ".join(words) for reader, words in kept.items()}


def plan(engine: Engine, tables: Catalog, request: Request, requester: str, reason: str) -> StoredJob:
    """Store the job, and the request beside the key. Raises UsageError and Unreachable."""
    declared = declared_tables(tables)
    if not request.subjects:
        raise UsageError("--subject is missing: name whom to erase")
    assert request.needles
    forget_ended(engine)
    suppression.create_key()
    secret = suppression.key()
    macs = [suppression.mac(secret, subject) for subject in request.subjects]
    parameters = {"macs": macs, "key_id": suppression.key_id(secret)}
    count = f"{len(macs):,} subjects" if len(macs) > 1 else "1 subject"
    with database.transaction(engine) as connection:
        number = store.insert_job(
            connection, KIND, declared[0].name, requester, reason=reason, message=count, parameters=parameters
        )
        audit.record(connection, requester, KIND, declared[0].name, reason, f"{KIND} {number} is asked for: {count}")
        # Inside the transaction: a job without its request could never be done.
        _write(number, request)
        return store.read(connection, StoredJob, number, KIND)


def of(job: StoredJob) -> Request:
    """The request of a job. Raises UsageError if its file is gone."""
    try:
        stored = json.loads(file_of(job.number).read_text())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{file_of(job.number)} is missing, and only it names whom {job.id} erases: give that one up, and ask again"
        ) from error
    return Request(tuple(stored["subjects"]), tuple(stored["also"]), tuple(stored.get("joined", ())))


def join(engine: Engine, job: StoredJob, keys: Collection[str]) -> None:
    """Add keys of rows that are about to be taken out, to the request and to the suppression list. Raises UsageError if
    the request is gone, and Unreachable.
    """
    request, secret = of(job), suppression.key()
    if new := [key for key in keys if key not in request.joined]:
        _write(job.number, replace(request, joined=(*request.joined, *sorted(new))))
    with database.transaction(engine) as connection:
        suppression.add(connection, [suppression.mac(secret, key) for key in keys], secret, job.number)


def forget(number: int) -> None:
    """Delete who was named."""
    file = file_of(number)
    for stored in (file, _draft(file)):
        if stored.exists():
            private_files.destroy(stored)


def forget_ended(engine: Engine) -> None:
    """Delete the requests of jobs that are over, as of one that was given up. Raises Unreachable."""
    with database.reading(engine) as connection:
        is_over = (jobs.c.kind == KIND) & jobs.c.ended_at.is_not(None)
        for number in connection.execute(select(jobs.c.number).where(is_over)).scalars():
            forget(number)


def is_searching(engine: Engine) -> bool:
    """Whether a job looks for what is left. Raises Unreachable."""
    searching = select(jobs.c.number).where(jobs.c.kind == KIND, jobs.c.state == SEARCHING, jobs.c.ended_at.is_(None))
    with database.reading(engine) as connection:
        return connection.execute(searching).first() is not None


def macs(request: Request, secret: bytes) -> list[str]:
    """The keyed hashes of the subjects."""
    return [suppression.mac(secret, subject) for subject in request.subjects]


def file_of(number: int) -> Path:
    return suppression.key_file().parent / "requests" / f"{number}.json"


def _write(number: int, request: Request) -> None:
    file = file_of(number)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    draft = _draft(file)
    private_files.create(draft)
    draft.write_text(json.dumps({name: list(dict.fromkeys(values)) for name, values in asdict(request).items()}))
    draft.replace(file)


def _draft(file: Path) -> Path:
    return file.with_suffix(".draft")
