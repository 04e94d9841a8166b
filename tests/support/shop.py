"""A project of a test's own: a package of table files that can be written, broken and mended while it runs."""

import sys
from pathlib import Path

import pytest

from include import catalog
from include.catalog import Catalog

BRONZE = """
from include.spec import Kafka, Table

TABLE = Table(name="bronze.{name}", comment="as it came", source=Kafka("{name}"))
"""
ABOVE = """
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


class Shop:
    """The tables of the project; `include.catalog` knows these and no others."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
        self.package = package
        self._root = root / package
        for layer in ("bronze", "silver", "gold"):
            (self._root / layer).mkdir(parents=True)
            (self._root / layer / "__init__.py").touch()
        (self._root / "__init__.py").touch()
        monkeypatch.syspath_prepend(root)
        monkeypatch.setattr(catalog, "declared_in", lambda: (package,))
        # What a test imports changes faster than a cached file of bytes can tell.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def path(self, name: str) -> Path:
        """Of the file of a table `layer.name`."""
        return self._root / f"{name.replace('.', '/')}.py"

    def write(self, name: str, text: str) -> None:
        """Whole at once, as an editor does."""
        written = self.path(name).with_suffix(".new")
        written.write_text(text)
        written.rename(self.path(name))

    def bronze(self, name: str) -> str:
        """A right file of the table `bronze.<name>`; returns its text."""
        return self._written(f"bronze.{name}", BRONZE.format(name=name))

    def above(self, table: str, source: str, columns: str = '"value"', schema: str = "value BINARY") -> str:
        """A right file of a table that reads another; returns its text."""
        layer, name = table.split(".")
        text = ABOVE.format(layer=layer, name=name, source=source, columns=columns, schema=schema)
        return self._written(table, text)

    def load(self) -> Catalog:
        """As a process does that starts now."""
        return catalog.reload()

    def _written(self, name: str, text: str) -> str:
        self.write(name, text)
        return text


def forget(package: str) -> None:
    """What the next test imports is its own."""
    for name in [name for name in sys.modules if name == package or name.startswith(f"{package}.")]:
        del sys.modules[name]
    catalog.load.cache_clear()
