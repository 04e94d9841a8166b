"""Writes the first file of a table, a draft that the checks accept: `make new-table`, `sluice new-table`."""

import json
import re
import sys
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from include import catalog
from include.catalog import Catalog
from include.errors import DeclarationError, UsageError, report
from include.project import examination, table_files
from include.project.declaration import suggest
from include.project.last_good import Definition
from include.project.table_files import DRAFT, TableFile
from include.settings import ROOT
from include.spec import FORMATS, LAYERS, Table, ddl

NAME = re.compile(f"({'|'.join(LAYERS)})[.][a-z][a-z0-9_]*")
# A draft knows no options.
KINDS = [name for name, kind in FORMATS.items() if not kind.required]
SOURCES = f"kafka:TOPIC, {', '.join(f'{kind}:FOLDER' for kind in KINDS)} or the name of a table"
COLUMNS = "Spark DDL, such as order_id STRING, time TIMESTAMP; or set KEYS, to count the rows by these columns"
ERRORS = "_errors ARRAY<STRUCT<field: STRING, message: STRING>> COMMENT 'fields that could not be typed'"
# Columns that identify the origin of a row, by a column that the source must have.
ORIGINS = {
    "offset": ("topic STRING COMMENT 'where the message came from'", "partition INT", "offset BIGINT"),
    "_filename": ("_filename STRING COMMENT 'where it came from'", "_index BIGINT COMMENT 'its place in that file'"),
}


@dataclass(frozen=True)
class Draft:
    """The content of a table file: imports from `include.spec`, functions, and the arguments of `Table`."""

    imports: set[str]
    arguments: dict[str, str]
    functions: str = ""

    def text(self, name: str, comment: str) -> str:
        arguments = {"name": f'"{name}"', "comment": json.dumps(comment, ensure_ascii=False), **self.arguments}
        lines = "\n".join(f"    {key}={value}," for key, value in arguments.items())
        imports = ", ".join(sorted({*self.imports, "Table"}, key=str.lower))
        return (
            f'{DRAFT}\n"""{comment}."""\n\nfrom include.spec import {imports}\n{self.functions}\n'
            f"TABLE = Table(\n{lines}\n)\n"
        )


def main(
    name: Annotated[str, typer.Argument(help="<layer>.<name>")] = "",
    source: Annotated[str, typer.Option(help=SOURCES)] = "",
    columns: Annotated[str, typer.Option(help="Of a table that types its source's rows, as Spark DDL.")] = "",
    keys: Annotated[str, typer.Option(help="Of a table that counts its source's rows: columns, with commas.")] = "",
    comment: Annotated[str, typer.Option(help="What one row is.")] = "",
) -> None:
    """Write a draft of a table's file, which is live without its first line. What is left out is asked for.

    \b
    sluice new-table bronze.orders --source kafka:orders
    sluice new-table bronze.bills --source csv:bills
    sluice new-table silver.orders --source bronze.orders --columns "id INT"
    sluice new-table gold.orders_by_id --source silver.orders --keys id
    """
    name = name or _ask("NAME", "the table, as <layer>.<name>")
    file = _new_file(name)
    source = source or _ask("SOURCE", SOURCES)
    draft, row = draft_table(catalog.load(), file.stem, source, columns, keys)
    text = draft.text(name, comment or row)
    _check(file, text)
    (ROOT / file.place).write_text(text)
    print(f"wrote {file.place}, a draft: edit it, remove its first line to make it live, then `make check`, `make up`")


def _new_file(name: str) -> TableFile:
    if not NAME.fullmatch(name):
        raise UsageError(
            f"NAME is '{name}': write <layer>.<name> in small letters, digits and _; the layers are {', '.join(LAYERS)}"
        )
    for existing in table_files.find(catalog.table_packages()):
        if existing.table == name:
            raise UsageError(f"NAME is '{name}', and {existing.place} exists: choose another name")
    return TableFile(catalog.TABLES, f"{name.replace('.', '/')}.py", is_draft=True)


def _check(file: TableFile, text: str) -> None:
    """Raises DeclarationError for a text that would be refused as the file of a live table."""
    files = [*table_files.find(catalog.table_packages()), file]
    result = examination.examine(files, {file.table: Definition({file.module: text})})
    if file.table in result.broken:
        raise DeclarationError(*result.broken[file.table], table=file.table)


def _ask(setting: str, meaning: str) -> str:
    missing = UsageError(f"{setting} is missing: set it to {meaning}")
    if not sys.stdin.isatty():
        raise missing
    try:
        return input(f"{setting}, {meaning}: ").strip()
    except EOFError:
        raise missing from None


