"""Removes the examples from this checkout: `make remove-examples`.

It deletes their tables, producers, tests and benchmarks, and their data below the home directory: tables, checkpoints
and landed files. A merge of a newer Sluice may add examples again: run it again afterwards.
"""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from include import catalog
from include.errors import SetupError, UsageError, report
from include.lake import locations
from include.lake.paths import LakePath, remove_tree
from include.local.processes import Platform
from include.settings import ROOT, Settings, settings
from include.spec import Files, Table

EXAMPLES = ROOT / "include" / "examples"
# A module that imports one of these needs the examples, or tests their removal.
NEEDED = [catalog.EXAMPLES, "include.local.remove_examples"]


def main() -> None:
    """Remove the examples from this checkout, and their tables, checkpoints and landed files from its home."""
    config = settings()
    if not EXAMPLES.exists():
        raise UsageError("the examples are not part of this checkout: nothing to remove")
    if Platform(config.home).processes():
        raise SetupError(f"the platform in {config.home} runs, and the examples with it: `make down`, then try again")
    # Raises DeclarationError if a table of this project reads an example.
    catalog.require(catalog.TABLES)
    examples = catalog.require(f"{catalog.EXAMPLES}.tables").tables
    for path in [*written_paths(config, examples), *dependents(ROOT, example_names(examples)), EXAMPLES]:
        if path.is_dir():
            remove_tree(path)
        elif path.exists():
            path.unlink()
        else:
            continue
        print(f"removed {str(path).removeprefix(f'{ROOT}/')}")
    print("the examples are gone; `git status` shows it, `make new-table NAME=bronze.orders` begins with your own")


def example_names(tables: dict[str, Table]) -> set[str]:
    """Names that identify an example in a test or benchmark: its tables, quarantines and topics."""
    topics = {topic for table in tables.values() for flow in table.flows for topic in flow.source.names}
    return {*tables, *(table.quarantine for table in tables.values()), *topics}


def written_paths(config: Settings, tables: dict[str, Table]) -> list[LakePath]:
    """The tables and checkpoints of the examples below the home directory, and their landing folders."""
    table_names = [name for table in tables.values() for name in (table.name, table.quarantine)]
    flows = [flow for table in tables.values() for flow in table.flows]
    folders = [config.folder(flow.source_as(Files).path) for flow in flows if flow.source.reads_files]
    landing_folders = [Path(folder) for folder in folders if "://" not in folder]
    return [
        *(locations.table_path(name, config) for name in table_names),
        *(locations.checkpoints(flow.flow, config) for flow in flows),
        *landing_folders,
        *(config.home / folder for folder in import_module(catalog.EXAMPLES).SHOP_FOLDERS),
    ]


def dependents(root: Path, names: set[str]) -> list[Path]:
    """The tests and benchmarks that import or name an example, directly or through other modules."""
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(names)))
    files = [file for room in ("tests", "benchmarks") for file in sorted((root / room).rglob("*.py"))]
    imported = {file: set(_imports(file.read_text())) for file in files}
    dependent_files = [
        file for file in files if pattern.search(file.read_text()) or _imports_any(imported[file], NEEDED)
    ]
    while True:
        modules = [".".join(file.relative_to(root).with_suffix("").parts) for file in dependent_files]
        importers = [file for file in files if file not in dependent_files and _imports_any(imported[file], modules)]
        if not importers:
            return dependent_files
        dependent_files += importers


def _imports_any(imported: set[str], modules: list[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in imported for module in modules)


def _imports(code: str) -> Iterator[str]:
    """The names of imported modules and of imported members, which may be modules, too."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


if __name__ == "__main__":
    report(main)
