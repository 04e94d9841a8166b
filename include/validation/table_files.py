"""Finds the files of tables, and imports each: what goes wrong there is a sentence about the file, and its line."""

import importlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable

from include.errors import DeclarationError
from include.spec import LAYERS, Table
from include.validation import import_errors

# It becomes part of SQL, of paths and of the ids of DAGs.
NAME = re.compile("[a-z][a-z0-9_]*")
LONGEST_NAME = 100


@dataclass(frozen=True)
class TableFile:
    """package: `include.tables`, say. path: below it, `silver/readings.py`."""

    package: str
    path: str

    @property
    def place(self) -> str:
        """Its path from the root of the repository."""
        return f"{self.package.replace('.', '/')}/{self.path}"

    @property
    def layer(self) -> str:
        return self.path.removesuffix(".py").rpartition("/")[0]

    @property
    def module(self) -> str:
        """By which it is imported."""
        return f"{self.package}.{self.layer}.{self.stem}"

    @property
    def table(self) -> str:
        """The name of the table that it has to declare."""
        return f"{self.layer}.{self.stem}"

    @property
    def stem(self) -> str:
        return self.path.removesuffix(".py").rpartition("/")[2]

    def refused(self, sentence: str, line: int | None = None) -> DeclarationError:
        where = f"{self.place}:{line}" if line else self.place
        return DeclarationError(f"{where}: {sentence}", table=self.table)


def find(packages: Iterable[str]) -> list[TableFile]:
    """All files of tables, those in a wrong place too."""
    return [TableFile(package, path) for package in packages for path in sorted(_below(resources.files(package)))]


def declared(file: TableFile, others: Iterable[TableFile]) -> Table:
    """The table of a file. Raises DeclarationError where the file has a wrong place or name, or declares no table."""
    _check_place(file, [other for other in others if other != file])
    table = _imported(file)
    if table.name != file.table:
        raise file.refused(f"name is {table.name!r}, which is not its path: call it '{file.table}'")
    return replace(table, file=file.place)


def _below(directory: Traversable, above: str = "") -> Iterator[str]:
    """Paths of all modules below, except those whose name begins with `_` or `.`.

    Not by Path.glob, which finds nothing inside the zip that cluster workers get.
    """
    for entry in directory.iterdir():
        if entry.name.startswith(("_", ".")):
            continue
        if entry.is_dir():
            yield from _below(entry, f"{above}{entry.name}/")
        elif entry.name.endswith(".py"):
            yield above + entry.name


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


def _imported(file: TableFile) -> Table:
    module, place = f"{file.package}.{file.layer}", f"{file.package.replace('.', '/')}/{file.layer}/__init__.py"
    try:
        # First, so that what goes wrong there is not said of the table.
        importlib.import_module(module)
        place = file.place
        imported = importlib.import_module(file.module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise DeclarationError(import_errors.sentence(place, error), table=file.table) from error
    table = getattr(imported, "TABLE", None)
    if not isinstance(table, Table):
        raise file.refused("has no `TABLE = Table(...)`: add it, or move the file out of the tables")
    return table