def draft_table(tables: Catalog, name: str, source: str, columns: str = "", keys: str = "") -> tuple[Draft, str]:
    """The draft of a table, and a description of its rows. Raises UsageError for an invalid option."""
    kind, colon, location = source.partition(":")
    if colon and kind == "kafka":
        topic = location or name
        return Draft({"Kafka"}, {"source": f'Kafka("{topic}")'}), f"Every message of topic {topic}, as it came"
    if colon and kind in KINDS:
        folder = location or name
        files = f'Files("{folder}", format="{kind}")'
        return Draft({"Files"}, {"source": files}), f"Every row of the files in {folder}, as it came"
    if colon:
        raise UsageError(f"SOURCE is '{source}': {suggest(kind, ['kafka', *KINDS])}")
    source_table = tables.table(source)
    if keys:
        return _counting_draft(source_table, [key.strip() for key in keys.split(",")]), f"Rows of {source} by {keys}"
    return _typed_draft(source_table, columns or _ask("COLUMNS", COLUMNS)), f"One row of {source}, typed"


def _typed_draft(source: Table, columns: str) -> Draft:
    """A table with typed columns: from JSON for messages, from text for files, else columns by name."""
    definitions = ddl.definitions(columns)
    if len(definitions) < len(ddl.columns(columns)):
        raise UsageError(f"COLUMNS is '{columns}', in which a column has no type: write {COLUMNS}")
    source_columns = ddl.columns(source.schema)
    lines = [f"{name} {kind}" for name, kind in definitions.items()]
    imports, arguments = {"Delta", "Expect"}, {"source": f'Delta("{source.name}")'}
    parsed = [name for name, kind in definitions.items() if kind.upper() != "STRING"]
    if "value" in source_columns:
        imports |= {"Json"}
        arguments["parse"] = f'Json("value", into={_tuple(list(definitions))})'
    elif source.reads_files and parsed:
        imports |= {"Cast"}
        arguments["parse"] = f"Cast(into={_tuple(parsed)})"
    for column, origin in ORIGINS.items():
        lines += origin if column in source_columns else ()
    lines += [ERRORS] if "parse" in arguments else []
    arguments["schema"] = _schema(lines)
    times = [name for name, kind in definitions.items() if kind.upper() in ("TIMESTAMP", "DATE")]
    if times:
        arguments["time_column"] = f'"{times[0]}"'
    first = next(iter(definitions))
    arguments["expect"] = f'(Expect("{first} is given", "{first} IS NOT NULL"),)'
    return Draft(imports, arguments)


def _counting_draft(source: Table, keys: list[str]) -> Draft:
    """A table that counts rows by key, and by hour if the source has a TIMESTAMP column."""
    definitions = ddl.definitions(source.schema)
    for key in keys:
        if key not in definitions:
            raise UsageError(f"KEYS names '{key}', no column of {source.name}: {suggest(key, list(definitions))}")
    time = next((name for name, kind in definitions.items() if kind.upper() == "TIMESTAMP"), None)
    lines = [f"{key} {definitions[key]}" for key in keys]
    arguments = {"source": f'Delta("{source.name}")'}
    if time:
        lines.append("hour TIMESTAMP COMMENT 'start of the hour, UTC'")
    group_by = [*keys, "hour"] if time else keys
    arguments["schema"] = _schema([*lines, "rows BIGINT COMMENT 'how many'"])
    arguments["transform"] = "transform"
    bucket = f', recompute=Bucket("hour", of="{time}", unit="hour")' if time else ""
    arguments["write"] = f"Upsert(keys={_tuple(group_by)}{bucket})"
    quoted = ", ".join(f'"{name}"' for name in group_by)
    functions = (
        "\n\ndef transform(rows):\n    from pyspark.sql import functions as F\n\n"
        f'    return rows.groupBy({quoted}).agg(F.count("*").alias("rows"))\n\n'
    )
    return Draft({"Delta", "Upsert", *(["Bucket"] if time else [])}, arguments, functions)


def _schema(lines: list[str]) -> str:
    columns = ",\n".join(f"        {line}" for line in lines)
    return f'"""\n{columns}\n    """'


def _tuple(names: list[str]) -> str:
    return "(" + ", ".join(f'"{name}"' for name in names) + (",)" if len(names) == 1 else ")")


if __name__ == "__main__":
    report(partial(typer.run, main))
