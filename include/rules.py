"""The rules of `Table(expect=(...))`: conditions of one's own, and ready-made ones.

A value that is missing breaks each of the ready-made ones; `otherwise` says, as in `Expect`, what becomes of the row,
and `name` replaces the rule's own.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

# What becomes of a row that breaks a rule, the strictest first. Of several rules the strictest decides; quarantine goes
# before drop, because nothing that one rule wants kept may vanish by another.
ACTIONS = ("fail", "quarantine", "drop", "warn")
QUARANTINE = "quarantine"


@dataclass(frozen=True)
class Expect:
    """A SQL condition every row should meet. NULL fails.

    otherwise: what becomes of a row that does not. `warn` keeps and counts it; `drop` leaves it out and counts it;
        `quarantine` moves it to `quarantine.<layer>_<name>`, with the names of the rules it broke; `fail` ends the flow
        before anything of the batch is written. Of several rules that a row breaks, the strictest decides:
        fail, quarantine, drop, warn.
    columns: those the condition names, where the catalog is to look for them.
    """

    name: str
    condition: str
    otherwise: str = "quarantine"
    columns: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Unique:
    """No other row has the same `columns`, neither stored nor before it in its batch. NULL fails.

    Rows that another rule keeps out of the table do not count. Write it as `unique(...)`.
    """

    name: str
    columns: tuple[str, ...]
    otherwise: str = "quarantine"


@dataclass(frozen=True)
class References:
    """The value of `column` is in the column `key` of another table, as that is stored when the batch is judged.

    NULL fails. While the other table is not stored at all, the flow waits. Write it as `references(...)`.
    """

    name: str
    column: str
    table: str
    key: str
    otherwise: str = "quarantine"

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)


Rule = Expect | Unique | References


def not_null(*columns: str, otherwise: str = QUARANTINE, name: str | None = None) -> Expect:
    """Each of these columns has a value."""
    condition = " AND ".join(f"{_quoted(column)} IS NOT NULL" for column in _some(columns))
    return Expect(name or f"{' and '.join(columns)} not null", condition, otherwise, columns)


def one_of(
    column: str, values: Iterable[str | int | bool], otherwise: str = QUARANTINE, name: str | None = None
) -> Expect:
    """The column has one of these values."""
    listed = ", ".join(_literal(value) for value in _some(tuple(values)))
    return Expect(name or f"{column} in set", f"{_quoted(column)} IN ({listed})", otherwise, (column,))


def unique(*columns: str, otherwise: str = QUARANTINE, name: str | None = None) -> Unique:
    """No other row, of the same batch or stored, has the same values there; the first one stays.

    Reads these columns of the whole table in every batch. To leave repeated rows out, `Append(unique=...)` is cheaper.
    """
    return Unique(name or f"{' and '.join(_some(columns))} unique", columns, otherwise)


def references(column: str, table: str, key: str, otherwise: str = QUARANTINE, name: str | None = None) -> References:
    """The column's value is in the column `key` of another table of the catalog, as it is stored at that moment."""
    return References(name or f"{column} in {table}", column, table, key, otherwise)


def _some(values: tuple) -> tuple:  # type: ignore[type-arg]
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
