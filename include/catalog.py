"""Finds every table file, checks the whole graph, and refuses a wrong one before anything runs."""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path

from include.errors import DeclarationError, UsageError
from include.settings import settings
from include.spec import Table, table_of
from include.validation import delta_sources, examination, last_good, table_files
from include.validation.declaration import suggest
from include.validation.examination import Examination
from include.validation.last_good import Definition

TABLES, EXAMPLES = "include.tables", "include.examples"

# While they are read anew, a thread that looks into one finds no module.
TABLE_FILES = threading.RLock()


@dataclass(frozen=True)
class Catalog:
    """All stored tables by name, each after the ones it reads. A table has one flow, which bears its name, or several;
    a materialized view has none.

    steps: the temporary ones, without a flow. invalid: by table, why its file is not used. `tables` and `steps` hold
    the last good definition of such a table, if any. unusable: by table, the one without a definition that
    it reads. files: the versions of the table files from which the catalog was made.
    """

    tables: dict[str, Table]
    steps: dict[str, Table] = field(default_factory=dict)
    invalid: dict[str, list[str]] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    files: frozenset[tuple[str, int]] = frozenset()

    @property
    def warnings(self) -> dict[str, str]:
        """By table whose file is not used, why, and what that means for the table and for those that read it."""
        return {name: f"{'; '.join(why)} ({self._consequence(name)})" for name, why in self.invalid.items()}

    def _consequence(self, name: str) -> str:
        if name in self.tables or name in self.steps:
            return f"{name} goes on with its last good definition"
        unusable = [below for below, above in self.unusable.items() if name in self._above(above)]
        return f"there is no earlier definition, so nothing runs of {', '.join([name, *unusable])}"

    def _above(self, name: str) -> list[str]:
        return [name, *self._above(self.unusable[name])] if name in self.unusable else [name]

    @property
    def flows(self) -> dict[str, Table]:
        """All flows by name, in the order of their tables; a flow is its table, with one source."""
        return {flow.flow: flow for table in self.tables.values() for flow in table.flows}

    @property
    def readers(self) -> dict[str, Table]:
        """The flows, and each view once for each of its sources."""
        return {reader.flow: reader for table in self.tables.values() for reader in table.readers}

    @property
    def views(self) -> dict[str, Table]:
        """The materialized views by name, each after those it reads."""
        return {name: table for name, table in self.tables.items() if table.is_view}

    def below(self, name: str) -> list[Table]:
        """What is made of it, each after those it reads. Raises UsageError for a table nobody declared."""
        found: list[Table] = []
        for table in self.tables.values():
            if {self.table(name).name, *(one.name for one in found)} & set(examination.reads(table)):
                found.append(table)
        return found

    def views_below(self, name: str) -> list[Table]:
        """The views that read it, or what is made of it, each after those it reads. Raises UsageError for none."""
        if not (found := [table for table in self.below(name) if table.is_view]):
            raise UsageError(f"no view reads '{name}', nor what is made of it: name a view, or a table above one")
        return found

    def table(self, name: str) -> Table:
        """Raises UsageError for a table nobody declared, DeclarationError for one whose file cannot be used."""
        self._require_usable(name)
        return _named("table", name, self.tables)

    def as_its_file_says(self, name: str) -> Table:
        """For work that today's code has to do: no last good definition stands in. Raises as `table`."""
        if name in self.invalid:
            raise DeclarationError(*self.invalid[name], table=name)
        return self.table(name)

    def owner(self, name: str) -> Table:
        """The table of this name, or the one whose quarantine it is. Raises UsageError."""
        owners = [one for one in self.tables.values() if one.has_quarantine and one.quarantine == name]
        return owners[0] if owners else self.table(name)

    def flow(self, name: str) -> Table:
        """Raises UsageError for a flow nobody declared, DeclarationError for one whose file cannot be used."""
        self._require_usable(table_of(name))
        if name in self.steps:
            raise UsageError(f"'{name}' is a temporary step and has no flow: name a table that reads it")
        if name in self.views:
            raise UsageError(f"'{name}' is a materialized view and has no flow: refresh it with jobs/refresh.py")
        return _named("flow", name, self.flows)

    def _require_usable(self, name: str) -> None:
        if name in self.tables or name in self.steps:
            return
        if name in self.invalid:
            raise DeclarationError(*self.invalid[name], table=name)
        if name in self.unusable:
            raise DeclarationError(f"{name} cannot be used, as it reads {self.unusable[name]}: mend that file")

    def drivers(self) -> dict[str, list[Table]]:
        """The flows that share a Spark process, by driver name, in graph order; without those that run in windows."""
        shared: dict[str, list[Table]] = {}
        for flow in self.flows.values():
            if not flow.merges_in_windows:
                shared.setdefault(flow.driver, []).append(flow)
        return shared


