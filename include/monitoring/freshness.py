"""Compares the age of a table's oldest unread data with the promised age."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from include.catalog import Catalog
from include.monitoring.lag import Lag
from include.spec import Delta, Table


@dataclass(frozen=True)
class Freshness:
    """A table's freshness.

    seconds: the age of the oldest commit, record or file that is in a source, direct or indirect, and not in the table.
    It is 0 where there is none, and None where it is unknown. by: the flow that must still read it.
    promised_seconds: the table's `fresh_minutes`; None without a promise.
    """

    table: str
    seconds: float | None
    by: str | None
    promised_seconds: float | None

    @property
    def is_kept(self) -> bool | None:
        """None without a promise, and where the age is unknown."""
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


def measure(tables: Catalog, lags: Mapping[str, Lag]) -> dict[str, Freshness]:
    """Returns the freshness of each table, in graph order."""
    lags_of: dict[str, dict[str, Lag]] = {}
    for table in tables.tables.values():
        direct = {reader.flow: lags[reader.flow] for reader in table.readers}
        # A pinned source is as old as it is declared to be, whatever its table has still to read.
        followed = [reader.source for reader in table.readers if isinstance(reader.source, Delta)]
        inherited = [lags_of[source.table] for source in followed if not source.is_pinned]
        lags_of[table.name] = {flow: lag for group in (*inherited, direct) for flow, lag in group.items()}
    return {name: _of(tables.tables[name], table_lags.values()) for name, table_lags in lags_of.items()}


def _of(table: Table, upstream_lags: Iterable[Lag]) -> Freshness:
    """Returns the freshness of one table.

    upstream_lags: the lags of its flows and of the flows of all upstream tables.
    """
    promised = None if table.fresh_minutes is None else table.fresh_minutes * 60
    ages = [(lag.seconds if lag.unknown is None else None, lag.flow) for lag in upstream_lags]
    known_ages = [(seconds, flow) for seconds, flow in ages if seconds is not None]
    oldest, by = max(known_ages, key=lambda entry: entry[0], default=(0.0, ""))
    unknown = next((flow for seconds, flow in ages if seconds is None), None)
    # A known age beyond the promise counts, whatever else is unknown.
    if unknown and (promised is None or oldest <= promised):
        return Freshness(table.name, None, unknown, promised)
    return Freshness(table.name, oldest, by if oldest else None, promised)
