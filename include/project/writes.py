"""Checks materialized views, and tables that merge changes of keys."""

import re
from collections.abc import Mapping
from dataclasses import fields
from inspect import signature

from include.project.declaration import INCOMPARABLE, declaration_error, suggest
from include.project.sources import parse_time
from include.rules import Expect, Unique
from include.spec import Delta, Flow, Table, Upsert, ddl

# Columns that the merge adds to the table.
ADDED = ("_sequences", "valid_from", "valid_to", "is_current")


def check_changes(table: Table) -> None:
    """Raises DeclarationError for the first mistake. The table has passed the checks of its keys and columns."""
    if not table.write.upserts:
        return
    write = table.write_as(Upsert)
    if write.sequence_by is None:
        _require_no_options(table, write)
        return
    _check_sequence(table, write, write.sequence_by)
    _check_change_kind(table, write)
    if table.time_column is not None:
        raise declaration_error(
            table, "time_column selects ranges of a backfill, and changes are merged again as a whole: take it out"
        )
    for rule in table.expect:
        if isinstance(rule, Unique):
            raise declaration_error(table, f"rule '{rule.name}' is unique, and its keys are so anyway: take it out")


def _require_no_options(table: Table, write: Upsert) -> None:
    options = {
        "deletes": write.deletes is not None,
        "truncates": write.truncates is not None,
        "scd": write.scd != 1,
        "tracked": write.tracked is not None,
        "partial": write.partial,
        "watermark": write.watermark is not None,
    }
    if name := next((name for name, is_set in options.items() if is_set), None):
        raise declaration_error(
            table, f"{name} is set without sequence_by: name the column that orders the changes of a key"
        )


def _check_sequence(table: Table, write: Upsert, sequence: str) -> None:
    types = ddl.types(table.schema)
    if write.recompute:
        raise declaration_error(
            table, "recompute and sequence_by both say what its rows are, an aggregate or changes: keep one"
        )
    if sequence not in types:
        raise declaration_error(
            table, f"sequence_by is '{sequence}', no column of its schema: {suggest(sequence, list(types))}"
        )
    if sequence in write.keys:
        raise declaration_error(
            table, f"sequence_by is '{sequence}', one of its keys, so each key has one change: name another column"
        )
    if column := next((name for name, type_ in types.items() if type_ in INCOMPARABLE and name not in ADDED), None):
        raise declaration_error(
            table,
            f"column '{column}' is {types[column]}, which Spark cannot compare with a stored one: store it as text",
        )


def _check_change_kind(table: Table, write: Upsert) -> None:
    if write.scd not in (1, 2):
        raise declaration_error(table, f"scd is {write.scd!r}: write 1 for the latest row of a key, 2 for its history")
    if write.watermark and write.scd == 2:
        raise declaration_error(
            table, "a history is computed from all changes of its keys, so none is forgotten: take watermark or scd out"
        )
    if write.partial and write.scd == 2:
        raise declaration_error(
            table, "partial changes have no history, because a row of it needs all columns: take partial or scd out"
        )
    if write.tracked is None:
        return
    if write.scd == 1:
        raise declaration_error(table, "tracked begins rows of a history, and scd is 1: write scd=2, or take it out")
    names = ddl.columns(table.schema)
    for name in write.tracked:
        if name not in names:
            raise declaration_error(table, f"tracked names '{name}', no column of its schema: {suggest(name, names)}")


# A source name is a view name in SQL, or a parameter of the transform.
NAME = re.compile("[a-z][a-z0-9_]*")
# What a view says of a source.
VIEW_OPTIONS = ("table", "version_as_of", "timestamp_as_of")
# Options that only a flow has, and the remedy for a view.
FLOW_OPTIONS = {
    "parse": "what arrives is typed where it is kept, so read a silver table",
    "python": "a view runs Spark's own functions alone, so let a table that it reads store what the function returns",
    "temporary": "a view is there to be stored, so keep one of write=Replace() and temporary=True",
    "interval_seconds": "it is refreshed by its schedule, so write schedule='0 3 * * *'",
    "reset_allowed": "it has no flow that could restart, so take it out",
    "driver": "it is refreshed by a job of its own, so take it out",
}


def check_view(table: Table) -> None:
    """Raises DeclarationError for a mistake in a view that is visible without other tables."""
    if not table.is_view:
        return
    for name, remedy in FLOW_OPTIONS.items():
        if getattr(table, name) != getattr(Table, name):
            raise declaration_error(table, f"{name} is of no use to a materialized view: {remedy}")
    if isinstance(table.source, Mapping):
        _check_view_names(table, list(table.source))
    for reader in table.readers:
        _check_view_source(reader)
    for rule in table.expect:
        if not isinstance(rule, Expect):
            raise declaration_error(
                table, f"rule '{rule.name}' looks into stored rows, which a view replaces: do that in its transform"
            )
        if rule.otherwise == "quarantine":
            raise declaration_error(
                table,
                f"rule '{rule.name}' quarantines, and no row could be moved into a view, which is recomputed: "
                f"write otherwise='drop', 'warn' or 'fail', or put the rule on the table it reads",
            )


def _check_view_names(table: Table, names: list[str]) -> None:
    if not names:
        raise declaration_error(table, "source is empty: name the tables that the view reads")
    for name in names:
        if not NAME.fullmatch(name):
            raise declaration_error(
                table, f"source has the name {name!r}, no plain word: use small letters, digits and _"
            )
    if table.transform is None:
        raise declaration_error(
            table, f"Replace has several sources and no transform: write one, `def transform({', '.join(names)})`"
        )
    if callable(table.transform):
        try:
            signature(table.transform).bind(**dict.fromkeys(names))
        except TypeError as error:
            raise declaration_error(
                table,
                f"its transform does not take its sources by name ({error}): write `def transform({', '.join(names)})`",
            ) from error


def _check_view_source(table: Flow) -> None:
    if not table.source.reads_table:
        raise declaration_error(
            table,
            f"Replace reads {type(table.source).__name__}, and a view is recomputed from stored tables: "
            f"read the bronze table that keeps it",
        )
    source = table.source_as(Delta)
    if source.version_as_of is not None and source.timestamp_as_of is not None:
        raise declaration_error(
            table,
            f"source '{source.table}' says version_as_of and timestamp_as_of, which both name a version: keep one",
        )
    if source.timestamp_as_of is not None and not parse_time(source.timestamp_as_of):
        raise declaration_error(
            table,
            f"timestamp_as_of is {source.timestamp_as_of!r}, no moment with its time zone: write one such as "
            f"'2026-03-01T00:00:00Z'",
        )
    options = [
        option.name
        for option in fields(source)
        if option.name not in VIEW_OPTIONS and getattr(source, option.name) != option.default
    ]
    if options:
        raise declaration_error(
            table,
            f"source '{source.table}' says {options[0]}, and a view reads all rows of one version: "
            f"write Delta('{source.table}') alone",
        )
