"""How old the oldest thing is that a table has yet to show, against the age that it promises."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from include.catalog import Catalog
from include.monitoring.lag import Lag
from include.spec import Delta, Table


@dataclass(frozen=True)
class Freshness:
    """seconds: the age of the oldest commit, record or file that is in a source and not in the table, also where it
    waits further up; 0 where there is none, None where nobody knows. by: the flow that has yet to read it.

    promised_seconds: the table's `fresh_minutes`; None without a promise.
    """

    table: str
    seconds: float | None
    by: str | None
    promised_seconds: float | None

    @property
    def is_kept(self) -> bool | None:
        """None without a promise, and where nobody knows."""
        if self.promised_seconds is None or self.seconds is None:
            return None
        return self.seconds <= self.promised_seconds

    @property
    def words(self) -> str:
        if self.promised_seconds is None:
            return ""
        promise = f"promised {self.promised_seconds / 60:g} min"
        if self.seconds is None:
            return f"unknown, {promise}"
        if self.is_kept:
            return f"fresh, {promise}"
        return f"{self.seconds / 60:,.1f} min old, {promise}: see {self.by}"


def look(tables: Catalog, lags: Mapping[str, Lag]) -> dict[str, Freshness]:
    """By table, in graph order."""
    feeding: dict[str, dict[str, Lag]] = {}
    for table in tables.tables.values():
        own = {reader.flow: lags[reader.flow] for reader in table.readers}
        read = [feeding[reader.source.table] for reader in table.readers if isinstance(reader.source, Delta)]
        feeding[table.name] = {flow: lag for found in (*read, own) for flow, lag in found.items()}
    return {name: _of(tables.tables[name], found.values()) for name, found in feeding.items()}


def _of(table: Table, feeding: Iterable[Lag]) -> Freshness:
    """feeding: the lags of its flows, and of those of all tables that they read from."""
    promised = None if table.fresh_minutes is None else table.fresh_minutes * 60
    ages = [(lag.seconds if lag.unknown is None else None, lag.flow) for lag in feeding]
    known = [(seconds, flow) for seconds, flow in ages if seconds is not None]
    oldest, by = max(known, key=lambda one: one[0], default=(0.0, ""))
    unknown = next((flow for seconds, flow in ages if seconds is None), None)
    # What is known to be too old is so, whatever else is unknown.
    if unknown and (promised is None or oldest <= promised):
        return Freshness(table.name, None, unknown, promised)
    return Freshness(table.name, oldest, by if oldest else None, promised)
