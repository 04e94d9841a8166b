"""What a table file may say of files, of columns of text, and of a table that is recomputed whole."""

from include import ddl
from include.declaration import mistake, suggest
from include.spec import FILES_SCHEMA, FORMATS, NEW_COLUMNS, Append, Cast, Delta, Files, Table

GLOB = "*?[]{}"


def check(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError. Each table by itself is right in what `include.declaration` checks."""
    if isinstance(table.source, Files):
        _check_source(table, table.source)
        _check_place(table)
        _check_columns(table, table.source)
    if isinstance(table.parse, Cast):
        _check_cast(table, table.parse, tables)


def _check_source(table: Table, source: Files) -> None:
    for name, value, options in (
        ("format", source.format, FORMATS),
        ("new_columns", source.new_columns, NEW_COLUMNS),
    ):
        if value not in options:
            raise mistake(table, f"{name} is {value!r}: {suggest(str(value), list(options))}")
    if not isinstance(source.path, str) or not source.path.strip("/"):
        raise mistake(table, f"path is {source.path!r}: name the folder in which the files land")
    if set(source.path) & set(GLOB):
        raise mistake(table, f"path '{source.path}' is a pattern: name one folder, and say pattern= for its files")
    if not isinstance(source.pattern, str) or not source.pattern or "/" in source.pattern:
        raise mistake(table, f"pattern is {source.pattern!r}: it has to match names of files, such as '*.csv'")
    if set(source.pattern) & set(GLOB) - set("*?"):
        raise mistake(table, f"pattern is {source.pattern!r}: use * and ? alone")
    for name, count in (("max_files", source.max_files), ("max_bytes", source.max_bytes)):
        is_count = isinstance(count, int) and not isinstance(count, bool) and count > 0
        if not is_count and not (name == "max_bytes" and count is None):
            raise mistake(table, f"{name} is {count!r}: set it to a whole number above 0")
    if not isinstance(source.header, bool):
        raise mistake(table, f"header is {source.header!r}: it has to be bool")
    if not source.header and source.format != "csv":
        raise mistake(table, f"header=False, and {source.format} has no header: leave it out")


def _check_place(table: Table) -> None:
    if table.layer != "bronze":
        raise mistake(table, "only bronze reads files, so that what arrived is kept as it arrived: read a bronze table")
    for name, is_said in (
        ("expect", table.expect),
        ("parse", table.parse),
        ("transform", table.transform),
        ("Upsert", not isinstance(table.write, Append)),
        ("unique", isinstance(table.write, Append) and table.write.unique),
    ):
        if is_said:
            raise mistake(
                table, f"{name} would alter what arrived, and bronze keeps it as it came: put it on the silver table"
            )


def _check_columns(table: Table, source: Files) -> None:
    names = [name.lower() for name in ddl.columns(table.schema)]
    for own in ddl.columns(FILES_SCHEMA):
        if names.count(own) > 1:
            raise mistake(table, f"'{own}' is a column that every table of files has: take it out of its schema")
    if source.format == "parquet":
        return
    for name, kind in ddl.types(table.schema.removesuffix(FILES_SCHEMA)).items():
        if kind != "STRING":
            raise mistake(
                table,
                f"column '{name}' is declared {kind}, and {source.format.upper()} is kept as text: "
                f"declare it STRING, and type it in silver with parse=Cast(...)",
            )


def _check_cast(table: Table, parse: Cast, tables: dict[str, Table]) -> None:
    above = tables.get(table.source.table) if isinstance(table.source, Delta) else None
    # Files may bring columns that nobody declared.
    if above is None or isinstance(above.source, Files):
        return
    options = ddl.columns(above.schema)
    for name in parse.into:
        if name not in options:
            raise mistake(table, f"Cast of '{name}', which its source has not: {suggest(name, options)}")
