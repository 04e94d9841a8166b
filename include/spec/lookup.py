"""Columns that a flow takes from another stored table, as a join of a stream with a dimension."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Lookup:
    """Columns of a stored table with one row per key, added to each row of the source before `transform`.

    A row without a partner gets NULLs. Each batch reads the table at one version, which its commit records under
    `lookups`.

    table: an `Upsert`, or an `Append` with `unique` and without a watermark, whose keys are those of `on`.
    on: key columns that source and table share; or by column of the source, the key column of the table.
    columns: the columns to add. prefix: put before their names.
    at: for a history (scd=2), a column of the source in the type of `sequence_by`: takes the row that was valid then.
    current: for a history, takes the current row instead.
    refresh_seconds: how long the flow uses a version before it reads the newest one.
    wait: the first batch with rows waits until the flows above the table have read once what their sources held then.
    """

    table: str
    on: str | tuple[str, ...] | Mapping[str, str]
    columns: tuple[str, ...]
    prefix: str = ""
    at: str | None = None
    current: bool = False
    refresh_seconds: float = 60.0
    # Not part of `repr`, by which older releases tell whether a definition has changed.
    wait: bool = field(default=True, repr=False)

    @property
    def keys(self) -> dict[str, str]:
        """By column of the source, the key column of the table."""
        if isinstance(self.on, Mapping):
            return dict(self.on)
        return {name: name for name in ((self.on,) if isinstance(self.on, str) else self.on)}

    @property
    def label(self) -> str:
        """The name of the lookup among those of its flow: its table, with the prefix of its columns if it has one."""
        return f"{self.table} as {self.prefix}*" if self.prefix else self.table

    @property
    def added(self) -> dict[str, str]:
        """By name of an added column, the column of the table."""
        return {f"{self.prefix}{name}": name for name in self.columns}
