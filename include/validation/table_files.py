"""Finds and imports the table files. A failure becomes a sentence that names the file and the line."""

import importlib
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable

from include.errors import DeclarationError
from include.spec import LAYERS, Table
from include.validation import import_errors

# The name is part of SQL, of paths and of DAG ids.
NAME = re.compile("[a-z][a-z0-9_]*")
LONGEST_NAME = 100


@dataclass(frozen=True)
class TableFile:
    """package: for example `include.tables`. path: path in the package, for example `silver/readings.py`."""

    package: str
    path: str

    @property
    def place(self) -> str:
        """The path from the root of the repository."""
        return f"{self.package.replace('.', '/')}/{self.path}"

    @property
    def layer(self) -> str:
        return self.path.removesuffix(".py").rpartition("/")[0]

    @property
    def module(self) -> str:
        """The full name of the module."""
        return f"{self.package}.{self.layer}.{self.stem}"

    @property
    def table(self) -> str:
        """The name of the table that the file must declare."""
        return f"{self.layer}.{self.stem}"

    @property
    def stem(self) -> str:
        return self.path.removesuffix(".py").rpartition("/")[2]

    def refused(self, sentence: str, line: int | None = None) -> DeclarationError:
        location = f"{self.place}:{line}" if line else self.place
        return DeclarationError(f"{location}: {sentence}", table=self.table)


def find(packages: Iterable[str]) -> list[TableFile]:
    """All table files, including files outside the layers."""
    return [
        TableFile(package, path) for package in packages for path in sorted(_module_paths(resources.files(package)))
    ]


def import_table(file: TableFile, others: Iterable[TableFile]) -> Table:
    """Import the table of a file. Raises DeclarationError for a wrong path or name, or a file without a table."""
    _check_place(file, [other for other in others if other != file])
    table = _import_table(file)
    if table.name != file.table:
        raise file.refused(f"name is {table.name!r}, which is not its path: call it '{file.table}'")
    if other := next(_further_tables(file), None):
        raise file.refused(
            f"declares '{other.name}', too, and a file is one table, so nothing would run of it: move it to "
            f"{other.name.replace('.', '/')}.py"
        )
    return replace(table, file=file.place)


def _further_tables(file: TableFile) -> Iterator[Table]:
    """Yields the tables of other names that the module of a file makes, also in lists. Imported ones do not count."""
    module = sys.modules[file.module]
    project = tuple(f"{package}." for package in ("include", file.package))
    others = [other for name, other in list(sys.modules.items()) if name.startswith(project) and other is not module]
    imported = {id(getattr(other, "TABLE", None)) for other in others}
    for value in vars(module).values():
        values = value.values() if isinstance(value, dict) else value
        for item in values if isinstance(value, list | tuple | set | frozenset | dict) else (value,):
            if isinstance(item, Table) and item.name != file.table and id(item) not in imported:
                yield item


def _module_paths(directory: Traversable, prefix: str = "") -> Iterator[str]:
    """Paths of all modules in a directory tree, except names that begin with `_` or `.`.

    `Path.glob` finds nothing inside the zip that cluster workers get.
    """
    for entry in directory.iterdir():
        if entry.name.startswith(("_", ".")):
            continue
        if entry.is_dir():
            yield from _module_paths(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield prefix + entry.name


def _check_place(file: TableFile, others: list[TableFile]) -> None:
    if file.layer not in LAYERS:
        raise file.refused(f"lies in no layer, so it would be ignored: move it to one of {', '.join(LAYERS)}")
    for other in others:
        if other.table == file.table:
            raise file.refused(f"{other.place} declares {file.table}, too: rename one of them")
        if other.table.lower() == file.table.lower():
            raise file.refused(
                f"{file.table} and {other.table} differ in capital letters alone, and SQL and some disks take them for "
                f"one: rename one of them"
            )
    if not NAME.fullmatch(file.stem):
        raise file.refused(
            f"'{file.stem}' is no name for a table, as SQL, paths and DAG ids have to say it: use small letters, "
            f"digits and _"
        )
    if len(file.stem) > LONGEST_NAME:
        raise file.refused(f"its name has {len(file.stem)} letters: use {LONGEST_NAME} at most")


def _import_table(file: TableFile) -> Table:
    package, place = f"{file.package}.{file.layer}", f"{file.package.replace('.', '/')}/{file.layer}/__init__.py"
    try:
        # The layer is imported first: its errors must not be attributed to the table file.
        importlib.import_module(package)
        place = file.place
        module = importlib.import_module(file.module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise DeclarationError(import_errors.sentence(place, error), table=file.table) from error
    table = getattr(module, "TABLE", None)
    if not isinstance(table, Table):
        raise file.refused("has no `TABLE = Table(...)`: add it, or move the file out of the tables")
    return table
