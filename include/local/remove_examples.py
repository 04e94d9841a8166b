"""Takes the examples out of this checkout: `make remove-examples`.

Their tables go, what feeds them, the tests and benchmarks that need them, and what they wrote below the home: tables,
checkpoints and landed files. Run it again after a merge of a newer Sluice, which may bring some of it back.
"""

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from include import catalog
from include.errors import SetupError, UsageError, report
from include.local.processes import Platform
from include.settings import ROOT, Settings, settings
from include.spec import Files, Kafka, Table

EXAMPLES = ROOT / "include" / "examples"
# Whoever imports one of these cannot do without the examples, or tests how they are removed.
NEEDED = [catalog.EXAMPLES, "include.local.remove_examples"]


def main() -> None:
    where = settings()
    if not EXAMPLES.exists():
        raise UsageError("the examples are not part of this checkout: nothing to remove")
    if Platform(where.home).processes():
        raise SetupError(f"the platform in {where.home} runs, and the examples with it: `make down`, then try again")
    # Raises where a table of this project reads an example.
    catalog.require(catalog.TABLES)
    examples = catalog.require(f"{catalog.EXAMPLES}.tables").tables
    for path in [*written(where, examples), *dependents(ROOT, names(examples)), EXAMPLES]:
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
        else:
            continue
        print(f"removed {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}")
    print("the examples are gone; `git status` shows it, `make new-table NAME=bronze.orders` begins with your own")


def names(tables: dict[str, Table]) -> set[str]:
    """By which a test or benchmark calls an example: its table, quarantine or topic."""
    sources = [flow.source for table in tables.values() for flow in table.flows]
    topics = {topic for source in sources if isinstance(source, Kafka) for topic in source.names}
    return {*tables, *(table.quarantine for table in tables.values()), *topics}


def written(where: Settings, tables: dict[str, Table]) -> list[Path]:
    """What the examples have written below the home, and the folders in which their files landed."""
    stored = [name for table in tables.values() for name in (table.name, table.quarantine)]
    flows = [flow for table in tables.values() for flow in table.flows]
    folders = [where.folder(flow.source.path) for flow in flows if isinstance(flow.source, Files)]
    landed = [Path(folder) for folder in folders if "://" not in folder]
    return [*map(where.table_path, stored), *(where.checkpoints(flow.flow) for flow in flows), *landed]


def dependents(root: Path, example_names: set[str]) -> list[Path]:
    """The tests and benchmarks that import the examples or name one, and those that import such a module in turn."""
    named = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in sorted(example_names)))
    files = [file for room in ("tests", "benchmarks") for file in sorted((root / room).rglob("*.py"))]
    imported = {file: set(_imports(file.read_text())) for file in files}
    gone = [file for file in files if named.search(file.read_text()) or _needs(imported[file], NEEDED)]
    while True:
        modules = [".".join(file.relative_to(root).with_suffix("").parts) for file in gone]
        more = [file for file in files if file not in gone and _needs(imported[file], modules)]
        if not more:
            return gone
        gone += more


def _needs(imported: set[str], modules: list[str]) -> bool:
    return any(name == module or name.startswith(f"{module}.") for name in imported for module in modules)


def _imports(code: str) -> Iterator[str]:
    """Every module that is imported, and every name out of one, as it may be a module, too."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


if __name__ == "__main__":
    report(main)
