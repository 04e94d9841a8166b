"""The last good definition of each table: what its file said when it was last right, kept for when it is not.

A definition is the text of the table file and of the modules of the same package that it imports. It lies below the
home, where every driver, task and command finds it.
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

from include.settings import settings
from include.spec import Table
from include.validation.table_files import TableFile


@dataclass(frozen=True)
class Definition:
    """modules: by its full name, the text of each. packages: those among them, and where their other modules lie."""

    modules: dict[str, str]
    packages: dict[str, list[str]] = field(default_factory=dict)


def of(file: TableFile) -> Definition:
    """Of a table file that was imported. Raises OSError and SyntaxError where it has changed since."""
    modules: dict[str, str] = {}
    pending = [file.module, f"{file.package}.{file.layer}"]
    while pending:
        name = pending.pop()
        module = sys.modules.get(name)
        if name in modules or module is None or not name.startswith(f"{file.package}."):
            continue
        # Of a package without a file of its own there is no text.
        modules[name] = _text(module) or ""
        pending += _imports(modules[name], module)
    packages = {name: list(sys.modules[name].__path__) for name in modules if hasattr(sys.modules[name], "__path__")}
    return Definition(modules, packages)


def keep(table: str, definition: Definition) -> bool:
    """Whether it is another than the one that was kept; from now on it is the last good one."""
    path, text = _path(table), json.dumps(asdict(definition), indent=1)
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    # A rename, so that nobody reads half of it.
    written = path.with_suffix(f".{os.getpid()}.new")
    written.write_text(text)
    written.rename(path)
    return True


def forget_others(tables: Collection[str]) -> None:
    """Keep the definitions of these tables only."""
    for path in settings().definitions.glob("*.json"):
        if path.stem not in tables:
            path.unlink(missing_ok=True)


def find(table: str) -> Definition | None:
    """None where none was kept, or where it cannot be read."""
    try:
        return Definition(**json.loads(_path(table).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def declared(file: TableFile, definition: Definition) -> Table:
    """The table that it declares. Raises what its import raises."""
    with _imported_from(definition, kept=file.module):
        table: Table = importlib.import_module(file.module).TABLE
    return replace(table, file=file.place)


def _path(table: str) -> Path:
    return settings().definitions / f"{table}.json"


def _text(module: ModuleType) -> str | None:
    loader = module.__spec__ and module.__spec__.loader
    return loader.get_source(module.__name__) if isinstance(loader, importlib.abc.InspectLoader) else None


def _imports(text: str, module: ModuleType) -> Iterator[str]:
    """Names of modules, and of what may be one."""
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
def _imported_from(definition: Definition, kept: str) -> Iterator[None]:
    """Inside, its modules come from its texts. kept: the one that stays imported, where inspect looks for its text."""
    before = {name: sys.modules.pop(name, None) for name in definition.modules}
    finder = _Finder(definition)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name, module in before.items():
            if module is not None:
                sys.modules[name] = module
            elif name != kept:
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
        # By its text, as Python remembers the lines of a file by its name.
        digest = hashlib.sha256(self._text.encode()).hexdigest()[:12]
        return f"{fullname.replace('.', '/')}.py, last good definition {digest}"

    def get_data(self, path: str | bytes) -> bytes:
        return self._text.encode()
