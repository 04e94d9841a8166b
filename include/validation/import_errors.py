"""Explains in a sentence why a table file cannot be imported, with the line."""

import builtins
import inspect
import re
import traceback
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from include import rules, spec
from include.validation import credentials
from include.validation.declaration import suggest
from include.validation.field_types import SET_BY_CATALOG

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
    return f"{location}: {reason or f'cannot be imported ({type(error).__name__}: {error}): mend that line'}"


def _explain_syntax_error(place: str, error: SyntaxError) -> str:
    # The error may be in a module that the table file imports.
    if error.filename and not error.filename.endswith(place):
        return f"{place}: cannot be imported ({error.filename}, line {error.lineno}: {error.msg}): mend that line"
    if "codec can't decode" in (error.msg or "") or "unicode" in (error.msg or ""):
        location, byte = _undecodable(error.filename)
        return f"{place}{location}: is not UTF-8{byte}: save the file as UTF-8"
    location = f"{place}:{error.lineno}" if error.lineno else place
    if isinstance(error, TabError):
        return f"{location}: is indented with tabs here and with spaces elsewhere: use spaces"
    if isinstance(error, IndentationError):
        return f"{location}: is indented wrongly ({error.msg}): bring that line in line with those around it"
    return f"{location}: is no Python ({error.msg}): mend that line"


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
            return f"imports '{error.name}', which is no module of this project: mend the name"
        return (
            f"imports '{error.name}', which is not installed: mend the name, or add it to requirements.txt and run "
            f"`make lock`"
        )
    if isinstance(error, ImportError) and (match := NO_SUCH_NAME.match(str(error))):
        name, module = match.groups()
        options = _importable_names(module)
        return f"imports '{name}', which {module} has not: {suggest(name, options) if options else 'mend the name'}"
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
        if explanation := credentials.explain_keyword(call, keyword):
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
