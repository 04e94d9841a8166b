"""Checks of a table declaration that need no Spark, and the sentence for each mistake."""

import re
from collections.abc import Mapping
from difflib import get_close_matches

from include.errors import DeclarationError
from include.spec import BUCKET_UNITS, Flow, References, Table, Transform, Upsert, Via, ddl

# Ranges of minute, hour, day, month and day of the week.
CRON = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
CRON_PART = re.compile(r"(?:\*|(\d+)(?:-(\d+))?)(?:/(\d+))?")
# Types whose values Spark cannot compare.
INCOMPARABLE = ("MAP", "VARIANT")
# Those whose values have one form as text.
JOINED_TYPES = ("STRING", "BIGINT", "LONG", "INT", "INTEGER", "SMALLINT", "SHORT", "TINYINT", "BYTE")
# A new row recomputes all buckets within its reach.
MOST_BUCKETS_IN_REACH = 1_000
DRIVER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def check_alone(table: Table) -> None:
    """Raises DeclarationError for a mistake that is visible without other tables."""
    if isinstance(table.transform, Mapping):
        _check_transforms(table, table.transform)
    for reader in table.readers:
        if isinstance(reader.transform, str) and not reader.transform.strip():
            raise declaration_error(table, f"transform is {reader.transform!r}: it has to be a function or SQL text")
    if table.python:
        _check_python(table)
    if not DRIVER.fullmatch(table.driver):
        raise declaration_error(
            table,
            f"driver is {table.driver!r}, which becomes the name of a file, a lease and a process: use letters, "
            f"digits, . _ and -",
        )
    if table.subject is not None:
        _check_subject(table, table.subject)
    if table.steps:
        raise declaration_error(table, "steps are filled in by the catalog: take them out")


def _check_subject(table: Table, subject: str | Via) -> None:
    columns = ddl.columns(table.schema)
    if table.temporary:
        raise declaration_error(table, "subject is for stored tables, and a step is none: take it out")
    if isinstance(subject, Via):
        if len(subject.columns) != 1:
            raise declaration_error(
                table, f"subject joins '{subject.table}' on {len(subject.columns)} columns: name one"
            )
        _check_joined(table, table, *subject.columns)
    elif re.fullmatch(r"\w*", subject) and ddl.folded(subject) not in map(ddl.folded, columns):
        raise declaration_error(
            table, f"subject is {subject!r}, no column of its schema: {suggest(subject, list(columns))}"
        )


def _check_joined(table: Table, owner: Table, column: str) -> None:
    """owner: the table that has to have the column."""
    types = ddl.definitions(owner.schema)
    if column not in types:
        raise declaration_error(
            table, f"subject joins on '{column}', no column of '{owner.name}': {suggest(column, list(types))}"
        )
    if types[column].upper() not in JOINED_TYPES:
        raise declaration_error(
            table, f"subject joins on '{column}', which is {types[column]}: join on a STRING or a whole number"
        )


def _check_via(table: Table, tables: dict[str, Table]) -> None:
    above, via = [table], table.subject
    while isinstance(via, Via):
        owner = tables.get(via.table)
        if owner is None or owner.is_view:
            raise declaration_error(
                table,
                f"subject joins '{via.table}', which is computed from what is stored: join a table that stores rows",
            )
        if owner in above:
            raise declaration_error(
                table, f"subject joins '{owner.name}', whose own subject leads back to it: name a column"
            )
        if owner.subject is None:
            raise declaration_error(
                table, f"subject joins '{owner.name}', which has no subject: declare there whose a row is"
            )
        _check_joined(table, owner, *via.columns.values())
        above.append(owner)
        via = owner.subject


def _check_transforms(table: Table, transforms: Mapping[str, Transform]) -> None:
    if table.is_view or not isinstance(table.source, Mapping):
        raise declaration_error(table, "transform has names, and the table no branches: write one transform")
    for branch in transforms:
        if branch not in table.source:
            raise declaration_error(
                table, f"transform names '{branch}', no branch of source: {suggest(branch, list(table.source))}"
            )


def check_known(table: Table, names: set[str], drafts: set[str]) -> None:
    """Raises DeclarationError if the table reads a table that no file declares. names: the tables of all files."""
    read = [("source is", source.table) for source in table.upstream]
    read += [("a lookup reads", lookup.table) for lookup in table.lookups]
    read += [("subject joins", table.subject.table)] if isinstance(table.subject, Via) else []
    read += [(f"rule '{rule.name}' looks into", rule.table) for rule in table.expect if isinstance(rule, References)]
    for reads, name in read:
        if name in drafts:
            raise declaration_error(
                table, f"{reads} '{name}', whose file is a draft: remove its line '# draft' to make it live"
            )
        if name not in names:
            raise declaration_error(
                table, f"{reads} '{name}', which no file declares: {suggest(name, sorted(names | drafts))}"
            )


def check_among(table: Table, tables: dict[str, Table]) -> None:
    """Raises DeclarationError for a mistake in relation to other tables, which have passed `check_alone`."""
    for name in table.refreshed_by:
        if name == table.name or name not in tables:
            others = sorted(tables.keys() - {table.name})
            raise declaration_error(
                table, f"schedule names '{name}', which is no other stored table: {suggest(name, others)}"
            )
    _check_via(table, tables)
    for reader in table.readers:
        _check_source(reader, tables)
        _check_write(reader, tables)
        _check_bronze(reader)


