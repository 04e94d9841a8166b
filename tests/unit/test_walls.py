"""Import rules and size limits of the code, as docs/project/code.md describes them."""

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import ROOT

LONGEST_DAG, LONGEST_JOB, LONGEST_MODULE, LONGEST_FUNCTION = 80, 60, 500, 60

DECLARATIONS = (
    "include.spec",
    "include.project",
    "include.addresses",
    "include.catalog",
    "include.settings",
    "include.errors",
    "include.layers",
    "include.logs",
    "include.access",
    "include.no_redirect",
    "include.personal",
    "include.private_files",
    "include.progress",
    "include.retention",
    "include.secret_variables",
    "include.rules",
    "include.tables",
    "include.examples.tables",
)
# include.control needs psutil to tell processes apart.
CONTROL = (*DECLARATIONS, "include.control", "sqlalchemy", "psutil")
LAKE = (*DECLARATIONS, "include.lake", "obstore", "pyarrow")
CHECKPOINTS = (*LAKE, "include.checkpoints")
DELTA = (*CHECKPOINTS, "include.delta", "deltalake", "pyarrow")
KAFKA = (*CHECKPOINTS, "include.kafka", "confluent_kafka", "javaproperties")
FLOWS = (*CONTROL, *DELTA, *KAFKA, "include.flows")
LEDGER = (*FLOWS, "include.ledger")
MAINTENANCE = (*FLOWS, "include.maintenance")
RECOVERY = (*FLOWS, "include.ledger", "include.maintenance", "include.recovery")
ERASURE = (*RECOVERY, "include.erasure", "numpy")
# One module imports each of these exporters.
MONITORING = (*ERASURE, "include.monitoring", "prometheus_client", "openlineage", "requests", "botocore")
CONSOLE = (
    *(*MONITORING, "include.console", "include.text_columns"),
    *("fastapi", "starlette", "uvicorn", "jinja2", "markupsafe", "markdown_it"),
)
ENGINE = (*MONITORING, "include.engine", "pyspark", "py4j", "delta", "jsonschema_rs")
AIRFLOW = (*CONSOLE, "include.airflow", "include.orchestration", "airflow", "jwt")
CLI = (*CONSOLE, "include.cli", "typer", "rich")
LOCAL = (*MONITORING, "include.local", "include.text_columns", "typer", "psycopg")
CONTAINERS = (*LOCAL, "include.containers")
WITHOUT_A_JVM = ("pyspark", "airflow", "include.engine", "include.airflow")


@dataclass(frozen=True)
class Zone:
    """files: globs below the repository root.

    allowed: what a module may import. forbidden: what must not be imported, even transitively.
    """

    files: tuple[str, ...]
    allowed: tuple[str, ...]
    forbidden: tuple[str, ...]


