"""The rules of `Table(expect=(...))`: SQL conditions (`Expect`), and functions for common rules.

A NULL value breaks each rule of these functions. `otherwise` is the action for a row that breaks the rule, as in
`Expect`. `name` replaces the default name of the rule.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

# The actions for a row that breaks a rule, the strictest first. The strictest action of all broken rules applies.
# Quarantine precedes drop: a row that one rule wants to keep must not be lost because of another rule.
ACTIONS = ("fail", "quarantine", "drop", "warn")
QUARANTINE = "quarantine"


@dataclass(frozen=True)
class Expect:
    """A SQL condition every row should meet. NULL fails.

    name: of the rule, in counts and in the quarantine. condition: true for a row that meets it.
    otherwise: the action for a row that does not meet it. `warn` keeps and counts the row; `drop` removes and counts
        it; `quarantine` moves it to `quarantine.<layer>_<name>`, with the names of the rules that it breaks; `fail`
        ends the flow before it writes the batch. If a row breaks several rules, the strictest action applies: fail,
        quarantine, drop, warn.
    columns: columns of the condition that the catalog should check for existence. implied: by the columns of the table,
        and not declared; it is counted only where a row breaks it.
    """

    name: str
    condition: str
    otherwise: str = "quarantine"
    columns: tuple[str, ...] = field(default=(), repr=False)
    implied: bool = field(default=False, repr=False)


# What rows of erased subjects break, whatever else they break: see `include.engine.rows.suppression`.
SUPPRESSED = Expect("suppressed", "true", "drop", implied=True)


@dataclass(frozen=True)
class Unique:
    """No stored row, and no earlier row of the batch, has the same values in `columns`. NULL fails.

    Rows that another rule keeps out of the table do not count. Table files write `unique(...)`.

    name, otherwise: as in `Expect`.
    """

    name: str
    columns: tuple[str, ...]
    otherwise: str = "quarantine"


@dataclass(frozen=True)
class References:
    """The value of `column` is in the column `key` of another table, as stored when the batch is checked.

    NULL fails. Table files write `references(...)`.

    name, otherwise: as in `Expect`. table, key: the other table, and its column.
    wait: the first batch with rows waits until the flows above the table have read once what their sources held then.
    """

    name: str
    column: str
    table: str
    key: str
    otherwise: str = "quarantine"
    # Not part of `repr`, by which older releases tell whether a definition has changed.
    wait: bool = field(default=True, repr=False)

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


Rule = Expect | Unique | References
# The rule of a row of the source that no row could be made of: its quarantine has the reason.
FAILED = "processing failed"


def not_null(*columns: str, otherwise: str = QUARANTINE, name: str | None = None) -> Expect:
    """None of these columns is NULL."""
    condition = " AND ".join(f"{_quoted(column)} IS NOT NULL" for column in _require_values(columns))
    return Expect(name or f"{' and '.join(columns)} not null", condition, otherwise, columns)


def one_of(
    column: str, values: Iterable[str | int | bool], otherwise: str = QUARANTINE, name: str | None = None
) -> Expect:
    """The value of the column is one of these."""
    literals = ", ".join(_literal(value) for value in _require_values(tuple(values)))
    return Expect(name or f"{column} in set", f"{_quoted(column)} IN ({literals})", otherwise, (column,))


def no_error(*columns: str, otherwise: str = QUARANTINE, name: str | None = None) -> Expect:
    """None of these columns has an entry in `_errors`, which says that its value could not be typed."""
    fields = ", ".join(map(_literal, _require_values(columns)))
    # A row that was not typed has no errors.
    condition = f"NOT coalesce(exists(_errors, error -> error.field IN ({fields})), false)"
    return Expect(name or f"{' and '.join(columns)} without error", condition, otherwise, ("_errors",))


def below_last(column: str, type_: str, name: str) -> Expect | None:
    """The value of the column is NULL, or below the last of its type, such as infinity. It is counted only where a row
    breaks it. None for a type without a last value. type_: as in DDL.
    """
    if (last := _last(type_.upper())) is None:
        return None
    return Expect(name, f"coalesce({_quoted(column)} < {last}, true)", columns=(column,), implied=True)


INTEGER_BITS = {
    **dict.fromkeys(("TINYINT", "BYTE"), 8),
    **dict.fromkeys(("SMALLINT", "SHORT"), 16),
    **dict.fromkeys(("INT", "INTEGER"), 32),
    **dict.fromkeys(("BIGINT", "LONG"), 64),
}
DECIMAL = re.compile(r"(?:DECIMAL|DEC|NUMERIC)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?")


def _last(type_: str) -> str | None:
    """Returns the last value of a type, as SQL. Of times, it is the last day that readers know: no change comes then,
    and it often stands for infinity.
    """
    if decimal := DECIMAL.fullmatch(type_):
        precision, scale = int(decimal[1] or 10), int(decimal[2] or 0)
        return f"{'9' * (precision - scale)}.{'9' * scale}BD"
    word = type_.partition(" ")[0]
    if bits := INTEGER_BITS.get(word):
        return f"{2 ** (bits - 1) - 1}L"
    if word in ("DOUBLE", "FLOAT", "REAL"):
        return "double('Infinity')"
    if word == "DATE":
        return "DATE'9999-12-31'"
    if word in ("TIMESTAMP", "TIMESTAMP_LTZ"):
        return "TIMESTAMP'9999-12-31 00:00:00 UTC'"
    return "TIMESTAMP_NTZ'9999-12-31 00:00:00'" if word == "TIMESTAMP_NTZ" else None


def unique(*columns: str, otherwise: str = QUARANTINE, name: str | None = None) -> Unique:
    """No other row, of the same batch or stored, has the same values in these columns. The first row stays.

    Each batch reads these columns of the whole table. `Append(unique=...)` is a cheaper way to remove repeated rows.
    """
    return Unique(name or f"{' and '.join(_require_values(columns))} unique", columns, otherwise)


def references(
    column: str, table: str, key: str, otherwise: str = QUARANTINE, name: str | None = None, wait: bool = True
) -> References:
    """The value of `column` is in the column `key` of another table, as stored when the batch is checked.

    wait: as for `Lookup`.
    """
    return References(name or f"{column} in {table}", column, table, key, otherwise, wait)


def _require_values(values: tuple) -> tuple:  # type: ignore[type-arg]
    if not values:
        raise ValueError("a rule over nothing: name a column, or a value")
    return values


def _quoted(column: str) -> str:
    return f"`{column.replace('`', '``')}`"


def _literal(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"
    raise TypeError(f"{value!r} is no text, whole number or truth value: write the rule as an Expect")
