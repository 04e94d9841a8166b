"""The pages of the reference that code writes: the classes of a table file, commands, settings and stored columns.

`build_site.py` puts them beside the other pages. A page is the text of a path below `docs/`.
"""

import ast
import contextlib
import dataclasses
import inspect
import io
import os
import re
import tokenize
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

from include import access, rules, spec
from include.access import Role
from include.cli import main as commands
from include.control.store import schema
from include.monitoring import query_progress
from include.settings import ROOT
from include.spec import origin, table, write_mode

# By page: its title, its question, and the module and names that it describes. No names: all others of the module.
SPEC_PAGES: dict[str, tuple[str, str, ModuleType, tuple[str, ...]]] = {
    "tables": ("Table", "What can a table file declare about its table?", table, ()),
    "parsers": (
        "Parsers",
        "How do the fields of a message become typed columns?",
        origin,
        ("Json", "Cast", "Avro", "Registry", "Debezium", "Parse", "EVOLUTIONS", "INTEGER_TIMES", "BINARY_FORMS"),
    ),
    "sources": ("Sources", "Which options does a source have?", origin, ()),
    "writes": ("Write modes", "How do rows come into a table?", write_mode, ()),
    "rules": ("Rules", "Which rules can a table declare about its rows?", rules, ()),
}
# What nearly every table file names, at the top of its page.
PRIMARY = ("Table", "View", "Step", "Kafka", "Files", "Append", "Upsert", "Replace")
# What the catalog makes, and no table file names.
NOT_DECLARED = {"Flow"}
# Functions of `include.rules` are part of the vocabulary, too.
RULE_FUNCTIONS = ("not_null", "one_of", "no_error", "unique", "references")
ENTRY = re.compile(r"^(?P<names>\w+(?:, \w+)*): ")


def pages() -> dict[str, str]:
    """The text of each page by its path."""
    return {
        **{f"reference/{page}.md": with_links(spec_page(page)) for page in SPEC_PAGES},
        "reference/commands.md": commands_page(),
        "reference/settings.md": settings_page(),
        "reference/ledger-tables.md": ledger_page(),
        "reference/control-database.md": control_database_page(),
        "reference/access.md": access_page(),
    }


def with_links(text: str) -> str:
    """Docstrings name pages by their paths from the root of the repository."""
    return re.sub(r"\bdocs/([\w/-]+\.md)", r"[docs/\1](../\1)", text)


def heading(title: str, question: str) -> str:
    return f"# {title}\n\n*{question}*\n"


def cell(text: str) -> str:
    """One line of text, as the cell of a table of Markdown."""
    return " ".join(text.split()).replace("|", "\\|")


# The classes of a table file


def public_names(module: ModuleType) -> list[str]:
    """The names of a module that a table file may import, in their order in the module."""
    exported = set(vars(spec)) | (set(RULE_FUNCTIONS) if module is rules else set())
    defined = [name for node in ast.parse(inspect.getsource(module)).body for name in bound_names(node)]
    return [name for name in defined if name in exported and not name.startswith("_")]


def bound_names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def spec_page(page: str) -> str:
    title, question, module, names = SPEC_PAGES[page]
    elsewhere = {name for _, _, other, others in SPEC_PAGES.values() if other is module for name in others}
    elsewhere |= NOT_DECLARED
    described = names or [name for name in public_names(module) if name not in elsewhere]
    package = "include.rules" if module is rules else "include.spec"
    classes, functions, constants = [], [], []
    for name in sorted(described, key=lambda name: name not in PRIMARY):
        value = getattr(module, name)
        if inspect.isclass(value):
            classes.append(class_section(name, value))
        elif inspect.isfunction(value):
            functions.append(function_section(name, value))
        else:
            constants.append(constant_section(name, value, module))
    note = f"Import these names from `{package}`.\n"
    return "\n".join([heading(title, question), note, *classes, *functions, *constants])