def check_times(table: Table) -> None:
    """Raises DeclarationError for a wrong schedule."""
    maintenance_schedule = None if table.maintain.schedule == "hourly" else table.maintain.schedule
    if table.refreshed_by and not table.is_view:
        raise declaration_error(
            table,
            f"schedule is {table.schedule!r}, and only a view is refreshed by tables: a flow reads new rows as they "
            f"come, so leave schedule out, or write a cron expression",
        )
    for schedule in (table.cron, maintenance_schedule):
        if schedule is not None and not _is_cron(schedule):
            raise declaration_error(
                table, f"schedule is {schedule!r}, which is not the five fields of cron: write '0 3 * * *'"
            )
    if table.schedule is None or table.is_view:
        return
    if table.merges_in_windows:
        raise declaration_error(
            table,
            f"schedule is '{table.schedule}', and what its source gathers is merged in windows, which have their own: "
            f"write maintain=Maintenance(schedule='{table.schedule}')",
        )
    if table.interval_seconds != Table.interval_seconds:
        raise declaration_error(table, "schedule and interval_seconds both say when it reads: keep one")


def _check_python(table: Table) -> None:
    if not callable(table.transform):
        raise declaration_error(
            table, "python is set, and its transform is no function that could run Python: write one, or take it out"
        )
    if table.temporary or table.is_recomputed:
        kind = "a temporary step" if table.temporary else "an aggregate"
        raise declaration_error(
            table,
            f"python is set, and {kind} runs Spark's own functions alone: let a stored table that appends rows run the "
            f"Python function, and read that",
        )


def _check_source(flow: Flow, tables: dict[str, Table]) -> None:
    if not flow.source.reads_table:
        return
    source = flow.source.table
    if flow.is_view:
        if tables[source].temporary:
            raise declaration_error(
                flow,
                f"source '{source}' is a temporary step, and a view reads what is stored: store it, or do the same in "
                f"the transform of the view",
            )
        return
    if tables[source].is_view:
        raise declaration_error(
            flow,
            f"source '{source}' is a materialized view, and a stream would stop at its next refresh, which replaces "
            f"all rows: read what the view reads, or make this table a view, write=Replace()",
        )
    if tables[source].write.upserts and not flow.source.changes:
        raise declaration_error(
            flow,
            f"source '{source}' is upserted, and a stream of appends would stop at the first changed row: "
            f"read its changes, Delta('{source}', changes=True)",
        )


def _check_write(table: Flow, tables: dict[str, Table]) -> None:
    types = ddl.types(table.schema)
    for key in table.write.compared:
        if key not in types:
            raise declaration_error(table, f"key '{key}' is not a column of its schema: {suggest(key, list(types))}")
        if types[key] in INCOMPARABLE:
            raise declaration_error(
                table, f"key '{key}' is {types[key]}, which Spark cannot compare: name another column"
            )
    if table.write.upserts:
        _check_upsert(table, table.write_as(Upsert), tables)


def _check_upsert(table: Flow, write: Upsert, tables: dict[str, Table]) -> None:
    if not write.keys:
        raise declaration_error(table, "Upsert has no keys: name the columns that identify a row")
    if not table.source.reads_table:
        raise declaration_error(table, "an upserted table reads a Delta table, and its source is none: read one")
    bucket = write.recompute
    if bucket is None:
        if write.reach_minutes is not None:
            raise declaration_error(
                table, "reach_minutes is set without recompute: name the bucket whose rows look into others"
            )
        return
    if bucket.unit not in BUCKET_UNITS:
        raise declaration_error(table, f"bucket unit is '{bucket.unit}': {suggest(bucket.unit, list(BUCKET_UNITS))}")
    if write.reach_seconds > MOST_BUCKETS_IN_REACH * BUCKET_UNITS[bucket.unit]:
        raise declaration_error(
            table,
            f"reach_minutes is {write.reach_minutes:g}, more than {MOST_BUCKETS_IN_REACH:,} buckets of a "
            f"{bucket.unit}: choose a larger unit",
        )
    if bucket.name not in write.keys:
        raise declaration_error(table, f"bucket '{bucket.name}' is not one of its keys: add it to {write.keys}")
    options = ddl.columns(tables[table.source.table].schema)
    if bucket.of not in options:
        raise declaration_error(
            table, f"bucket of '{bucket.of}', which its source has not: {suggest(bucket.of, options)}"
        )


def _check_bronze(table: Flow) -> None:
    if not table.source.reads_topics:
        return
    if table.layer != "bronze":
        raise declaration_error(
            table, "only bronze reads Kafka, so that what arrived is kept as it arrived: read a bronze table"
        )
    forbidden = "expect" if table.expect else "unique" if table.write.unique else None
    if forbidden:
        raise declaration_error(
            table, f"{forbidden} would drop messages, and bronze keeps each as it arrived: put it on the silver table"
        )


def _is_cron(text: str) -> bool:
    fields = text.split()
    return len(fields) == len(CRON) and all(
        _is_cron_part(part, *span) for field, span in zip(fields, CRON, strict=True) for part in field.split(",")
    )


def _is_cron_part(part: str, minimum: int, maximum: int) -> bool:
    match = CRON_PART.fullmatch(part)
    if not match:
        return False
    first, last, step = (int(number) if number else None for number in match.groups())
    low = minimum if first is None else first
    high = low if last is None else last
    return minimum <= low <= high <= maximum and step != 0


def declaration_error(table: Table, sentence: str, line: int | None = None) -> DeclarationError:
    """The error for a mistake in the file of a table, with the line where it is known."""
    file = table.file or f"include/tables/{table.name.replace('.', '/')}.py"
    return DeclarationError(f"{file}:{line}: {sentence}" if line else f"{file}: {sentence}", table=table.name)


def suggest(wrong: object, options: list[str], or_else: str | None = None) -> str:
    """A suggestion for a wrong value: the closest option, else `or_else`, else a list of all options."""
    matches = get_close_matches(str(wrong), options, n=1)
    if matches:
        return f"did you mean '{matches[0]}'?"
    return f"there are {', '.join(options) or 'none'}" if or_else is None else or_else
