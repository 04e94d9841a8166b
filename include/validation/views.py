"""Checks materialized views, and writes the sentence for each mistake."""

import re
from collections.abc import Mapping
from dataclasses import fields
from inspect import signature

from include.rules import Expect
from include.spec import Delta, Table
from include.validation.declaration import declaration_error
from include.validation.delta_sources import parse_time

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
    "reset_allowed": "it has no flow that could start anew, so take it out",
    "driver": "it is refreshed by a job of its own, so take it out",
}


def check(table: Table) -> None:
    """Raises DeclarationError for a mistake in a view that is visible without other tables."""
    if not table.is_view:
        return
    for name, remedy in FLOW_OPTIONS.items():
        if getattr(table, name) != getattr(Table, name):
            raise declaration_error(table, f"{name} is of no use to a materialized view: {remedy}")
    if isinstance(table.source, Mapping):
        _check_names(table, list(table.source))
    for reader in table.readers:
        _check_source(table, reader.source)
    for rule in table.expect:
        if not isinstance(rule, Expect):
            raise declaration_error(
                table, f"rule '{rule.name}' looks into stored rows, which a view replaces: do that in its transform"
            )
        if rule.otherwise == "quarantine":
            raise declaration_error(
                table,
                f"rule '{rule.name}' quarantines, and no row could be put back into a view, which is computed anew: "
                f"write otherwise='drop', 'warn' or 'fail', or put the rule on the table it reads",
            )


def _check_names(table: Table, names: list[str]) -> None:
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


def _check_source(table: Table, source: object) -> None:
    if not isinstance(source, Delta):
        raise declaration_error(
            table,
            f"Replace reads {type(source).__name__}, and a view is computed anew from stored tables: "
            f"read the bronze table that keeps it",
        )
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
