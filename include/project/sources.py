"""Checks the sources of a table: Kafka topics, files with the columns that `parse` reads, and other tables."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime
from itertools import combinations

from include.project import debezium
from include.project.declaration import declaration_error, suggest
from include.spec import (
    CHANGE_SCHEMA,
    FILES_SCHEMA,
    FORMATS,
    NEW_COLUMNS,
    Append,
    Cast,
    Debezium,
    Delta,
    Files,
    Flow,
    Kafka,
    Parse,
    Table,
    ddl,
)

# The branch is part of the flow name and of its checkpoint directory.
BRANCH = re.compile("[a-z][a-z0-9_]*|")
TOPIC = re.compile("[a-zA-Z0-9._-]+")
# A part of the names of its variable and of its Airflow connection.
CLUSTER = re.compile("[a-z][a-z0-9_]*")


def check_sources(table: Table) -> None:
    """Raises DeclarationError for a wrong source. The table has passed all earlier checks."""
    if isinstance(table.source, Mapping) and not table.is_view:
        _check_branches(table, list(table.source))
    for flow in table.flows:
        if flow.source.reads_topics:
            _check_kafka(flow, flow.source_as(Kafka))
    _check_overlap(table)
    _check_clusters(table)


def _check_branches(table: Table, names: list[str]) -> None:
    if not names:
        raise declaration_error(table, "source has no branch: name at least one, or give it one source")
    if not table.write.appends:
        raise declaration_error(
            table,
            "Upsert has several sources, and the rows of one would overwrite those of another: append the branches to "
            "a table of their own, and upsert from that",
        )
    for name in names:
        if not BRANCH.fullmatch(name):
            raise declaration_error(table, f"branch {name!r} is no plain word: use small letters, digits and _")
    if any(flow.source.reads_files for flow in table.flows):
        raise declaration_error(
            table,
            "Files stands beside other sources, and its columns come and go with its files: let it fill a table of "
            "its own, and read that",
        )


def _check_kafka(flow: Table, source: Kafka) -> None:
    if bool(source.names) == (source.pattern is not None):
        mistaken = "both topics and a pattern" if source.names else "neither topics nor a pattern"
        raise declaration_error(flow, f"Kafka has {mistaken}: give it one of them")
    for name in source.names:
        if not TOPIC.fullmatch(name):
            raise declaration_error(
                flow, f"topic {name!r} has a name that Kafka does not allow: use letters, digits, . _ and -"
            )
        if source.names.count(name) > 1:
            raise declaration_error(flow, f"topic '{name}' is named twice: take one of them out")
    if source.pattern is not None:
        _check_pattern(flow, source.pattern)
    if source.cluster is not None and not CLUSTER.fullmatch(source.cluster):
        raise declaration_error(flow, f"cluster {source.cluster!r} is no plain word: use small letters, digits and _")
    is_raw = not (flow.parse or flow.transform)
    if source.schema_ids and is_raw and "schema_id" not in ddl.columns(flow.schema):
        raise declaration_error(flow, "schema_ids without a column for them: write schema=KAFKA_SCHEMA_WITH_IDS")


def _check_pattern(flow: Table, pattern: str) -> None:
    if "&&" in pattern:
        # In Java, `&&` is the intersection of two character classes.
        raise declaration_error(
            flow, f"pattern is {pattern!r}, in which Java and Python read && in two ways: write it without"
        )
    try:
        re.compile(pattern)
    except re.error as error:
        raise declaration_error(
            flow, f"pattern is {pattern!r}, which is no regular expression ({error}): fix it"
        ) from error


def _check_overlap(table: Table) -> None:
    flow_by_origin: dict[str, str] = {}
    for flow in table.flows:
        for origin in flow.source.parts:
            first_flow = flow_by_origin.setdefault(origin, flow.flow)
            if first_flow != flow.flow:
                raise declaration_error(
                    table,
                    f"flows '{first_flow}' and '{flow.flow}' both read {origin}, so its rows would come twice: "
                    f"take one of them out",
                )


def _check_clusters(table: Table) -> None:
    """A row names its topic and not its cluster, so that topics of the same name would be one."""
    for source, other in combinations(table.topics, 2):
        may_match = source.pattern is not None or other.pattern is not None
        if source.cluster != other.cluster and (may_match or set(source.names) & set(other.names)):
            raise declaration_error(
                table,
                f"{source} and {other} may share a topic name, and a row does not name its cluster: give each cluster "
                f"a table of its own, and let a silver table read both",
            )


GLOB = "*?[]{}"


def check_files(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError for the first mistake. All tables have passed the checks of single tables."""
    if table.reads_files:
        source = table.single_flow.source_as(Files)
        _check_file_source(table, source)
        _check_bronze_files(table)
        _check_columns(table, source)
    if table.parse:
        _check_parse(table, table.parse, tables)


