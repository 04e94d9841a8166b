"""Checks the schema of a table as far as that is possible without Spark, its storage options, rules and watermark."""

import re
from itertools import pairwise

from include.errors import DeclarationError
from include.project.declaration import declaration_error, suggest
from include.rules import ACTIONS, Expect, References, Rule
from include.spec import FILES_SCHEMA, LATE_ACTIONS, Avro, Cast, Debezium, Json, Table, Watermark, ddl

UNQUOTED = re.compile("[A-Za-z0-9_]+")
# Characters that Delta refuses in a column name, and the backquote.
INVALID_NAME_CHARACTERS = re.compile(r"[ ,;{}()\n\t=`]")
# Types that no Delta table can store, and types that Spark replaces by STRING.
UNSTORABLE = ("INTERVAL", "TIME", "VOID")
TEXT_TYPES = ("CHAR", "CHARACTER", "VARCHAR")
NESTED_TYPES = ("ARRAY", "MAP", "STRUCT")
RULES = "_rules"
QUARANTINED = ("_flow", "_generation", "_batch", "_source", "_replay")
# Columns that say what a change of a key does.
FLAGS = ("_deleted", "_truncates", "_retained", "_shown")


def check_schema(table: Table) -> None:
    """Raises DeclarationError with a sentence for each mistake."""
    columns = ddl.columns(table.schema)
    if not any(columns):
        raise declaration_error(table, "schema is empty: name its columns")
    if not all(columns):
        location = next(
            (f"after '{name}'" for name, following in pairwise(columns) if not following), "at its beginning"
        )
        raise declaration_error(table, f"schema has a comma too many {location}: take it out")
    if sentences := [
        *_comma_mistakes(table),
        *_name_mistakes(table),
        *_type_mistakes(table),
        *_parse_mistakes(table, columns),
    ]:
        raise DeclarationError(*[str(declaration_error(table, sentence)) for sentence in sentences], table=table.name)


def _comma_mistakes(table: Table) -> list[str]:
    missing = ddl.without_comma(table.schema)
    types = ddl.types(table.schema)
    untyped = [name for name in ddl.columns(table.schema) if name not in types]
    return [
        *[f"schema lacks a comma between '{before}' and '{after}': write one" for before, after in missing],
        *[f"column '{name}' has no type: write one behind it, such as `{name} STRING`" for name in untyped],
    ]


def _name_mistakes(table: Table) -> list[str]:
    declared = table.schema.removesuffix(FILES_SCHEMA)
    names = ddl.columns(declared)
    names_by_spelling: dict[str, str] = {}
    sentences: list[str] = []
    for name in names:
        other = names_by_spelling.setdefault(ddl.folded(name), name)
        if names.count(name) > 1 and name == other and f"column '{name}' stands" not in " ".join(sentences):
            sentences.append(f"column '{name}' stands in its schema twice: take one out")
        elif name != other:
            sentences.append(
                f"columns '{other}' and '{name}' differ in capital letters alone, and Spark takes them for one: "
                f"rename one of them"
            )
        if INVALID_NAME_CHARACTERS.search(name):
            sentences.append(f"column '{name}' has a character that Delta or SQL refuses: use letters, digits and _")
        elif name in ddl.unquoted(declared) and not UNQUOTED.fullmatch(name):
            sentences.append(f"column '{name}' has a character that SQL takes in backquotes only: write `{name}`")
    return sentences + _reserved_name_mistakes(table, names)


def _reserved_name_mistakes(table: Table, names: list[str]) -> list[str]:
    reserved = QUARANTINED if table.has_quarantine else ()
    if not table.is_recomputed:
        reserved = (RULES, *reserved)
    if table.merges_changes:
        reserved = (*FLAGS, *reserved)
    return [
        f"column '{name}' is one that Sluice adds, to count and quarantine rows: call it something else"
        for name in names
        if name.lower() in reserved
    ]


def _type_mistakes(table: Table) -> list[str]:
    return [
        f"column '{name}' is {kind}, which a Delta table cannot store: "
        f"{'declare it STRING' if kind in TEXT_TYPES else 'declare another type'}"
        for name, kind in ddl.types(table.schema).items()
        if kind in (*UNSTORABLE, *TEXT_TYPES)
    ]


def _parse_mistakes(table: Table, columns: list[str]) -> list[str]:
    if not table.parse:
        return []
    # A column of a file may have any name.
    nested = [name for name in table.parse.into if "." in name and not isinstance(table.parse, Cast)]
    is_avro = isinstance(table.parse, Avro)
    kind, way_on = ("STRUCT", "take what is in it") if is_avro else ("STRING", "take what is in it with from_json")
    sentences = [
        f"into names '{name}', and the fields of an object are not named by a dot: name '{name.split('.')[0]}', a "
        f"{kind} column of its schema, and {way_on} in the transform"
        for name in nested
    ]
    types = ddl.types(table.schema)
    if isinstance(table.parse, Json | Debezium):
        sentences += [
            f"into names '{name}', a column of type {types[name]}, and an object or array is read as text: declare it "
            f"STRING, and take what is in it with from_json in the transform"
            for name in table.parse.into
            if types.get(name) in NESTED_TYPES
        ]
    sentences += [
        f"into names '{name}', no column of its schema: {suggest(name, columns)}"
        for name in table.parse.into
        if name not in (*columns, *nested)
    ]
    if "_errors" not in columns:
        sentences.append(
            "parse without a column for what cannot be typed: "
            "add `_errors ARRAY<STRUCT<field: STRING, message: STRING>>` to its schema"
        )
    return sentences


