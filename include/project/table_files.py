"""Finds and imports the table files. A failure becomes a sentence that names the file and the line."""

import builtins
import importlib
import inspect
import re
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from include import rules, spec
from include.errors import DeclarationError
from include.project import values
from include.project.declaration import suggest
from include.project.values import SET_BY_CATALOG
from include.spec import LAYERS, Table

UNEXPECTED = re.compile(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '([^']+)'")
MISSING = re.compile(r"(\w+)(?:\.__init__)?\(\) missing \d+ required .*arguments?: (.+)")
POSITIONAL = re.compile(r"(\w+)(?:\.__init__)?\(\) takes .*positional arguments? but .* given")
NO_SUCH_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def sentence(place: str, error: BaseException) -> str:
    """The sentence for an exception of an import. place: path of the table file from the root of the repository."""
    if isinstance(error, SyntaxError):
        return _explain_syntax_error(place, error)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(place)]
    location = f"{place}:{lines[-1]}" if lines else place
    reason = _explain_import_error(error) or _explain_name_error(error) or _explain_call_error(error)
    return f"{location}: {reason or f'cannot be imported ({type(error).__name__}: {error}): fix that line'}"


def _explain_syntax_error(place: str, error: SyntaxError) -> str:
    # The error may be in a module that the table file imports.
    if error.filename and not error.filename.endswith(place):
        return f"{place}: cannot be imported ({error.filename}, line {error.lineno}: {error.msg}): fix that line"
    if "codec can't decode" in (error.msg or "") or "unicode" in (error.msg or ""):
        location, byte = _undecodable(error.filename)
        return f"{place}{location}: is not UTF-8{byte}: save the file as UTF-8"
    location = f"{place}:{error.lineno}" if error.lineno else place
    if isinstance(error, TabError):
        return f"{location}: is indented with tabs here and with spaces elsewhere: use spaces"
    if isinstance(error, IndentationError):
        return f"{location}: is indented wrongly ({error.msg}): bring that line in line with those around it"
    return f"{location}: is no Python ({error.msg}): fix that line"


def _undecodable(filename: str | None) -> tuple[str, str]:
    content = Path(filename).read_bytes() if filename and Path(filename).is_file() else b""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f":{content[: error.start].count(10) + 1}", f" (byte 0x{content[error.start]:02x})"
    return "", ""


def _explain_import_error(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name.partition(".")[0] in ("include", "tests"):
            return f"imports '{error.name}', which is no module of this project: fix the name"
        return (
            f"imports '{error.name}', which is not installed: fix the name, or add it to requirements.txt and run "
            f"`make lock`"
        )
    if isinstance(error, ImportError) and (match := NO_SUCH_NAME.match(str(error))):
        name, module = match.groups()
        options = _importable_names(module)
        return f"imports '{name}', which {module} has not: {suggest(name, options) if options else 'fix the name'}"
    return None


def _explain_name_error(error: BaseException) -> str | None:
    if not isinstance(error, NameError) or not error.name:
        return None
    name = error.name
    for module in (spec, rules):
        if name in _importable_names(module.__name__):
            return f"'{name}' is not defined: write `from {module.__name__} import {name}`"
    frame = traceback.walk_tb(error.__traceback__)
    names = [*list(frame)[-1][0].f_globals, *_importable_names(spec.__name__), *dir(builtins)]
    suggestion = suggest(name, [known_name for known_name in names if not known_name.startswith("_")], or_else="")
    return f"'{name}' is not defined: {suggestion or 'define or import it'}"


def _explain_call_error(error: BaseException) -> str | None:
    if not isinstance(error, TypeError):
        return None
    if match := UNEXPECTED.search(str(error)):
        call, keyword = match.groups()
        if explanation := values.explain_keyword(call, keyword):
            return explanation
        options = _parameter_names(call)
        return f"{call} has no '{keyword}': {suggest(keyword, options)}" if options else None
    if (match := MISSING.search(str(error))) and _parameter_names(match.group(1)):
        return f"{match.group(1)} lacks {match.group(2)}: add it"
    if (match := POSITIONAL.search(str(error))) and (options := _parameter_names(match.group(1))):
        return f"{match.group(1)} takes its values by name: write {match.group(1)}({options[0]}=...)"
    return None


def _importable_names(module: str) -> list[str]:
    """The public names of `include.spec` or `include.rules`; empty for another module."""
    modules = {spec.__name__: spec, rules.__name__: rules}
    return [name for name in vars(modules[module]) if not name.startswith("_")] if module in modules else []


def _parameter_names(name: str) -> list[str]:
    """The parameters of a class or function of `include.spec` or `include.rules`."""
    member: Any = getattr(spec, name, None) or getattr(rules, name, None)
    if is_dataclass(member):
        return [field.name for field in fields(member) if field.name not in SET_BY_CATALOG]
    return list(inspect.signature(member).parameters) if inspect.isfunction(member) else []


# The name is part of SQL, of paths and of DAG ids.
NAME = re.compile("[a-z][a-z0-9_]*")
LONGEST_NAME = 100
# A comment above everything else in a file, which declares no table until this line is removed.
DRAFT = "# draft: remove this line when the table is whole"
DRAFT_MARK = re.compile(r"#\s*draft\s*(:|$)", re.IGNORECASE)


@dataclass(frozen=True)
class TableFile:
    """package: for example `include.tables`. path: path in the package, for example `silver/readings.py`."""

    package: str
    path: str
    is_draft: bool = False

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

    @property
    def draft_sentence(self) -> str:
        return f"{self.place} is a draft: remove its line '# draft' to make it live"

    def refused(self, sentence: str, line: int | None = None) -> DeclarationError:
        location = f"{self.place}:{line}" if line else self.place
        return DeclarationError(f"{location}: {sentence}", table=self.table)


def find(packages: Iterable[str]) -> list[TableFile]:
    """All table files, including files outside the layers."""
    return [
        TableFile(package, path, _is_draft(resources.files(package) / path))
        for package in packages
        for path in sorted(_module_paths(resources.files(package)))
    ]


def drafts(files: Iterable[TableFile]) -> dict[str, TableFile]:
    """By table, the drafts of tables that no other file declares."""
    live = {file.table for file in files if not file.is_draft}
    return {file.table: file for file in files if file.is_draft and file.table not in live}


def _is_draft(file: Traversable) -> bool:
    # The import reports a file that cannot be read.
    with suppress(OSError), file.open(encoding="utf-8-sig", errors="replace") as lines:
        for line in map(str.strip, lines):
            if DRAFT_MARK.match(line):
                return True
            if line and not line.startswith("#"):
                break
    return False


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
        raise DeclarationError(sentence(place, error), table=file.table) from error
    table = getattr(module, "TABLE", None)
    if not isinstance(table, Table):
        raise file.refused("has no `TABLE = Table(...)`: add it, or move the file out of the tables")
    return table
