"""Holds back a flow's first rows, and a view's first refresh, until the tables it looks into have been loaded once.

With full topics, all flows begin at the same time. Without this, the rows of the first batches would find no partner,
and keep none. Aggregates and views would show the sum of some rows as that of all. A batch without rows looks for none:
on a new platform, nothing has arrived yet.
"""

import time
from collections.abc import Iterator, Mapping

from sqlalchemy import Engine

from include.catalog import Catalog
from include.control import first_loads
from include.control.first_loads import Awaited
from include.control.store import database
from include.delta import stored_table
from include.errors import SluiceError, Unreachable
from include.flows import sources
from include.lake import locations
from include.monitoring import lag
from include.project import examination
from include.rules import References
from include.spec import Flow, Table

# How often the positions of other flows are read.
LOOK_SECONDS = 2
# A view has no checkpoint. Once it is stored, it waits no more.
VIEW_LIFE = "view"


def tables_of(flow: Table) -> list[str]:
    """Returns the tables whose first load the flow or view waits for.

    A merge in windows reads what there is: nobody would see that its window waits.
    """
    computes_all = flow.is_view or (flow.is_recomputed and not flow.merges_in_windows)
    sources = flow.upstream if computes_all else ()
    names = [source.table for source in sources if source.wait and not source.is_pinned]
    names += [lookup.table for lookup in flow.lookups if lookup.wait]
    return names + [rule.table for rule in flow.expect if isinstance(rule, References) and rule.wait]


class FirstLoad:
    """The first load of what one flow or view looks into.

    name: of the flow or view. life: names the life of its table and checkpoint.
    """

    def __init__(self, engine: Engine, tables: Catalog, flow: Table, name: str, life: str = VIEW_LIFE) -> None:
        self._engine, self._name, self._life, self._is_view = engine, name, life, flow.is_view
        self._tables = [name for name in tables_of(flow) if name in tables.tables and name != flow.name]
        self._upstream = _upstream(tables, self._tables)
        self._looked_at: float | None = None

    def is_over(self) -> bool:
        """Whether the first batch may be written. Looks at most every `LOOK_SECONDS`."""
        now = time.monotonic()
        if self._looked_at is not None and now - self._looked_at < LOOK_SECONDS:
            return False
        self._looked_at = now
        try:
            return not self.pending()
        except Unreachable:
            return False

    def require(self) -> None:
        """Raises Unreachable if the first batch would have to wait."""
        if names := self.pending():
            raise Unreachable(
                f"{self._name}: {first_loads.words([(name, '') for name in names], time.time())}: start what it "
                f"waits for, and try again"
            )

    def pending(self) -> list[str]:
        """Returns the flows that have not read enough, in graph order, and records what is known. Raises Unreachable.

        Without them, returns the tables that are not stored.
        """
        known = first_loads.find(self._engine, self._name, self._life)
        seen: dict[str, Awaited] = {}
        for flow in self._upstream:
            seen[flow.flow] = self._look(flow, known.get(flow.flow) or Awaited(flow.flow), seen)
        if changed := [item for item in seen.values() if item != known.get(item.flow)]:
            first_loads.record(self._engine, self._name, self._life, changed)
        unread = [item.flow for item in seen.values() if not item.is_read]
        # The refresh itself says which table a view lacks, as one run may refresh a view and what reads it.
        missing = [] if self._is_view else self._tables
        return unread or [name for name in missing if not locations.is_stored(name)]

    def _look(self, flow: Flow, awaited: Awaited, seen: dict[str, Awaited]) -> Awaited:
        """Returns what is known now of a flow that is awaited. seen: the same of the flows above it."""
        if awaited.is_read:
            return awaited
        if flow.source.reads_table and any(not seen[name].is_read for name in self._writers(flow.source.table)):
            return awaited
        assert not isinstance(flow.source, Mapping), "a flow has one source"
        try:
            end = sources.of(flow).end() if awaited.end is None else awaited.end
            # A topic may have lost, or never get, what it held.
            is_read = sources.of(flow).has_reached(end) or lag.measure([flow])[flow.flow].is_up_to_date
        except SluiceError:
            # The flow itself says what is wrong.
            return awaited
        return Awaited(flow.flow, end, is_read)

    def _writers(self, table: str) -> Iterator[str]:
        return (flow.flow for flow in self._upstream if flow.name == table)


def has_begun(table: Table) -> bool:
    """Whether rows of the flow's source are in its table, or in its quarantine."""
    names = filter(locations.is_stored, (table.name, table.quarantine))
    return any(stored_table.open_table(name).count() for name in names)


def awaited_by_view(engine: Engine, tables: Catalog, view: Table) -> str:
    """Describes what the first refresh of a view waits for; empty for one that does not wait. Raises Unreachable."""
    if locations.is_stored(view.name) or not tables_of(view):
        return ""
    if not FirstLoad(engine, tables, view, view.name).pending():
        return ""
    with database.reading(engine) as connection:
        return first_loads.waiting(connection, [view.name], "refresh").get(view.name, "")


def life_of(table: Table, generation: int) -> str:
    """Names one life of a flow's table and checkpoint: without both, there is a first load again."""
    return f"{stored_table.open_table(table.name).metadata().id}/{generation}"


def _upstream(tables: Catalog, names: list[str]) -> list[Flow]:
    """Returns the flows of these tables and of all tables above them, in graph order."""
    found: set[str] = set()
    left = list(names)
    while left:
        if (name := left.pop()) in tables.tables and name not in found:
            found.add(name)
            left += examination.reads(tables.tables[name])
    return [flow for name, table in tables.tables.items() if name in found for flow in table.flows]
