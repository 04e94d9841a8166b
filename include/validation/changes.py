"""Checks the declaration of a table that merges changes of keys, and writes the sentence for each mistake."""

from include.rules import Unique
from include.spec import Table, Upsert, ddl
from include.validation.declaration import INCOMPARABLE, declaration_error, suggest

# Columns that the merge adds to the table.
ADDED = ("_sequences", "valid_from", "valid_to", "is_current")


def check(table: Table) -> None:
    """Raises DeclarationError for the first mistake. The table has passed the checks of its keys and columns."""
    if not isinstance(table.write, Upsert):
        return
    if table.write.sequence_by is None:
        _require_no_options(table, table.write)
        return
    _check_sequence(table, table.write, table.write.sequence_by)
    _check_kind(table, table.write)
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


def _check_kind(table: Table, write: Upsert) -> None:
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
