"""Checks how a table reads the events of Debezium, and writes the sentence for each mistake."""

from collections.abc import Mapping

from include.project.declaration import declaration_error, suggest
from include.spec import BINARY_FORMS, INTEGER_TIMES, Debezium, Table, ddl

# Types of integer times.
TIMES = ("TIMESTAMP", "TIMESTAMP_NTZ", "DATE")
SEQUENCE = "_sequence"
# Fields of `source` whose values are texts that order.
TEXT_PLACES = ("file", "sequence", "change_lsn", "commit_lsn", "begin_lsn")
# What tells changes apart, and does not order them.
NO_PLACES = ("gtid", "txId", "xid", "transaction_id", "db", "schema", "table", "name", "snapshot", "version")


def check(table: Table, parse: Debezium) -> None:
    """Raises DeclarationError for the first mistake."""
    _check_times(table, parse)
    if parse.binary is not None and parse.binary not in BINARY_FORMS:
        raise declaration_error(table, f"binary is '{parse.binary}': {suggest(parse.binary, list(BINARY_FORMS))}")
    if not parse.placeholder:
        raise declaration_error(
            table, "placeholder is empty, and so are values: name the unavailable.value.placeholder of the connector"
        )
    _check_sequence(table, parse)


def _check_times(table: Table, parse: Debezium) -> None:
    by_column = parse.integer_times if isinstance(parse.integer_times, Mapping) else {"": parse.integer_times}
    types = ddl.types(table.schema)
    for name, unit in by_column.items():
        of = f"integer_times of '{name}'" if name else "integer_times"
        if unit not in INTEGER_TIMES:
            raise declaration_error(table, f"{of} is '{unit}': {suggest(unit, list(INTEGER_TIMES))}")
        if name and name not in parse.into:
            raise declaration_error(
                table, f"integer_times names '{name}', which into does not: {suggest(name, list(parse.into))}"
            )
        if name and types.get(name) not in TIMES:
            raise declaration_error(
                table, f"integer_times names '{name}', which is {types.get(name)} and no time: take it out"
            )


def _check_sequence(table: Table, parse: Debezium) -> None:
    if not parse.places or not all(parse.places):
        raise declaration_error(table, "sequence is empty: name the fields of source that order the changes")
    if repeated := next((name for name in parse.places if parse.places.count(name) > 1), None):
        raise declaration_error(table, f"sequence names '{repeated}' twice: take one of them out")
    if name := next((name for name in parse.places if name in NO_PLACES), None):
        raise declaration_error(
            table, f"sequence names '{name}', which does not order the changes: name a position in the log"
        )
    kind = ddl.types(table.schema).get(SEQUENCE)
    fields = " and ".join(parse.places)
    needs_text = len(parse.places) > 1 or parse.places[0] in TEXT_PLACES
    if needs_text and kind not in (None, "STRING"):
        raise declaration_error(
            table, f"column '{SEQUENCE}' is {kind}, and the place of a change by {fields} is a text: declare it STRING"
        )
    if kind not in (None, "STRING", "BIGINT"):
        raise declaration_error(
            table, f"column '{SEQUENCE}' is {kind}, which no place of a change is: declare it BIGINT or STRING"
        )
