"""Checks file sources and the columns that `parse` reads."""

from dataclasses import fields

from include.spec import (
    CHANGE_SCHEMA,
    FILES_SCHEMA,
    FORMATS,
    NEW_COLUMNS,
    TYPED_FORMATS,
    Append,
    Cast,
    Debezium,
    Delta,
    Files,
    Kafka,
    Parse,
    Table,
    ddl,
)
from include.validation import debezium
from include.validation.declaration import declaration_error, suggest

GLOB = "*?[]{}"


def check(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError for the first mistake. All tables have passed the checks of single tables."""
    if isinstance(table.source, Files):
        _check_source(table, table.source)
        _check_bronze(table)
        _check_columns(table, table.source)
    if table.parse:
        _check_parse(table, table.parse, tables)


def _check_source(table: Table, source: Files) -> None:
    for name, value, options in (
        ("format", source.format, FORMATS),
        ("new_columns", source.new_columns, NEW_COLUMNS),
    ):
        if value not in options:
            raise declaration_error(table, f"{name} is {value!r}: {suggest(str(value), list(options))}")
    if not source.path.strip("/"):
        raise declaration_error(table, f"path is {source.path!r}: name the folder in which the files land")
    if set(source.path) & set(GLOB):
        raise declaration_error(
            table, f"path '{source.path}' is a pattern: name one folder, and say pattern= for its files"
        )
    if not source.pattern or "/" in source.pattern:
        raise declaration_error(
            table, f"pattern is {source.pattern!r}: it has to match names of files, such as '*.csv'"
        )
    if set(source.pattern) & set(GLOB) - set("*?"):
        raise declaration_error(table, f"pattern is {source.pattern!r}: use * and ? alone")
    if not source.header and source.format != "csv":
        raise declaration_error(table, f"header=False, and {source.format} has no header: leave it out")
    _check_text_options(table, source)


def _check_text_options(table: Table, source: Files) -> None:
    if source.multi_line and source.format != "json":
        raise declaration_error(
            table, f"multi_line=True, which is for JSON, and its format is {source.format}: leave it out"
        )
    defaults = {field.name: field.default for field in fields(source)}
    given = {name: getattr(source, name) for name in ("separator", "quote", "escape", "comment")}
    for name, value in given.items():
        if value == defaults[name]:
            continue
        if source.format != "csv":
            raise declaration_error(table, f"{name} is {value!r}, and {source.format} has none: leave it out")
        is_character = isinstance(value, str) and len(value) == 1 and value.isascii() and value not in "\r\n\0"
        if not is_character and (name, value) != ("quote", ""):
            raise declaration_error(table, f"{name} is {value!r}: it has to be one ASCII character, such as ';'")
    # A quote as escape is the same as none: it is doubled.
    distinct = {name: value for name, value in given.items() if value and (name, value) != ("escape", source.quote)}
    if twins := [name for name, value in distinct.items() if list(distinct.values()).count(value) > 1]:
        raise declaration_error(
            table, f"{twins[0]} and {twins[1]} are both {distinct[twins[0]]!r}: they have to differ"
        )


def _check_bronze(table: Table) -> None:
    if table.layer != "bronze":
        raise declaration_error(
            table, "only bronze reads files, so that what arrived is kept as it arrived: read a bronze table"
        )
    for name, is_set in (
        ("expect", table.expect),
        ("parse", table.parse),
        ("transform", table.transform),
        ("Upsert", not isinstance(table.write, Append)),
        ("unique", isinstance(table.write, Append) and table.write.unique),
    ):
        if is_set:
            raise declaration_error(
                table, f"{name} would alter what arrived, and bronze keeps it as it came: put it on the silver table"
            )


def _check_columns(table: Table, source: Files) -> None:
    names = [name.lower() for name in ddl.columns(table.schema)]
    for column in ddl.columns(FILES_SCHEMA):
        if names.count(column) > 1:
            raise declaration_error(
                table, f"'{column}' is a column that every table of files has: take it out of its schema"
            )
    if source.format in TYPED_FORMATS:
        return
    for name, kind in ddl.types(table.schema.removesuffix(FILES_SCHEMA)).items():
        if kind != "STRING":
            raise declaration_error(
                table,
                f"column '{name}' is declared {kind}, and {source.format.upper()} is kept as text: "
                f"declare it STRING, and type it in silver with parse=Cast(...)",
            )


def _check_parse(table: Table, parse: Parse, tables: dict[str, Table]) -> None:
    if isinstance(parse, Debezium):
        debezium.check(table, parse)
    for reader in table.readers:
        columns = _source_columns(reader.source, tables)
        for name in parse.into if isinstance(parse, Cast) else (parse.column,):
            if columns and name not in columns:
                parse_type = type(parse).__name__
                raise declaration_error(
                    table, f"{parse_type} of '{name}', which its source has not: {suggest(name, columns)}"
                )


def _source_columns(source: object, tables: dict[str, Table]) -> list[str]:
    """The columns of a source. Empty if they are unknown: files may add columns that are not declared."""
    if isinstance(source, Kafka):
        return ddl.columns(source.schema)
    if not isinstance(source, Delta) or isinstance(tables[source.table].source, Files):
        return []
    return ddl.columns(tables[source.table].schema) + (ddl.columns(CHANGE_SCHEMA) if source.changes else [])