# `*`: all installed packages.
ZONES = {
    "declarations": Zone(
        ("include/*.py", "include/tables/**/*.py", "include/examples/tables/**/*.py"), DECLARATIONS, ("*",)
    ),
    "spec": Zone(("include/spec/*.py",), ("include.spec", "include.rules", "include.layers"), ("*",)),
    "project": Zone(("include/project/*.py",), DECLARATIONS, ("*",)),
    "lake": Zone(("include/lake/*.py",), LAKE, WITHOUT_A_JVM),
    "control": Zone(("include/control/**/*.py",), CONTROL, WITHOUT_A_JVM),
    "checkpoints": Zone(("include/checkpoints/*.py",), CHECKPOINTS, WITHOUT_A_JVM),
    "delta": Zone(("include/delta/*.py",), DELTA, WITHOUT_A_JVM),
    "kafka": Zone(("include/kafka/*.py",), KAFKA, WITHOUT_A_JVM),
    "flows": Zone(("include/flows/*.py",), FLOWS, WITHOUT_A_JVM),
    "ledger": Zone(("include/ledger/*.py",), LEDGER, WITHOUT_A_JVM),
    "maintenance": Zone(("include/maintenance/*.py",), MAINTENANCE, WITHOUT_A_JVM),
    "recovery": Zone(("include/recovery/*.py",), RECOVERY, WITHOUT_A_JVM),
    "erasure": Zone(("include/erasure/*.py",), ERASURE, WITHOUT_A_JVM),
    "monitoring": Zone(("include/monitoring/*.py",), MONITORING, WITHOUT_A_JVM),
    "console": Zone(("include/console/*.py",), CONSOLE, (*WITHOUT_A_JVM, "include.cli")),
    "cli": Zone(("include/cli/*.py",), CLI, WITHOUT_A_JVM),
    "local": Zone(("include/local/*.py",), LOCAL, WITHOUT_A_JVM),
    "containers": Zone(("include/containers/*.py",), CONTAINERS, WITHOUT_A_JVM),
    "engine": Zone(("include/engine/**/*.py",), ENGINE, ("airflow", "include.airflow", "jobs", "dags")),
    "airflow": Zone(
        ("include/airflow/**/*.py", "include/orchestration/*.py"), AIRFLOW, ("pyspark", "include.engine", "jobs")
    ),
    "jobs": Zone(("jobs/*.py",), (*DECLARATIONS, "include.engine"), ("airflow", "include.airflow", "dags")),
    "dags": Zone(("dags/*.py",), AIRFLOW, ("pyspark", "include.engine", "jobs")),
    "plugins": Zone(("plugins/**/*.py",), AIRFLOW, ("pyspark", "include.engine", "jobs")),
}

