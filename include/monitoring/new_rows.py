"""Finds the tables that have new rows since the last event of their Airflow asset, from their logs, without a JVM."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from deltalake.exceptions import DeltaError
from sqlalchemy import Engine, select

from include import logs
from include.control.store import database
from include.control.store.schema import announcements
from include.delta.delta_log import Commit, DeltaLog
from include.delta.table_logs import TableLogs
from include.errors import SluiceError

# A table gets one event in this time, which is a little less than the supervisor's minute.
BETWEEN_EVENTS_SECONDS = 50.0
# Of a table with more new commits, the event counts the rows of the newest ones.
MOST_COMMITS = 200
# OPTIMIZE and VACUUM change files, and no row.
CHANGES_ROWS = b'"dataChange":true'


@dataclass(frozen=True)
class NewRows:
    """version: the newest one that changed rows. rows: that the commits since the last event added, None if unknown.
    offsets: by flow, up to where the newest of these commits had read its source.
    """

    table: str
    version: int
    rows: int | None
    offsets: dict[str, Any]

    def extra(self) -> dict[str, Any]:
        """The extra of the asset's event."""
        return {"table": self.table, "version": self.version, "rows": self.rows, "offsets": self.offsets}


def find(
    engine: Engine, tables: Iterable[str], at_least_seconds: float = 0.0, table_logs: TableLogs | None = None
) -> list[NewRows]:
    """Returns the tables that are stored and have new rows. at_least_seconds: since the last event of a table.

    table_logs: by a caller who has looked at them already. A table whose log cannot be read is logged and left out.
    """
    table_logs = table_logs or TableLogs()
    with database.reading(engine) as connection:
        rows = connection.execute(select(announcements)).mappings().all()
        now_seconds = database.now(connection)
    announced = {row["table_name"]: row["version"] for row in rows}
    recent = {row["table_name"] for row in rows if 0 <= now_seconds - row["at"] < at_least_seconds}
    found = []
    for table in tables:
        try:
            if table in recent or (log := table_logs.find(table)) is None:
                continue
            new_rows = _since(table, log, announced.get(table))
        except (SluiceError, DeltaError, OSError) as error:
            logs.warning(f"its asset gets no event for now: {error}", table)
            continue
        if new_rows:
            found.append(new_rows)
    return found


def record(engine: Engine, versions: dict[str, int]) -> None:
    """Record that Airflow has taken events with these versions of tables."""
    with database.transaction(engine) as connection:
        now_seconds = database.now(connection)
        for table, version in versions.items():
            values = {"version": version, "at": now_seconds}
            statement = database.insert(connection, announcements).values(table_name=table, **values)
            connection.execute(statement.on_conflict_do_update(index_elements=["table_name"], set_=values))


def _since(table: str, log: DeltaLog, announced: int | None) -> NewRows | None:
    """announced: the version of the last event. A table that was recreated since has lower versions."""
    if log.newest == announced:
        return None
    is_continued = announced is not None and announced < log.newest
    newer = [version for version in log.versions if not is_continued or version > (announced or 0)]
    newest_first = list(reversed(newer))[:MOST_COMMITS]
    changing = (version for version in newest_first if any(log.actions(version, CHANGES_ROWS)))
    commits = [log.commit(version) for version in (changing if is_continued else list(changing)[:1])]
    return _summary(table, commits) if commits else None


def _summary(table: str, commits: list[Commit]) -> NewRows:
    """commits: newest first."""
    counts = [commit.rows for commit in commits]
    offsets: dict[str, Any] = {}
    for commit in commits:
        flow = commit.metadata.get("flow")
        if flow is not None and "source_to" in commit.metadata:
            offsets.setdefault(flow, commit.metadata["source_to"])
    rows = None if None in counts else sum(count for count in counts if count is not None)
    return NewRows(table, commits[0].version, rows, offsets)
