"""What keeps a table file from being imported, in a sentence with its line."""

import builtins
import inspect
import re
import traceback
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from include import rules, spec
from include.validation.declaration import suggest
from include.validation.field_types import OF_THE_CATALOG

UNEXPECTED = re.compile(r"(\w+)(?:\.__init__)?\(\) got an unexpected keyword argument '(\w+)'")
MISSING = re.compile(r"(\w+)(?:\.__init__)?\(\) missing \d+ required .*arguments?: (.+)")
POSITIONAL = re.compile(r"(\w+)(?:\.__init__)?\(\) takes .*positional arguments? but .* given")
NO_SUCH_NAME = re.compile(r"cannot import name '(\w+)' from '([\w.]+)'")


def sentence(place: str, error: BaseException) -> str:
    """place: the path of the file from the root of the repository."""
    if isinstance(error, SyntaxError):
        return _of_syntax(place, error)
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename.endswith(place)]
    where = f"{place}:{lines[-1]}" if lines else place
    said = _of_import(error) or _of_name(error) or _of_call(error)
    return f"{where}: {said or f'cannot be imported ({type(error).__name__}: {error}): mend that line'}"


def _of_syntax(place: str, error: SyntaxError) -> str:
    # It may be that of a module which the table file imports.
    if error.filename and not error.filename.endswith(place):
        return f"{place}: cannot be imported ({error.filename}, line {error.lineno}: {error.msg}): mend that line"
    if "codec can't decode" in (error.msg or "") or "unicode" in (error.msg or ""):
        where, byte = _undecodable(error.filename)
        return f"{place}{where}: is not UTF-8{byte}: save the file as UTF-8"
    where = f"{place}:{error.lineno}" if error.lineno else place
    if isinstance(error, TabError):
        return f"{where}: is indented with tabs here and with spaces elsewhere: use spaces"
    if isinstance(error, IndentationError):
        return f"{where}: is indented wrongly ({error.msg}): bring that line in line with those around it"
    return f"{where}: is no Python ({error.msg}): mend that line"


def _undecodable(filename: str | None) -> tuple[str, str]:
    content = Path(filename).read_bytes() if filename and Path(filename).is_file() else b""
    try:
        content.decode()
    except UnicodeDecodeError as error:
        return f":{content[: error.start].count(10) + 1}", f" (byte 0x{content[error.start]:02x})"
    return "", ""


def _of_import(error: BaseException) -> str | None:
    if isinstance(error, ModuleNotFoundError) and error.name:
        if error.name.partition(".")[0] in ("include", "tests"):
            return f"imports '{error.name}', which is no module of this project: mend the name"
        return (
            f"imports '{error.name}', which is not installed: mend the name, or add it to requirements.txt and run "
            f"`make lock`"
        )
    if isinstance(error, ImportError) and (found := NO_SUCH_NAME.match(str(error))):
        name, module = found.groups()
        options = _names(module)
        return f"imports '{name}', which {module} has not: {suggest(name, options) if options else 'mend the name'}"
    return None


def _of_name(error: BaseException) -> str | None:
    if not isinstance(error, NameError) or not error.name:
        return None
    name = error.name
    for module in (spec, rules):
        if name in _names(module.__name__):
            return f"'{name}' is not defined: write `from {module.__name__} import {name}`"
    frame = traceback.walk_tb(error.__traceback__)
    known = [*list(frame)[-1][0].f_globals, *_names(spec.__name__), *dir(builtins)]
    close = suggest(name, [one for one in known if not one.startswith("_")], or_else="")
    return f"'{name}' is not defined: {close or 'define or import it'}"


def _of_call(error: BaseException) -> str | None:
    if not isinstance(error, TypeError):
        return None
    if found := UNEXPECTED.search(str(error)):
        call, keyword = found.groups()
        options = _keywords(call)
        return f"{call} has no '{keyword}': {suggest(keyword, options)}" if options else None
    if (found := MISSING.search(str(error))) and _keywords(found.group(1)):
        return f"{found.group(1)} lacks {found.group(2)}: add it"
    if (found := POSITIONAL.search(str(error))) and (options := _keywords(found.group(1))):
        return f"{found.group(1)} takes its values by name: write {found.group(1)}({options[0]}=...)"
    return None


def _names(module: str) -> list[str]:
    """What a table file may import from a module of the vocabulary; nothing for another module."""
    known = {spec.__name__: spec, rules.__name__: rules}
    return [name for name in vars(known[module]) if not name.startswith("_")] if module in known else []


def _keywords(name: str) -> list[str]:
    """The keywords of a class or function of the vocabulary."""
    called: Any = getattr(spec, name, None) or getattr(rules, name, None)
    if is_dataclass(called):
        return [field.name for field in fields(called) if field.name not in OF_THE_CATALOG]
    return list(inspect.signature(called).parameters) if inspect.isfunction(called) else []
