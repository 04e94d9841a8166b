"""Finds every table file, checks the graph of tables, and refuses a wrong table before anything runs."""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import TypeVar

from include.errors import DeclarationError, UsageError
from include.project import examination, last_good, sources, table_files
from include.project.declaration import suggest
from include.project.examination import Examination
from include.project.table_files import TableFile
from include.settings import settings
from include.spec import Flow, Table, table_of

T = TypeVar("T", bound=Table)

TABLES, EXAMPLES = "include.tables", "include.examples"

# `reload` removes the modules of table files: other threads hold this lock while they look into one.
TABLE_FILES = threading.RLock()


@dataclass(frozen=True)
class Catalog:
    """The declared tables by name, in graph order: each follows the tables that it reads.

    tables: the stored tables. A table has one flow with its own name, or one flow for each branch of its source.
        A materialized view has no flow.
    steps: the temporary steps, which have no flow.
    invalid: for each table whose file is not used, the reasons. `tables` and `steps` hold its last good definition,
        if there is one.
    unusable: for each table that reads a table without a definition, the name of that table.
    drafts: for each table whose file is a draft, a sentence. Its last good definition, if any, is used.
    files: the versions of the table files from which the catalog was built.
    placements: by flow, the driver that runs it instead of the declared one; see include.control.flows.placements.
    """

    tables: dict[str, Table]
    steps: dict[str, Table] = field(default_factory=dict)
    invalid: dict[str, list[str]] = field(default_factory=dict)
    unusable: dict[str, str] = field(default_factory=dict)
    drafts: dict[str, str] = field(default_factory=dict)
    files: frozenset[tuple[str, int]] = frozenset()
    placements: Mapping[str, str] = field(default_factory=dict)

    @property
    def warnings(self) -> dict[str, str]:
        """For each table whose file is not used: the reasons, and the consequence for it and for its readers."""
        return {name: f"{'; '.join(why)} ({self._consequence(name)})" for name, why in self.invalid.items()}

    @property
    def notices(self) -> list[str]:
        """A sentence for each table whose file is not used: wrong ones, then drafts."""
        return [*self.warnings.values(), *self.drafts.values()]

    def _consequence(self, name: str) -> str:
        if name in self.tables or name in self.steps:
            return f"{name} goes on with its last good definition"
        affected = [reader for reader, source in self.unusable.items() if name in self._unusable_chain(source)]
        return f"there is no earlier definition, so nothing runs of {', '.join([name, *affected])}"

    def _unusable_chain(self, name: str) -> list[str]:
        return [name, *self._unusable_chain(self.unusable[name])] if name in self.unusable else [name]

    def is_current(self, table: Table) -> bool:
        """Whether the files of a table of this catalog, and of its steps, are as they were when they were read."""
        places = {part.file for part in (table, *table.steps)}
        now = {(place, time) for place, time in file_versions() if place in places}
        return now == {(place, time) for place, time in self.files if place in places}

    @property
    def flows(self) -> dict[str, Flow]:
        """All flows by name, in the order of their tables."""
        return {flow.flow: flow for table in self.tables.values() for flow in table.flows}

    @property
    def readers(self) -> dict[str, Flow]:
        """All flows, and for each view what reads each of its sources."""
        return {reader.flow: reader for table in self.tables.values() for reader in table.readers}

    @property
    def views(self) -> dict[str, Table]:
        """The materialized views by name, in graph order."""
        return {name: table for name, table in self.tables.items() if table.is_view}

    def below(self, name: str) -> list[Table]:
        """The tables downstream of it, in graph order; none that only reads it at one version, whatever happens to it
        later. Raises UsageError for an unknown table.
        """
        downstream: list[Table] = []
        for table in self.tables.values():
            if {self.table(name).name, *(reader.name for reader in downstream)} & set(examination.reads(table, False)):
                downstream.append(table)
        return downstream

    def downstream_views(self, name: str) -> list[Table]:
        """The views downstream of it, in graph order. Raises UsageError where there is none."""
        if not (views := [table for table in self.below(name) if table.is_view]):
            raise UsageError(f"no view reads '{name}', nor what is made of it: name a view, or a table above one")
        return views

    def table(self, name: str) -> Table:
        """Raises UsageError for an unknown table, DeclarationError for a table whose file cannot be used."""
        self._require_usable(name)
        return _lookup("table", name, self.tables)

    def current_definition(self, name: str) -> Table:
        """The table as its file declares it now, never its last good definition. Raises the errors of `table`."""
        if name in self.invalid:
            raise DeclarationError(*self.invalid[name], table=name)
        if name in self.drafts:
            raise DeclarationError(self.drafts[name], table=name)
        return self.table(name)

    def owner(self, name: str) -> Table:
        """The table of this name, or the table whose quarantine has this name. Raises the errors of `table`."""
        owners = [table for table in self.tables.values() if table.quarantine == name]
        return owners[0] if owners else self.table(name)

    def flow(self, name: str) -> Flow:
        """Raises UsageError for an unknown flow, DeclarationError for a flow whose file cannot be used."""
        self._require_usable(table_of(name))
        if name in self.steps:
            raise UsageError(f"'{name}' is a temporary step and has no flow: name a table that reads it")
        if name in self.views:
            raise UsageError(f"'{name}' is a materialized view and has no flow: refresh it with jobs/refresh.py")
        return _lookup("flow", name, self.flows)

    def _require_usable(self, name: str) -> None:
        if name in self.tables or name in self.steps:
            return
        if name in self.invalid:
            raise DeclarationError(*self.invalid[name], table=name)
        if name in self.drafts:
            raise DeclarationError(self.drafts[name], table=name)
        if name in self.unusable:
            raise DeclarationError(f"{name} cannot be used, as it reads {self.unusable[name]}: fix that file")

    def drivers(self) -> dict[str, list[Flow]]:
        """The flows of each driver, in graph order, without the flows that run in maintenance windows."""
        shared: dict[str, list[Flow]] = {}
        for flow in self.flows.values():
            if not flow.merges_in_windows:
                shared.setdefault(self.driver_of(flow), []).append(flow)
        return shared

    def driver_of(self, flow: Flow) -> str:
        """The driver that runs the flow: the declared one, unless somebody has moved it."""
        return self.placements.get(flow.flow, flow.driver)

    def driver_for(self, table: Table) -> str:
        """The driver that is asked for jobs of the table: that of its first flow, if it has flows."""
        return self.driver_of(table.flows[0]) if table.flows else table.driver