# Imports the modules in argv[2:], while the import of those in argv[1] fails.
GUARDED_IMPORT = """
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


def zone_files(zone: str) -> list[Path]:
    """The files of a zone without `__main__`, which imports `include.cli`."""
    return [file for file in files_of(*ZONES[zone].files) if file.stem != "__main__"]


def guarded_import(forbidden: tuple[str, ...], modules: list[str], extra_path: Path | None = None):
    path = os.pathsep.join(str(part) for part in (ROOT, extra_path) if part)
    return subprocess.run(
        [sys.executable, "-c", GUARDED_IMPORT, ",".join(forbidden), *modules],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("zone", ZONES)
def test_a_zone_can_be_imported_where_what_it_must_not_know_is_missing(zone: str):
    modules = [module_name(file) for file in zone_files(zone)]
    assert modules
    result = guarded_import(ZONES[zone].forbidden, modules)
    assert result.returncode == 0, result.stderr[-2000:]


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
    result = guarded_import(never, ["trespasser"], tmp_path)
    assert result.returncode == 1
    assert "ImportError: WALL: " in result.stderr


def imports(tree: ast.AST) -> list[tuple[ast.AST, str]]:
    pairs = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            pairs += [(node, name.name) for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            pairs += [(node, f"{node.module}.{name.name}") for name in node.names]
    return pairs


def is_within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("zone", ZONES)
def test_a_zone_names_only_what_it_may_import(zone: str):
    violations = []
    for file in zone_files(zone):
        for _, name in imports(ast.parse(file.read_text())):
            is_spark_function = "tables" in file.parts and name == "pyspark.sql.functions"
            is_standard = name.partition(".")[0] in sys.stdlib_module_names
            if not (is_standard or is_spark_function or is_within(name, ZONES[zone].allowed)):
                violations.append(f"{file.relative_to(ROOT)} imports {name}")
    assert violations == []


def code_files() -> list[Path]:
    return files_of("include/**/*.py", "jobs/*.py", "dags/*.py", "plugins/**/*.py")


def test_an_import_stands_at_the_top_of_its_file_and_only_a_transform_has_one_inside():
    violations = []
    for file in code_files():
        tree = ast.parse(file.read_text())
        top_level = {id(node) for node in tree.body}
        for node, name in imports(tree):
            if id(node) not in top_level and not ("tables" in file.parts and name == "pyspark.sql.functions"):
                violations.append(f"{file.relative_to(ROOT)}:{node.lineno} imports {name} late")
    assert violations == []


def module_graph() -> dict[str, set[str]]:
    """The modules of the code, each with the modules that it imports, also late and by `import_module`."""
    modules = {module_name(file): file for file in code_files()}
    graph = {}
    for module, file in modules.items():
        tree = ast.parse(file.read_text())
        names = [name for _, name in imports(tree)] + [
            node.args[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).endswith("import_module")
            and isinstance(node.args[0], ast.Constant)
        ]
        graph[module] = {name if name in modules else name.rpartition(".")[0] for name in names} & modules.keys()
    return graph


def circles(graph: dict[str, set[str]]) -> set[str]:
    """The nodes from which a way leads back to themselves."""

    def reachable(start: str) -> set[str]:
        found, ahead = set(), list(graph[start])
        while ahead:
            if (node := ahead.pop()) not in found:
                found.add(node)
                ahead += graph[node]
        return found

    return {node for node in graph if node in reachable(node)}


def test_no_import_leads_back_to_where_it_began_also_no_late_one():
    assert circles(module_graph()) == set()


def test_no_folder_imports_one_that_leads_back_to_it():
    """Each module at the root of `include` counts by itself. A `__main__` starts what it likes."""
    modules = {module_name(file): file for file in code_files() if file.stem != "__main__"}
    folders = {
        module: module if file.parent == ROOT / "include" else ".".join(file.parent.relative_to(ROOT).parts)
        for module, file in modules.items()
    }
    graph: dict[str, set[str]] = {folder: set() for folder in folders.values()}
    for module, imported in module_graph().items():
        if module in modules:
            graph[folders[module]] |= {folders[name] for name in imported} - {folders[module]}
    assert circles(graph) == set()


# Commands, and what `spark-submit jobs/... --dry-run` shows a person.
PRINTING = (
    *("include/cli/", "include/local/", "include/containers/", "jobs/", "include/errors.py"),
    "include/engine/check/check.py",
    *(f"include/engine/jobs/{name}.py" for name in ("backfill", "replay", "rewind", "window")),
)


def test_only_commands_print_and_all_else_is_logged():
    places = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in code_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "traceback.print_exc")
    ]
    assert [place for place in places if not place.startswith(PRINTING)] == []


def test_no_import_is_relative():
    violations = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in [*code_files(), *files_of("tests/**/*.py")]
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert violations == []


@pytest.mark.parametrize(
    ("pattern", "most"),
    [("dags/*.py", LONGEST_DAG), ("jobs/*.py", LONGEST_JOB), ("include/**/*.py", LONGEST_MODULE)],
)
def test_no_module_is_longer_than_its_kind_may_be(pattern: str, most: int):
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in files_of(pattern)}
    assert lengths
    assert {file: length for file, length in lengths.items() if length > most} == {}


def test_no_function_is_longer_than_60_lines():
    violations = [
        f"{file.relative_to(ROOT)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for file in code_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    ]
    assert violations == []


def test_no_module_is_called_utils_common_or_helpers():
    names = {file.stem for file in [*code_files(), *files_of("tests/**/*.py", "benchmarks/**/*.py")]}
    assert names.isdisjoint({"utils", "util", "common", "helpers", "helper", "misc"})


def test_no_file_edits_the_import_path():
    # The name is split, so that the test does not find this line.
    needle = "sys" + ".path"
    assert [str(file.relative_to(ROOT)) for file in code_files() if needle in file.read_text()] == []


def test_no_file_imports_a_test():
    imported = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in files_of("tests/**/*.py", "include/**/*.py", "benchmarks/**/*.py")
        for _, name in imports(ast.parse(file.read_text()))
        if any(part.startswith("test_") for part in name.split("."))
    ]
    assert imported == []


# No other code can set an unnamed event, so a wait for it is a sleep.
SLEEPS = ("time.sleep", "sleep", "threading.Event().wait", "Event().wait")


def test_no_test_sleeps():
    places = [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in files_of("tests/**/*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in SLEEPS
    ]
    assert [place for place in places if not place.startswith("tests/support/waiting.py:")] == []


# Terms that Sluice does not use any more, for people who read its documentation, help and messages.
RETIRED = re.compile(
    r"\b(mend(s|ed|ing)?|anew|told|untold|sick|in hand|keepers?|twins?|(a|new|earlier|next|its) turn|puts? back"
    r"|puts? (it|its own|(the|a|its|their) \w+) back|python -m include\.ledger (?-i:[a-z]+))\b",
    re.IGNORECASE,
)
# Keys of commits and names of files that homes hold.
STORED_NAMES = {"anew", "told.json"}
# The layer of shadow tables, in homes, too.
STORED_LAYER = re.compile(r"\btwin(?=\.)|`twin`")


def people_read(file: Path) -> Iterator[tuple[int, str]]:
    """The lines of a document, or the texts and docstrings of a module, each with its line."""
    if file.suffix != ".py":
        yield from enumerate(file.read_text().splitlines(), 1)
        return
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value not in STORED_NAMES:
            yield node.lineno, node.value


def test_no_retired_term_is_in_documentation_help_or_messages():
    # Statements of a migration name what earlier versions wrote.
    files = [file for file in code_files() if file.stem != "migrations"]
    found = [
        f"{file.relative_to(ROOT)}:{line} says {match[0]!r}"
        for file in [*files, *files_of("*.md", "docs/**/*.md", ".env.example", "Makefile")]
        if file.name != "CHANGELOG.md"
        for line, text in people_read(file)
        if (match := RETIRED.search(STORED_LAYER.sub("", text)))
    ]
    assert found == []


# One name, or several joined by dots, with or without `()`.
NAME_IN_BACKTICKS = re.compile(r"(?<!`)`([A-Za-z_][\w.]*?)(?:\(\))?`(?!`)")
# Names of Java, Spark, Kafka Connect and Python's library that no line of code needs.
NAMES_OF_OTHERS = {
    "ExtractNewRecordState",
    "StreamingQueryListener",
    "__ts_ms",
    "equalsIgnoreCase",
    "linecache",
    "pendulum.DateTime",
}


def described(tree: ast.Module) -> Iterator[tuple[int, ast.Constant]]:
    """The docstrings of a module, each with its line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            assert isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
            yield node.body[0].lineno, node.body[0].value


