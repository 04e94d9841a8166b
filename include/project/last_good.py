"""Stores the last good definition of each table, which replaces its file while that is wrong.

A definition is the text of the table file and of the modules of the same package that it imports. It lies in the home
directory, where every driver, task and command can read it.
"""

import ast
import hashlib
import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

from include.project.table_files import TableFile
from include.settings import settings
from include.spec import Table


@dataclass(frozen=True)
class Definition:
    """modules: the text of each module, by full name. packages: the search path of each package among them."""

    modules: dict[str, str]
    packages: dict[str, list[str]] = field(default_factory=dict)


def read_definition(file: TableFile) -> Definition:
    """The definition of an imported table file. Raises OSError or SyntaxError if the file has changed since then."""
    modules: dict[str, str] = {}
    pending = [file.module, f"{file.package}.{file.layer}"]
    while pending:
        name = pending.pop()
        module = sys.modules.get(name)
        if name in modules or module is None or not name.startswith(f"{file.package}."):
            continue
        # A namespace package has no text.
        modules[name] = _source_text(module) or ""
        pending += _imported_names(modules[name], module)
    packages = {name: list(sys.modules[name].__path__) for name in modules if hasattr(sys.modules[name], "__path__")}
    return Definition(modules, packages)


def store(table: str, definition: Definition) -> bool:
    """Store the last good definition. Returns whether it differs from the stored one."""
    path, text = _path(table), json.dumps(asdict(definition), indent=1)
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    # Readers must never see a partly written file.
    temporary_file = path.with_suffix(f".{os.getpid()}.new")
    temporary_file.write_text(text)
    temporary_file.rename(path)
    return True


def delete_others(tables: Collection[str]) -> None:
    """Delete the definitions of all other tables."""
    for path in settings().definitions.glob("*.json"):
        if path.stem not in tables:
            path.unlink(missing_ok=True)


def load(table: str) -> Definition | None:
    """The stored definition; None if there is none, or if it cannot be read."""
    try:
        return Definition(**json.loads(_path(table).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def import_table(file: TableFile, definition: Definition) -> Table:
    """Import the table of a definition. Raises any error of the import."""
    with _import_from(definition, kept_module=file.module):
        table: Table = importlib.import_module(file.module).TABLE
    return replace(table, file=file.place)


def _path(table: str) -> Path:
    return settings().definitions / f"{table}.json"


def _source_text(module: ModuleType) -> str | None:
    loader = module.__spec__ and module.__spec__.loader
    return loader.get_source(module.__name__) if isinstance(loader, importlib.abc.InspectLoader) else None


def _imported_names(text: str, module: ModuleType) -> Iterator[str]:
    """The names of imported modules and of imported members, which may be modules, too."""
    package = module.__name__ if hasattr(module, "__path__") else module.__name__.rpartition(".")[0]
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            source = "." * statement.level + (statement.module or "")
            name = importlib.util.resolve_name(source, package) if statement.level else source
            yield name
            yield from (f"{name}.{alias.name}" for alias in statement.names)


@contextmanager
def _import_from(definition: Definition, kept_module: str) -> Iterator[None]:
    """Import the modules of a definition from its texts. kept_module stays in sys.modules, where `inspect` needs it."""
    replaced_modules = {name: sys.modules.pop(name, None) for name in definition.modules}
    finder = _Finder(definition)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in replaced_modules.items():
            if module is not None:
                sys.modules[name] = module
            elif name != kept_module:
                sys.modules.pop(name, None)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, definition: Definition) -> None:
        self._definition = definition

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self._definition.modules:
            return None
        loader, folders = _Loader(self._definition.modules[fullname]), self._definition.packages.get(fullname)
        spec = ModuleSpec(fullname, loader, origin=loader.get_filename(fullname), is_package=folders is not None)
        spec.has_location = True
        if folders is not None:
            spec.submodule_search_locations = folders
        return spec


class _Loader(importlib.abc.SourceLoader):
    def __init__(self, text: str) -> None:
        self._text = text

    def get_filename(self, fullname: str) -> str:
        # `linecache` caches lines by file name, so the name depends on the text.
        digest = hashlib.sha256(self._text.encode()).hexdigest()[:12]
        return f"{fullname.replace('.', '/')}.py, last good definition {digest}"

    def get_data(self, path: str | bytes) -> bytes:
        return self._text.encode()