def _lookup(kind: str, name: str, options: dict[str, T]) -> T:
    if name not in options:
        raise UsageError(f"there is no {kind} '{name}': {suggest(name, list(options))}")
    return options[name]


@lru_cache
def load() -> Catalog:
    """The tables of this project and its examples. A wrong file is replaced by its last good definition, if any."""
    versions, files = file_versions(), table_files.find(table_packages())
    drafts = table_files.drafts(files)
    substitutes = {name: definition for name in drafts if (definition := last_good.load(name))}
    result = examination.examine(files, substitutes)
    invalid = dict(result.broken)
    while definitions := {
        name: definition for name in result.broken if name not in substitutes and (definition := last_good.load(name))
    }:
        substitutes |= definitions
        result = examination.examine(files, substitutes)
        # The reasons from the file itself take precedence over those from its last good definition.
        invalid = {**result.broken, **invalid}
    tables, steps = sources.inline_steps(result.tables)
    sentences = {name: _draft_sentence(file, is_used=name in result.tables) for name, file in drafts.items()}
    return Catalog(tables, steps, invalid, result.unchecked, sentences, versions)


def _draft_sentence(file: TableFile, is_used: bool) -> str:
    return file.draft_sentence + (f" ({file.table} goes on with its last good definition)" if is_used else "")


def require(*packages: str) -> Catalog:
    """The catalog of all table files of these packages; without packages, of those that `load` reads.

    Raises DeclarationError with one sentence for each mistake.
    """
    catalog, result = examine(*packages)
    if result.broken:
        raise DeclarationError(*result.sentences)
    return catalog


def examine(*packages: str, with_drafts: bool = False) -> tuple[Catalog, Examination]:
    """The tables that are right and read only right ones, and the result of the checks for all tables.

    with_drafts: check drafts as if their marks were gone. Nothing of them is stored.
    """
    files = table_files.find(packages or table_packages())
    result = examination.examine([replace(file, is_draft=False) for file in files] if with_drafts else files)
    return Catalog(*sources.inline_steps(result.tables)), result


def store_definitions(catalog: Catalog, tables: Iterable[str]) -> set[str]:
    """Store the definitions of those tables whose files are right. Returns the names of new and changed ones."""
    valid_names, definitions = {name for name in tables if name not in catalog.invalid}, {}
    with TABLE_FILES:
        for file in table_files.find(table_packages()):
            if file.table in valid_names and not file.is_draft:
                # A file may change while it is read: the supervisor stores it in its next run, a minute later.
                with suppress(OSError, SyntaxError):
                    definitions[file.table] = last_good.read_definition(file)
        # The text that was read must be the text that was imported.
        is_unchanged = file_versions() == catalog.files
    return {name for name in definitions if is_unchanged and last_good.store(name, definitions[name])}


def delete_obsolete_definitions() -> None:
    """Delete the definitions of tables whose files are gone: a new file of the same name is another table."""
    last_good.delete_others({file.table for file in table_files.find(table_packages())})


def reload() -> Catalog:
    """Import all table files again, and return the catalog of their current state."""
    with TABLE_FILES:
        load.cache_clear()
        prefixes = tuple(f"{package}." for package in table_packages())
        for module in [name for name in list(sys.modules) if name.startswith(prefixes)]:
            del sys.modules[module]
        importlib.invalidate_caches()
        return load()


def file_versions() -> frozenset[tuple[str, int]]:
    """Path and modification time (ns) of each table file. A running process compares them to notice changes."""
    versions = set()
    for table_file in table_files.find(table_packages()):
        # A file inside the zip of a cluster worker has no path, and never changes.
        if isinstance(file := resources.files(table_file.package) / table_file.path, Path):
            with suppress(FileNotFoundError):
                versions.add((table_file.place, file.stat().st_mtime_ns))
    return frozenset(versions)


def draft_sentences(*packages: str) -> list[str]:
    """A sentence for each draft in these packages, by default in those that `load` reads. Imports no file."""
    files = table_files.drafts(table_files.find(packages or table_packages()))
    return [file.draft_sentence for file in files.values()]


def has_file(table: str) -> bool:
    """Whether a file for this table exists, right or wrong."""
    return any(table_file.table == table for table_file in table_files.find(table_packages()))


def has_examples() -> bool:
    """Whether the examples are part of this project: neither removed (`make remove-examples`) nor switched off."""
    spec = importlib.util.find_spec(EXAMPLES) if settings().examples else None
    # A directory without `__init__.py`, which a removal may leave behind, is a namespace package without an origin.
    return spec is not None and spec.origin is not None


def table_packages() -> tuple[str, ...]:
    """The packages that hold the table files of this project."""
    return (TABLES, f"{EXAMPLES}.tables") if has_examples() else (TABLES,)
