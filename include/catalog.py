"""Finds every table file, checks the whole graph, and refuses a wrong one before anything runs."""

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from include import declaration
from include.declaration import (
    avro,
    expectations,
    files,
    layout,
    mistake,
    reading,
    resets,
    slices,
    sources,
    suggest,
    views,
)
from include.errors import DeclarationError, UsageError
from include.settings import settings
from include.spec import LAYERS, Delta, References, Table

# What is wrong with a table by itself.
ALONE = (
    declaration.check_alone,
    views.check,
    layout.check,
    sources.check,
    avro.check,
    reading.check_alone,
    slices.check,
    resets.check,
)


TABLES, EXAMPLES = "include.tables", "include.examples"

# While they are read anew, a thread that looks into one finds no module.
TABLE_FILES = threading.RLock()


@dataclass(frozen=True)
class Catalog:
    """All stored tables by name, each after the ones it reads. A table has one flow, which bears its name, or several;
    a materialized view has none.

    steps: the temporary ones, which have none.
    """

    tables: dict[str, Table]
    steps: dict[str, Table] = field(default_factory=dict)

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
            if {self.table(name).name, *(one.name for one in found)} & set(_reads(table)):
                found.append(table)
        return found

    def views_below(self, name: str) -> list[Table]:
        """The views that read it, or what is made of it, each after those it reads. Raises UsageError for none."""
        if not (found := [table for table in self.below(name) if table.is_view]):
            raise UsageError(f"no view reads '{name}', nor what is made of it: name a view, or a table above one")
        return found

    def table(self, name: str) -> Table:
        """Raises UsageError for a table nobody declared."""
        return _named("table", name, self.tables)

    def owner(self, name: str) -> Table:
        """The table of this name, or the one whose quarantine it is. Raises UsageError."""
        owners = [one for one in self.tables.values() if one.has_quarantine and one.quarantine == name]
        return owners[0] if owners else self.table(name)

    def flow(self, name: str) -> Table:
        """Raises UsageError for a flow nobody declared."""
        if name in self.steps:
            raise UsageError(f"'{name}' is a temporary step and has no flow: name a table that reads it")
        if name in self.views:
            raise UsageError(f"'{name}' is a materialized view and has no flow: refresh it with jobs/refresh.py")
        return _named("flow", name, self.flows)

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
def load(*packages: str) -> Catalog:
    """Every `<package>.<layer>.<name>`, checked; without packages, the tables of this project and its examples.

    Raises DeclarationError, one sentence that names the file.
    """
    found: dict[str, Table] = {}
    for package, path in _table_files(packages or _packages()):
        layer, _, name = path.removesuffix(".py").rpartition("/")
        if layer not in LAYERS:
            place = f"{package.replace('.', '/')}/{path}"
            raise DeclarationError(
                f"{place} lies in no layer, so it would be ignored: move it to one of {', '.join(LAYERS)}"
            )
        table = _import(package, layer, name)
        if f"{layer}.{name}" in found:
            raise DeclarationError(
                f"{package.replace('.', '/')}/{path}: another file declares {layer}.{name}, too: rename one of them"
            )
        expected = f"{layer}.{name}"
        if table.name != expected:
            raise mistake(table, f"name is '{table.name}', which is not its path: call it '{expected}'", expected)
        for alone in ALONE:
            alone(table)
        found[expected] = table
    for table in found.values():
        for among in (declaration.check_among, expectations.check, files.check):
            among(table, found)
    ordered = {name: found[name] for name in _in_graph_order(found)}
    for table in ordered.values():
        reading.check_among(table, ordered)
    return Catalog(*reading.resolved(ordered))


def reload() -> Catalog:
    """The catalog as its files are now, also where they were changed since this process imported them."""
    with TABLE_FILES:
        load.cache_clear()
        below = tuple(f"{package}." for package in _packages())
        for module in [name for name in sys.modules if name.startswith(below)]:
            del sys.modules[module]
        importlib.invalidate_caches()
        return load()


def versions() -> frozenset[tuple[str, int]]:
    """Each table file and when it was changed, in nanoseconds: by this a process that runs on notices a new one."""
    return frozenset(
        (f"{package}/{path}", file.stat().st_mtime_ns)
        for package, path in _table_files(_packages())
        # In the zip that cluster workers get, nothing changes.
        if isinstance(file := resources.files(package) / path, Path) and file.exists()
    )


def has_examples() -> bool:
    """Whether the examples are part of this project: `make remove-examples` takes them out, SLUICE_EXAMPLES=off too."""
    spec = importlib.util.find_spec(EXAMPLES) if settings().examples else None
    # A directory that is left without files is no package of ours.
    return spec is not None and spec.origin is not None


def _packages() -> tuple[str, ...]:
    return (TABLES, f"{EXAMPLES}.tables") if has_examples() else (TABLES,)


def _table_files(packages: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for package in packages:
        for path in sorted(_files(resources.files(package))):
            yield package, path


def _files(directory: Traversable, above: str = "") -> Iterator[str]:
    """Paths of all modules below, except those whose name begins with `_` or `.`.

    Not by Path.glob, which finds nothing inside the zip that cluster workers get.
    """
    for entry in directory.iterdir():
        if entry.name.startswith(("_", ".")):
            continue
        if entry.is_dir():
            yield from _files(entry, f"{above}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield above + entry.name


def _import(package: str, layer: str, name: str) -> Table:
    module_name, path = f"{package}.{layer}", f"{package}.{layer}".replace(".", "/")
    try:
        # First, so that what goes wrong there is not said of the table.
        place = f"{path}/__init__.py"
        importlib.import_module(module_name)
        place = f"{path}/{name}.py"
        module = importlib.import_module(f"{module_name}.{name}")
    except Exception as error:
        raise DeclarationError(
            f"{place} cannot be imported ({type(error).__name__}: {error}): mend that line; "
            f"pyspark is imported inside `transform` only"
        ) from error
    table = getattr(module, "TABLE", None)
    if not isinstance(table, Table):
        raise DeclarationError(f"{place} has no `TABLE = Table(...)`: add it, or move the file out of the tables")
    return table


def _in_graph_order(tables: dict[str, Table]) -> list[str]:
    reads = {name: _reads(table) for name, table in tables.items()}
    try:
        return list(TopologicalSorter(reads).static_order())
    except CycleError as error:
        path = error.args[1]
        raise mistake(tables[path[0]], f"reads itself in a cycle ({' <- '.join(path)}): cut one of these") from error


def _reads(table: Table) -> list[str]:
    source = [reader.source.table for reader in table.readers if isinstance(reader.source, Delta)]
    return source + [rule.table for rule in table.expect if isinstance(rule, References)]