def class_section(name: str, class_: type) -> str:
    text = inspect.getdoc(class_) or ""
    # A class that derives from another one has its options, too.
    own = inspect.get_annotations(class_)
    declared = dataclasses.fields(class_) if dataclasses.is_dataclass(class_) else ()
    fields = [option.name for option in declared if option.name in own]
    prose, options = split_docstring(text, set(fields))
    lines = [f"## {name}\n", *(f"{paragraph}\n" for paragraph in prose)]
    if fields:
        lines += ["| option | default | meaning |", "|---|---|---|"]
        defaults = defaults_of(class_)
        above = {name: "see above" for name in fields if f"`{name}`" in " ".join(prose)}
        meanings = above | options
        lines += [f"| `{name}` | {defaults[name]} | {cell(meanings.get(name, ''))} |" for name in fields]
        lines.append("")
    return "\n".join(lines)


def defaults_of(class_: type) -> dict[str, str]:
    """By field, its default as the class writes it."""
    [definition] = ast.parse(inspect.cleandoc(inspect.getsource(class_))).body
    assert isinstance(definition, ast.ClassDef)
    fields = [node for node in definition.body if isinstance(node, ast.AnnAssign)]
    return {ast.unparse(node.target): written_default(node.value) for node in fields}


def written_default(value: ast.expr | None) -> str:
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        arguments = {keyword.arg: ast.unparse(keyword.value) for keyword in value.keywords}
        factory = arguments.get("default_factory")
        text = {"dict": "{}"}.get(factory, factory) if factory else arguments.get("default")
    else:
        text = ast.unparse(value) if value else None
    return f"`{cell(text)}`" if text else "required"


def split_docstring(text: str, fields: set[str]) -> tuple[list[str], dict[str, str]]:
    """The paragraphs of a docstring, and what it says of each field.

    A line `name: text`, or `name, name: text`, begins the entry of its fields. Another entry may follow on the line.
    """
    prose: list[list[str]] = [[]]
    entries: list[list[str]] = []
    in_entry = False
    for line in text.splitlines():
        match = ENTRY.match(line)
        if match and set(match["names"].split(", ")) <= fields:
            entries.append([line])
            in_entry = True
        elif not line.strip():
            prose.append([])
            in_entry = False
        elif in_entry:
            entries[-1].append(line.strip())
        else:
            prose[-1].append(line)
    name = f"(?:{'|'.join(sorted(fields))})" if fields else "(?!)"
    begin = re.compile(rf"(?:^|(?<=[.:)] ))({name}(?:, {name})*): ")
    meanings: dict[str, str] = {}
    for entry in entries:
        _, *parts = begin.split(" ".join(entry))
        for names, meaning in zip(parts[::2], parts[1::2], strict=True):
            for field in names.split(", "):
                meanings[field] = f"{meanings.get(field, '')} {meaning}".strip()
    return [" ".join(lines) for lines in prose if lines], meanings


def function_section(name: str, function: Any) -> str:
    return f"## {name}\n\n```python\n{name}{inspect.signature(function)}\n```\n\n{inspect.getdoc(function)}\n"


def constant_section(name: str, value: object, module: ModuleType) -> str:
    source = inspect.getsource(module)
    [node] = [node for node in ast.parse(source).body if name in bound_names(node)]
    comment = comment_above(source, node.lineno)
    is_schema = isinstance(value, str) and "\n" in value
    code = inspect.cleandoc(str(value)) if is_schema else ast.get_source_segment(source, node)
    described = f"{comment}\n\n" if comment else ""
    return f"## {name}\n\n{described}```{'sql' if is_schema else 'python'}\n{code}\n```\n"


def comment_above(source: str, line: int) -> str:
    """The comment that ends in the line before."""
    lines = source.splitlines()
    comments: list[str] = []
    while line >= 2 and lines[line - 2].strip().startswith("#"):
        line -= 1
        comments.insert(0, lines[line - 1].strip().lstrip("# "))
    return " ".join(comments)


# Commands


def commands_page() -> str:
    text = [heading("Commands", "Which options does a command of `sluice` take?")]
    text.append("Each command that prints data takes `--json`. `sluice COMMAND --help` prints what follows here.\n")
    for panel, names in commands.COMMANDS.items():
        text.append(f"**{panel}:** " + ", ".join(f"[`{name}`](#{name})" for name in names) + "\n")
    for name in commands.NAMES:
        text.append(f"## {name}\n\n```text\n{help_of(name)}\n```\n")
    return "\n".join(text)


