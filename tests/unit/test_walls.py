"""The import walls and the shape of the house, as docs/architecture.md draws them."""

import ast
import os
import subprocess
import sys
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.conftest import ROOT

LONGEST_DAG, LONGEST_JOB, LONGEST_MODULE, LONGEST_FUNCTION = 80, 60, 260, 40

DECLARATIONS = (
    "include.spec",
    "include.validation",
    "include.catalog",
    "include.settings",
    "include.errors",
    "include.retention",
    "include.rules",
    "include.tables",
    "include.examples.tables",
)
# psutil is no part of the design's table, but telling processes apart needs it.
CONTROL = (*DECLARATIONS, "include.control", "sqlalchemy", "psutil")
READERS = (*CONTROL, "include.readers", "deltalake", "pyarrow", "confluent_kafka")
LEDGER = (*READERS, "include.ledger")
MAINTENANCE = (*READERS, "include.maintenance")
RECOVERY = (*READERS, "include.ledger", "include.maintenance", "include.recovery")
# What tells others: each is imported by one module.
MONITORING = (*RECOVERY, "include.monitoring", "prometheus_client", "openlineage", "requests")
ENGINE = (*MONITORING, "include.engine", "pyspark", "py4j", "delta")
ORCHESTRATION = (*MONITORING, "include.orchestration", "airflow")
CLI = (*MONITORING, "include.cli")
WITHOUT_A_JVM = ("pyspark", "airflow", "include.engine", "include.orchestration")


@dataclass(frozen=True)
class Zone:
    """files: globs from the repository's root. may: what a module names in an import. never: not even transitively."""

    files: tuple[str, ...]
    may: tuple[str, ...]
    never: tuple[str, ...]


# `*`: everything that is installed.
ZONES = {
    "declarations": Zone(
        ("include/*.py", "include/tables/**/*.py", "include/examples/tables/**/*.py"), DECLARATIONS, ("*",)
    ),
    "spec": Zone(("include/spec/*.py",), ("include.spec", "include.rules"), ("*",)),
    "validation": Zone(("include/validation/*.py",), DECLARATIONS, ("*",)),
    "control": Zone(("include/control/**/*.py",), CONTROL, WITHOUT_A_JVM),
    "readers": Zone(("include/readers/*.py",), READERS, WITHOUT_A_JVM),
    "ledger": Zone(("include/ledger/*.py",), LEDGER, WITHOUT_A_JVM),
    "maintenance": Zone(("include/maintenance/*.py",), MAINTENANCE, WITHOUT_A_JVM),
    "recovery": Zone(("include/recovery/*.py",), RECOVERY, WITHOUT_A_JVM),
    "monitoring": Zone(("include/monitoring/*.py",), MONITORING, WITHOUT_A_JVM),
    "cli": Zone(("include/cli/*.py",), CLI, WITHOUT_A_JVM),
    "engine": Zone(("include/engine/**/*.py",), ENGINE, ("airflow", "include.orchestration", "jobs", "dags")),
    "orchestration": Zone(("include/orchestration/**/*.py",), ORCHESTRATION, ("pyspark", "include.engine", "jobs")),
    "jobs": Zone(("jobs/*.py",), (*DECLARATIONS, "include.engine"), ("airflow", "include.orchestration", "dags")),
    "dags": Zone(("dags/*.py",), ORCHESTRATION, ("pyspark", "include.engine", "jobs")),
    "plugins": Zone(("plugins/**/*.py",), ORCHESTRATION, ("pyspark", "include.engine", "jobs")),
}

# Imports the modules named in argv[2:] where whatever argv[1] names cannot be imported.
GUARDED = """
import importlib, sys

never = sys.argv[1].split(",")

class Wall:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        installed = top not in sys.stdlib_module_names and top not in ("include", "trespasser")
        banned = ("*" in never and installed) or any(name == b or name.startswith(b + ".") for b in never)
        if banned:
            raise ImportError(f"WALL: {name}")

sys.meta_path.insert(0, Wall())
for module in sys.argv[2:]:
    importlib.import_module(module)
"""


def module_name(file: Path) -> str:
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def files_of(*globs: str) -> list[Path]:
    return sorted(file for pattern in globs for file in ROOT.glob(pattern))


def rooms_files(zone: str) -> list[Path]:
    """Without `__main__`, where a room has one: it is a door to `include.cli`."""
    return [file for file in files_of(*ZONES[zone].files) if file.stem != "__main__"]


