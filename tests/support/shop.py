"""A project of a test: a package of table files that the test can change at any time."""

import sys
from pathlib import Path

import pytest

from include import catalog
from include.catalog import Catalog

BRONZE_TEMPLATE = """
from include.spec import Kafka, Table

TABLE = Table(name="bronze.{name}", comment="as it came", source=Kafka("{name}"))
"""
READER_TEMPLATE = """
from include.spec import Delta, Table


def transform(rows):
    return rows.selectExpr({columns})


TABLE = Table(
    name="{layer}.{name}",
    comment="made of {source}",
    source=Delta("{source}"),
    schema="{schema}",
    transform=transform,
)
"""


class TableProject:
    """The table files of the project. `include.catalog` reads no other files."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
        self.package = package
        self._root = root / package
        for layer in ("bronze", "silver", "gold"):
            (self._root / layer).mkdir(parents=True)
            (self._root / layer / "__init__.py").touch()
        (self._root / "__init__.py").touch()
        monkeypatch.syspath_prepend(root)
        monkeypatch.setattr(catalog, "table_packages", lambda: (package,))
        # Changes within a second would not invalidate a cached bytecode file.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def path(self, name: str) -> Path:
        """The path of the file of the table `<layer>.<name>`."""
        return self._root / f"{name.replace('.', '/')}.py"

    def write(self, name: str, text: str) -> None:
        """Replace the file of a table atomically, as an editor does."""
        temporary_file = self.path(name).with_suffix(".new")
        temporary_file.write_text(text)
        temporary_file.rename(self.path(name))

    def write_bronze(self, name: str) -> str:
        """Write a valid file of the table `bronze.<name>`. Returns its text."""
        return self._write_text(f"bronze.{name}", BRONZE_TEMPLATE.format(name=name))

    def write_reader(self, table: str, source: str, columns: str = '"value"', schema: str = "value BINARY") -> str:
        """Write a valid file of a table that reads `source`. Returns its text."""
        layer, name = table.split(".")
        text = READER_TEMPLATE.format(layer=layer, name=name, source=source, columns=columns, schema=schema)
        return self._write_text(table, text)

    def load(self) -> Catalog:
        """Load the catalog from the current files."""
        return catalog.reload()

    def _write_text(self, name: str, text: str) -> str:
        self.write(name, text)
        return text


def unload_package(package: str) -> None:
    """Remove the package from sys.modules, so that the next test imports its own files."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    catalog.load.cache_clear()