def _check_file_source(table: Table, source: Files) -> None:
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
    known = FORMATS[source.format].options
    if not source.header and "header" not in known:
        raise declaration_error(table, f"header=False, and {source.format} has no header: leave it out")
    if source.multi_line and "multi_line" not in known:
        raise declaration_error(
            table, f"multi_line=True, which is for JSON, and its format is {source.format}: leave it out"
        )
    _check_widths(table, source)
    _check_text_options(table, source)


def _check_widths(table: Table, source: Files) -> None:
    if bool(source.widths) != ("widths" in FORMATS[source.format].options):
        if source.widths:
            raise declaration_error(table, f"widths is set, and {source.format} has none: leave it out")
        raise declaration_error(
            table, "format is fixed_width, and widths is empty: name its columns in order, widths={'account': 10}"
        )
    for name, width in source.widths.items():
        if width < 1:
            raise declaration_error(table, f"widths['{name}'] is {width}: set it to a whole number above 0")


def _check_text_options(table: Table, source: Files) -> None:
    defaults = {field.name: field.default for field in fields(source)}
    given = {name: getattr(source, name) for name in ("separator", "quote", "escape", "comment")}
    for name, value in given.items():
        if value == defaults[name]:
            continue
        if name not in FORMATS[source.format].options:
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