def guarded_import(never: tuple[str, ...], modules: list[str], extra_path: Path | None = None):
    path = os.pathsep.join(str(part) for part in (ROOT, extra_path) if part)
    return subprocess.run(
        [sys.executable, "-c", GUARDED, ",".join(never), *modules],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("zone", ZONES)
def test_a_zone_can_be_imported_where_what_it_must_not_know_is_missing(zone: str):
    modules = [module_name(file) for file in rooms_files(zone)]
    assert modules
    done = guarded_import(ZONES[zone].never, modules)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("never", "line"),
    [
        (("*",), "import psutil"),
        (("*",), "from sqlalchemy import select"),
        (("pyspark",), "from pyspark.sql import functions"),
        (("include.engine",), "from include.engine import session"),
        (("include.engine",), "from include import engine"),
        (("jobs",), "import jobs.stream"),
    ],
)
def test_the_wall_stops_what_it_is_there_to_stop(tmp_path: Path, never: tuple[str, ...], line: str):
    (tmp_path / "trespasser.py").write_text(line)
    done = guarded_import(never, ["trespasser"], tmp_path)
    assert done.returncode == 1
    assert "ImportError: WALL: " in done.stderr


def imports(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node, name.name) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node, f"{node.module}.{name.name}") for name in node.names]
    return found


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("zone", ZONES)
def test_a_zone_names_only_what_it_may_import(zone: str):
    strangers = []
    for file in rooms_files(zone):
        for _, name in imports(ast.parse(file.read_text())):
            sanctioned = "tables" in file.parts and name == "pyspark.sql.functions"
            plain = name.partition(".")[0] in sys.stdlib_module_names
            if not (plain or sanctioned or is_within(name, ZONES[zone].may)):
                strangers.append(f"{file.relative_to(ROOT)} imports {name}")
    assert strangers == []


def code() -> list[Path]:
    return files_of("include/**/*.py", "jobs/*.py", "dags/*.py", "plugins/**/*.py")


def test_an_import_stands_at_the_top_of_its_file_and_only_a_transform_has_one_inside():
    wrong = []
    for file in code():
        tree = ast.parse(file.read_text())
        top = {id(node) for node in tree.body}
        for node, name in imports(tree):
            if id(node) not in top and not ("tables" in file.parts and name == "pyspark.sql.functions"):
                wrong.append(f"{file.relative_to(ROOT)}:{node.lineno} imports {name} late")
    assert wrong == []


def module_graph() -> dict[str, set[str]]:
    """Each module of the house, and which others it imports."""
    modules = {module_name(file): file for file in code()}
    graph = {}
    for module, file in modules.items():
        named = [name for _, name in imports(ast.parse(file.read_text()))]
        graph[module] = {name if name in modules else name.rpartition(".")[0] for name in named} & modules.keys()
    return graph


def test_no_import_leads_back_to_where_it_began():
    try:
        list(TopologicalSorter(module_graph()).static_order())
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


MOST_FILES, LARGEST_SHARE = 20, 0.25


def test_no_room_holds_more_than_20_files_or_a_quarter_of_all_lines():
    rooms: dict[str, list[int]] = {}
    for file in files_of("include/**/*.py"):
        rooms.setdefault(str(file.parent.relative_to(ROOT)), []).append(len(file.read_text().splitlines()))
    everything = sum(sum(lengths) for lengths in rooms.values())
    crowded = {
        room: (len(lengths), sum(lengths))
        for room, lengths in rooms.items()
        if len([length for length in lengths if length]) > MOST_FILES or sum(lengths) > LARGEST_SHARE * everything
    }
    assert crowded == {}


def test_no_import_is_relative():
    wrong = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in [*code(), *files_of("tests/**/*.py")]
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("pattern", "most"),
    [("dags/*.py", LONGEST_DAG), ("jobs/*.py", LONGEST_JOB), ("include/**/*.py", LONGEST_MODULE)],
)
def test_no_module_is_longer_than_its_kind_may_be(pattern: str, most: int):
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files_of(pattern)}
    assert lengths
    assert {file: length for file, length in lengths.items() if length > most} == {}


def test_no_function_is_longer_than_40_lines():
    long = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for file in code()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert long == []


def test_no_module_is_called_utils_common_or_helpers():
    names = {file.stem for file in [*code(), *files_of("tests/**/*.py", "benchmarks/**/*.py")]}
    assert names.isdisjoint({"utils", "util", "common", "helpers", "helper", "misc"})


def test_no_file_edits_the_import_path():
    # In pieces, so that this line does not find itself.
    needle = "sys" + ".path"
    assert [str(file.relative_to(ROOT)) for file in code() if needle in file.read_text()] == []


# Nobody else can set an event that nobody else knows, so waiting for it is sleeping.
SLEEPS = ("time.sleep", "sleep", "threading.Event().wait", "Event().wait")


def test_no_test_sleeps():
    sleeping = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in files_of("tests/**/*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS
    ]
    assert [place for place in sleeping if not place.startswith("tests/support/waiting.py:")] == []