def names_in_code(tree: ast.Module) -> Iterator[str]:
    """The names of a module, and its texts, as a whole and by their words."""
    docstrings = {id(docstring) for _, docstring in described(tree)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield from (node.value, *re.findall(r"\w+", node.value))
        for field in ("id", "attr", "name", "arg", "asname", "module"):
            if isinstance(name := getattr(node, field, None), str):
                yield from (name, *name.split("."))


def described_texts(file: Path, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Docstrings and comments, each with its line."""
    yield from ((line, str(docstring.value)) for line, docstring in described(tree))
    for token in tokenize.generate_tokens(io.StringIO(file.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def test_what_a_docstring_or_a_comment_names_in_backticks_exists():
    files = [*code_files(), *files_of("tests/**/*.py", "benchmarks/**/*.py")]
    trees = {file: ast.parse(file.read_text()) for file in files}
    by_module = {file: set(names_in_code(tree)) for file, tree in trees.items()}
    known = set().union(*by_module.values(), NAMES_OF_OTHERS)
    for file in files:
        name = module_name(file)
        known.update((name, name.rpartition(".")[0], *name.split("."), file.stem))
    modules: dict[str, set[str]] = {}
    for file in files:
        modules.setdefault(file.stem, set()).update(by_module[file])
    missing = [
        f"{file.relative_to(ROOT)}:{line} names `{name}`"
        for file, tree in trees.items()
        for line, text in described_texts(file, tree)
        for name in NAME_IN_BACKTICKS.findall(text)
        if name not in known
        if not known.issuperset(path := name.removesuffix(".py").split("."))
        or (len(path) > 1 and path[-1] not in modules.get(path[-2], known))
    ]
    assert missing == []