def _check_bronze_files(table: Table) -> None:
    if table.layer != "bronze":
        raise declaration_error(
            table, "only bronze reads files, so that what arrived is kept as it arrived: read a bronze table"
        )
    for name, is_set in (
        ("expect", table.expect),
        ("parse", table.parse),
        ("transform", table.transform),
        ("Upsert", not table.write.appends),
        ("unique", table.write.unique),
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
    if FORMATS[source.format].is_typed:
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
        columns = _source_columns(reader, tables)
        for name in parse.into if isinstance(parse, Cast) else (parse.column,):
            if columns and name not in columns:
                parse_type = type(parse).__name__
                raise declaration_error(
                    table, f"{parse_type} of '{name}', which its source has not: {suggest(name, columns)}"
                )


def _source_columns(reader: Flow, tables: dict[str, Table]) -> list[str]:
    """The columns of its source. Empty if they are unknown: files may add columns that are not declared."""
    source = reader.source
    if source.reads_topics:
        return ddl.columns(reader.source_as(Kafka).schema)
    if not source.reads_table or tables[source.table].reads_files:
        return []
    return ddl.columns(tables[source.table].schema) + (ddl.columns(CHANGE_SCHEMA) if source.changes else [])


CHANGE_FEED_PROPERTY = "delta.enableChangeDataFeed"


def check_delta_sources(table: Table) -> None:
    """Raises DeclarationError for a mistake that is visible without other tables."""
    for source in () if table.is_view else table.upstream:
        _check_delta_source(table, source)
    if table.temporary and not table.is_view:
        _check_step(table)


def check_delta_graph(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError for a mistake in relation to other tables. All sources are declared."""
    for flow in table.flows:
        if flow.source.reads_table:
            _check_delta_source_among(flow, flow.source_as(Delta), tables)


def _check_delta_source_among(table: Flow, source: Delta, tables: dict[str, Table]) -> None:
    upstream = tables[source.table]
    if upstream.temporary and table.branch is not None:
        raise declaration_error(
            table,
            f"branch '{table.branch}' reads '{upstream.name}', a temporary step, and one flow of several reads what is "
            f"stored: store it, or give this branch a table of its own",
        )
    if upstream.temporary and source != Delta(upstream.name):
        raise declaration_error(
            table,
            f"source '{upstream.name}' is a temporary step, and how its rows are read stands there: "
            f"write Delta('{upstream.name}') alone",
        )
    if table.is_recomputed and upstream.temporary and _reads_changes(upstream, tables):
        raise declaration_error(
            table,
            f"source '{upstream.name}' is a temporary step over changes, and an aggregate is recomputed from rows: "
            f"read the changes without a step between",
        )
    if source.changes:
        _check_feed(table, upstream)


def inline_steps(tables: dict[str, Table]) -> tuple[dict[str, Table], dict[str, Table]]:
    """Split tables in graph order into the stored tables and the temporary steps.

    The source of each becomes a stored table, and `steps` lists the steps in between. A table whose changes are read
    gets the table property for its change feed.
    """
    flows = [flow for table in tables.values() for flow in table.flows]
    feed_tables = {flow.source.table for flow in flows if flow.source.changes}
    result: dict[str, Table] = {}
    for name, table in tables.items():
        step = None if isinstance(table.source, Mapping) else result.get(table.source.table)
        if step and step.temporary:
            table = replace(table, source=step.source, steps=(*step.steps, replace(step, steps=())))
        if name in feed_tables:
            table = replace(table, properties={**table.properties, CHANGE_FEED_PROPERTY: "true"})
        if _reads_personal(table, tables):
            table = replace(table, reads_personal=True)
        result[name] = table
    stored = {name: table for name, table in result.items() if not table.temporary}
    return stored, {name: table for name, table in result.items() if table.temporary}


def _reads_personal(table: Table, tables: dict[str, Table]) -> bool:
    """Whether a table that it reads, also by way of temporary steps, has personal columns."""
    names = [source.table for source in table.upstream] + [lookup.table for lookup in table.lookups]
    read = [*table.steps, *(tables[name] for name in names if name in tables)]
    return any(part.personal or (part.temporary and _reads_personal(part, tables)) for part in read)


def parse_time(text: str) -> datetime | None:
    """Parse an ISO 8601 time with a time zone; None for any other text."""
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        return None
    return parsed if parsed.tzinfo else None


def _check_delta_source(table: Table, source: Delta) -> None:
    if source.is_pinned:
        option, instead = (
            ("version_as_of", "since_version") if source.timestamp_as_of is None else ("timestamp_as_of", "since")
        )
        begin = "" if table.is_recomputed else f"begin there with {instead}, or "
        raise declaration_error(
            table,
            f"source '{source.table}' says {option}, and a flow goes on with each new version: {begin}make the table a "
            f"view, write=Replace()",
        )
    if source.since_version is not None and source.since is not None:
        raise declaration_error(table, "since_version and since both say where it begins: keep one")
    if source.since is not None and not parse_time(source.since):
        raise declaration_error(
            table, f"since is {source.since!r}, no moment with its time zone: write one such as '2026-03-01T00:00:00Z'"
        )


def _check_step(table: Table) -> None:
    if isinstance(table.source, Mapping) or not table.source.reads_table:
        raise declaration_error(
            table, "a temporary step keeps nothing, and what arrives has to be kept: let it read a table"
        )
    options = {
        "write": table.write != Append(),
        "expect": table.expect,
        "owner": table.owner,
        "fresh_minutes": table.fresh_minutes,
        "schedule": table.schedule,
        "cluster_by": table.cluster_by,
        "partition_by": table.partition_by,
        "time_column": table.time_column,
        "reset_allowed": table.reset_allowed is not None,
        "properties": table.properties,
    }
    unsupported = next((name for name, value in options.items() if value), None)
    if unsupported:
        raise declaration_error(
            table,
            f"{unsupported} is of no use to a temporary step, which is not stored: put it on the tables that read it",
        )


def _reads_changes(step: Table, tables: dict[str, Table]) -> bool:
    """Whether a temporary step, or a step that it reads, reads a change feed."""
    sources = step.upstream if step.temporary else ()
    return any(source.changes or _reads_changes(tables[source.table], tables) for source in sources)


def _check_feed(table: Table, source: Table) -> None:
    if source.properties.get(CHANGE_FEED_PROPERTY, "true").lower() != "true":
        raise declaration_error(
            source,
            f"properties switch {CHANGE_FEED_PROPERTY} off, and {table.name} reads the changes of this table: "
            "take that out",
        )
    reserved = [name for name in ddl.columns(source.schema) if name in ddl.columns(CHANGE_SCHEMA)]
    if reserved:
        raise declaration_error(
            source,
            f"column '{reserved[0]}' has a name of the change feed, and {table.name} reads the changes of this table: "
            f"call it something else",
        )