def _named(kind: str, name: str, options: dict[str, Table]) -> Table:
    if name not in options:
        raise UsageError(f"there is no {kind} '{name}': {suggest(name, list(options))}")
    return options[name]


@lru_cache
def load() -> Catalog:
    """The tables of this project and its examples: each as its file says or, where that is wrong, as it said last."""
    files, usable = versions(), examination.examine(table_files.find(declared_in()))
    invalid, kept = dict(usable.broken), dict[str, Definition]()
    while more := {name: it for name in usable.broken if name not in kept and (it := last_good.find(name))}:
        kept |= more
        usable = examination.examine(table_files.find(declared_in()), kept)
        # Why a file is not used is what is wrong with it, and not with what it said before.
        invalid = {**usable.broken, **invalid}
    return Catalog(*delta_sources.resolved(usable.tables), invalid, usable.unjudged, files)


def require(*packages: str) -> Catalog:
    """Every `<package>.<layer>.<name>`; without packages, the same tables as `load`.

    Raises DeclarationError with all sentences that `examine` has found.
    """
    catalog, found = examine(*packages)
    if found.broken:
        raise DeclarationError(*found.sentences)
    return catalog


def examine(*packages: str) -> tuple[Catalog, Examination]:
    """The tables that are right and read only such, and what was found out about all of them."""
    found = examination.examine(table_files.find(packages or declared_in()))
    return Catalog(*delta_sources.resolved(found.tables)), found


def keep(catalog: Catalog, tables: Iterable[str]) -> set[str]:
    """Keep the definitions of those of these tables whose files are right; returns which are new, or have changed."""
    right, found = {name for name in tables if name not in catalog.invalid}, {}
    with TABLE_FILES:
        for file in table_files.find(declared_in()):
            if file.table in right:
                # The next start, or the supervisor's next minute, keeps one that is changed at this very moment.
                with suppress(OSError, SyntaxError):
                    found[file.table] = last_good.of(file)
        # What was read has to be what was imported.
        is_unchanged = versions() == catalog.files
    return {name for name in found if is_unchanged and last_good.keep(name, found[name])}


def forget_deleted() -> None:
    """Of a table whose file was deleted, no definition is kept: a new one of its name is another table."""
    last_good.forget_others({file.table for file in table_files.find(declared_in())})


def reload() -> Catalog:
    """The catalog as its files are now, also where they were changed since this process imported them."""
    with TABLE_FILES:
        load.cache_clear()
        below = tuple(f"{package}." for package in declared_in())
        for module in [name for name in list(sys.modules) if name.startswith(below)]:
            del sys.modules[module]
        importlib.invalidate_caches()
        return load()


def versions() -> frozenset[tuple[str, int]]:
    """Each table file and when it was changed, in nanoseconds: by this a process that runs on notices a new one."""
    found = set()
    for one in table_files.find(declared_in()):
        # In the zip that cluster workers get, nothing changes.
        if isinstance(file := resources.files(one.package) / one.path, Path):
            with suppress(FileNotFoundError):
                found.add((one.place, file.stat().st_mtime_ns))
    return frozenset(found)


def has_file(table: str) -> bool:
    """Whether a file declares it, be it right or wrong."""
    return any(one.table == table for one in table_files.find(declared_in()))


def has_examples() -> bool:
    """Whether the examples are part of this project: `make remove-examples` takes them out, SLUICE_EXAMPLES=off too."""
    spec = importlib.util.find_spec(EXAMPLES) if settings().examples else None
    # A directory that is left without files is no package of ours.
    return spec is not None and spec.origin is not None


def declared_in() -> tuple[str, ...]:
    """The packages of this project's tables."""
    return (TABLES, f"{EXAMPLES}.tables") if has_examples() else (TABLES,)
