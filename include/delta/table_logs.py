"""The logs of tables as they are listed at one moment, each once, for all who look at them in one pass."""

from include.delta.delta_log import DeltaLog, no_log
from include.lake import locations


class TableLogs:
    """Lists a log when somebody first asks for it."""

    def __init__(self) -> None:
        self._found: dict[str, DeltaLog | None] = {}

    def find(self, table: str) -> DeltaLog | None:
        """Returns a table's log; None where it is not stored. Raises Unreachable for a store that does not answer."""
        if table not in self._found:
            self._found[table] = DeltaLog(locations.table_path(table)) if locations.is_stored(table) else None
        return self._found[table]

    def get(self, table: str) -> DeltaLog:
        """Returns a table's log. Raises Unreachable where the table is not stored."""
        if (log := self.find(table)) is None:
            raise no_log(locations.table_path(table))
        return log