MOST_CLUSTERING_COLUMNS = 4
# Delta clusters by columns for which it keeps minimum and maximum values.
NOT_FOR_CLUSTERING = ("ARRAY", "BINARY", "BOOLEAN", "MAP", "STRUCT", "VARIANT")
NOT_FOR_PARTITIONING = ("ARRAY", "MAP", "STRUCT", "VARIANT")
TIME_TRAVEL = "say maintain=Maintenance(time_travel_hours=...) instead"
# Table properties that a table file must not set, and the reasons.
RESERVED_PROPERTIES = {
    "delta.deletedFileRetentionDuration": f"the vacuum guard sets it, by what streams still need: {TIME_TRAVEL}",
    "delta.logRetentionDuration": f"the vacuum guard sets it, by what streams still need: {TIME_TRAVEL}",
    "delta.enableExpiredLogCleanup": "the log is cleaned in windows, by what streams still need: take it out",
    "delta.setTransactionRetentionDuration": "a batch that Delta forgot would be written twice: take it out",
    "delta.checkpointPolicy": "Sluice reads classic checkpoints only: take it out",
    "sluice.owner": "write owner='...' instead",
    "sluice.properties": "Sluice notes there what a table file has set: take it out",
}


def check_layout(table: Table) -> None:
    """Raises DeclarationError for the first mistake."""
    _check_layout_columns(table, "cluster_by", table.cluster_by, NOT_FOR_CLUSTERING)
    _check_layout_columns(table, "partition_by", table.partition_by, NOT_FOR_PARTITIONING)
    if table.cluster_by and table.partition_by:
        raise declaration_error(
            table, "cluster_by and partition_by both lay out its files: keep one, mostly cluster_by"
        )
    if len(table.cluster_by) > MOST_CLUSTERING_COLUMNS:
        raise declaration_error(
            table,
            f"cluster_by names {len(table.cluster_by)} columns, and Delta takes {MOST_CLUSTERING_COLUMNS} at most: "
            f"keep those that readers filter by",
        )
    if set(table.partition_by) >= set(ddl.columns(table.schema)):
        raise declaration_error(table, "partition_by names every column, and none is left for the files: take one out")
    if table.owner is not None and not table.owner.strip():
        raise declaration_error(table, f"owner is {table.owner!r}: write the name of a team or a person")
    _check_properties(table)


def _check_layout_columns(table: Table, field: str, names: tuple[str, ...], unsupported: tuple[str, ...]) -> None:
    types = ddl.types(table.schema)
    for name in names:
        if name not in types:
            raise declaration_error(
                table, f"{field} names '{name}', no column of its schema: {suggest(name, list(types))}"
            )
        if list(names).count(name) > 1:
            raise declaration_error(table, f"{field} names '{name}' twice: take one out")
        if types[name] in unsupported:
            raise declaration_error(
                table, f"{field} names '{name}', and Delta takes no {types[name]} there: name another column"
            )


def _check_properties(table: Table) -> None:
    # Delta ignores the case of its property names.
    reserved = {name.lower(): reason for name, reason in RESERVED_PROPERTIES.items()}
    for name in table.properties:
        if name.lower() in reserved:
            raise declaration_error(table, f"properties set '{name}': {reserved[name.lower()]}")


def check_rules(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError for the first wrong rule. All tables have passed the checks of single tables."""
    if table.expect and table.is_recomputed:
        raise declaration_error(table, "expectations stand on a recomputed aggregate: put them on the table it reads")
    for rule in table.expect:
        _check_rule(table, rule)
        if isinstance(rule, References):
            _check_reference(table, rule, tables)
    if table.watermark:
        _check_watermark(table, table.watermark)


def _check_rule(table: Table, rule: Rule) -> None:
    if not rule.name.strip():
        raise declaration_error(table, "a rule has no name, and status and quarantine call it by that: give it one")
    if isinstance(rule, Expect) and not rule.condition.strip():
        raise declaration_error(table, f"rule '{rule.name}' has no condition: write one, such as 'amount > 0'")
    if rule.otherwise not in ACTIONS:
        raise declaration_error(
            table, f"rule '{rule.name}' says otherwise='{rule.otherwise}': {suggest(rule.otherwise, list(ACTIONS))}"
        )
    names = [other.name for other in table.expect]
    if names.count(rule.name) > 1:
        raise declaration_error(table, f"two rules are called '{rule.name}': give each a name of its own")
    if table.watermark and rule.name in (table.watermark.rule, table.watermark.ahead_rule):
        raise declaration_error(table, f"a rule is called '{rule.name}', as late rows are: give it another name")
    columns = ddl.columns(table.schema)
    for column in rule.columns:
        if column not in columns:
            raise declaration_error(
                table, f"rule '{rule.name}' names '{column}', no column of its schema: {suggest(column, columns)}"
            )


def _check_reference(table: Table, rule: References, tables: dict[str, Table]) -> None:
    keys = ddl.columns(tables[rule.table].schema)
    if rule.key not in keys:
        raise declaration_error(
            table, f"rule '{rule.name}' looks for '{rule.key}', no column of {rule.table}: {suggest(rule.key, keys)}"
        )


def _check_watermark(table: Table, watermark: Watermark) -> None:
    columns = ddl.columns(table.schema)
    if table.write.appends and not table.write.unique:
        raise declaration_error(table, "watermark without unique: name the columns by which a repeated row is known")
    if watermark.of not in columns:
        raise declaration_error(
            table, f"watermark of '{watermark.of}', no column of its schema: {suggest(watermark.of, columns)}"
        )
    if watermark.late not in LATE_ACTIONS:
        raise declaration_error(table, f"late is '{watermark.late}': {suggest(watermark.late, list(LATE_ACTIONS))}")