def help_of(name: str) -> str:
    printed = io.StringIO()
    with mock.patch.dict(os.environ, COLUMNS="100"), contextlib.redirect_stdout(printed):
        commands.run(commands.function_of(name), f"sluice {name}", ["--help"])
    return "\n".join(line.rstrip() for line in printed.getvalue().strip().splitlines())


# Settings


def settings_page() -> str:
    text = heading("Settings", "Which variables does the platform read, and what are their defaults?")
    text += "\nSet one in the environment of `make up`, such as `SLUICE_AIRFLOW_PORT=8081 make up`.\n"
    text += "`include/settings.py` reads them.\n"
    for names, meaning in settings_of((ROOT / ".env.example").read_text()):
        defaults = ", ".join(dict.fromkeys(f"`{value}`" if value else "unset" for value in names.values()))
        text += f"\n## {', '.join(names)}\n\nDefault: {defaults}\n\n{meaning}\n"
    return text


def settings_of(example: str) -> Iterator[tuple[dict[str, str], str]]:
    """The variables that stand together, with their defaults, and the comment above them."""
    comment: list[str] = []
    names: dict[str, str] = {}
    for line in [*example.splitlines(), "# "]:
        if match := re.fullmatch(r"#([A-Z0-9_]+)=(.*)", line):
            names[match[1]] = match[2]
            continue
        if names:
            yield names, " ".join(comment)
            names, comment = {}, []
        if line.startswith("# "):
            comment.append(line[2:])
        else:
            comment = []


# Roles


def access_page() -> str:
    text = heading("Roles", "What may a viewer, an operator and an admin do?")
    text += (
        "\n[Who may do what](../operate/access.md) says how a user gets a role. `include/access.py` is this table.\n\n"
    )
    text += "| what | of | viewer | operator | admin | what refuses others |\n|---|---|---|---|---|---|\n"
    for capability in access.CAPABILITIES:
        names = ", ".join(f"`{name}`" for name in capability.names)
        yes = "asks, an admin approves" if capability.needs_approval else "yes"
        rights = " | ".join(yes if role.includes(capability.least) else "" for role in Role)
        text += f"| {capability.place} | {names} | {rights} | {cell(capability.guard)} |\n"
    return text


# Stored columns


def ledger_page() -> str:
    text = heading("Tables of the ledger", "Which columns does `ledger.query_progress` have?")
    text += "\nThe table has a row for each progress report of a query, and one for its end.\n"
    text += "`sluice progress FLOW` reads it together with the journals of running drivers.\n\n"
    text += "| column | type | meaning |\n|---|---|---|\n"
    comments = comments_of_keys(query_progress)
    meanings = comments | {name: f"Spark's `{of}`" for name, of in query_progress.PHASES_MS.items()}
    for field in query_progress.SCHEMA:
        text += f"| `{field.name}` | `{cell(str(field.type))}` | {cell(meanings.get(field.name, ''))} |\n"
    return text


def comments_of_keys(module: ModuleType) -> dict[str, str]:
    """By key of a dict, the comment in the line above it."""
    source = inspect.getsource(module)
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    keys = [(token.string, token.start[0]) for token in tokens if token.type == tokenize.STRING]
    comments = [(ast.literal_eval(text), comment_above(source, line)) for text, line in keys if text[0] == '"']
    return {key: comment for key, comment in comments if comment}


def control_database_page() -> str:
    text = heading("Control database", "What does the control database store?")
    text += "\nA release may change these tables. Read them by the [commands](commands.md) where one exists.\n"
    for stored in schema.metadata.sorted_tables:
        text += f"\n## {stored.name}\n\n| column | type | meaning |\n|---|---|---|\n"
        for column in stored.columns:
            note = " (key)" if column.primary_key else ""
            text += f"| `{column.name}`{note} | {column.type} | {cell(column.comment or '')} |\n"
    return text
