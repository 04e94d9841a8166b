"""The declaration of a table: expectations, storage, schedule and maintenance."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, TypeVar

from include.rules import Expect, Rule, below_last, no_error, not_null
from include.spec import ddl
from include.spec.origin import KAFKA_SCHEMA, AnySource, Delta, Kafka, Parse, Source
from include.spec.write_mode import (
    CHANGE_RULE,
    FLAG_RULE,
    HISTORY_SCHEMA,
    PARTIAL_SCHEMA,
    SEQUENCE_RULE,
    Append,
    Replace,
    Upsert,
    Watermark,
    WriteMode,
)


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


Transform = Callable[[Any], Any] | str
S = TypeVar("S", bound=AnySource)
W = TypeVar("W", bound=WriteMode)


@dataclass(frozen=True)
class Maintenance:
    """Maintenance of a table, in windows without other writers.

    schedule: cron expression in UTC, when the DAG `maintain` checks for work. None: only by hand. "hourly": every hour,
        at a minute that differs between tables.
    target_file_mb: target file size of compaction.
    most_rewritten_mb: maximum amount of data that a window rewrites.
    time_travel_hours: how long each version of the table stays readable.
    every_batches: for a table that a stream upserts: the stream compacts it after this number of batches.
    longest_minutes: maximum duration of a window, which is then ended by force, and of the wait for a window.
    most_held_hours: how long a stopped flow may hold back VACUUM before people are notified.
    """

    schedule: str | None = "hourly"
    target_file_mb: float = 128
    most_rewritten_mb: float = 10_240
    time_travel_hours: float = 168
    every_batches: int = 200
    longest_minutes: float = 60
    most_held_hours: float = 720

    @property
    def longest_seconds(self) -> float:
        """How long a step of a window may go on after it was planned: `longest_minutes`, and an hour at the least."""
        return max(60 * self.longest_minutes, 3_600)

    @property
    def retention_seconds(self) -> float:
        """How long VACUUM keeps removed files: the time travel plus `longest_seconds`, at most twice the promise."""
        # A window dates its removals at its begin, and VACUUM uses the time of the deletion.
        promised_seconds = self.time_travel_hours * 3600
        return promised_seconds + min(self.longest_seconds, promised_seconds)


@dataclass(frozen=True)
class PythonLimits:
    """Limits of the Arrow and pandas functions that a transform runs.

    memory_mb: maximum address space of each Python process that runs them. Python and its libraries take about 400 MB
        of it. A batch uses a process for each core.
    seconds: maximum duration of a batch.
    """

    memory_mb: int = 1024
    seconds: float = 60


@dataclass(frozen=True)
class Via:
    """The person of a row is that of the row in another table with the same value in a column.

    table: a stored table that declares a `subject`. on: the column that both tables share, a STRING or a whole number;
    or by column of this table, the column of that table.
    """

    table: str
    on: str | Mapping[str, str]

    @property
    def columns(self) -> dict[str, str]:
        """By column of this table, the column of that table."""
        return dict(self.on) if isinstance(self.on, Mapping) else {self.on: self.on}

    @property
    def expression(self) -> str:
        """The SQL expression of the key of a row."""
        ((column, other),) = self.columns.items()
        return f"concat('{self.key(self.table, other, '')}', CAST(`{column}` AS STRING))"

    @staticmethod
    def key(table: str, column: str, value: str) -> str:
        """What stands for the person of the rows in this table that have a value."""
        return f"{table}.{column}={value}"


@dataclass(frozen=True, kw_only=True)
class Table:
    """A streaming table. `View` and `Step` declare a materialized view and a temporary step.

    name: `<layer>.<name>`, the same as the path of the file.
    source: one source, or several by branch name. Each branch is a flow, and all flows append to this table. The flow
        of branch "", like an only flow, has the name of the table. The sources of a view are not branches.
    comment: what a row of the table is, stored as its description.
    schema: Spark DDL of the stored columns. The default, for a table fed by Kafka without a transform, is
        `KAFKA_SCHEMA`. A table fed by files gets `FILES_SCHEMA` in addition to its columns.
    transform: a function from source rows to table rows, both `pyspark.sql.DataFrame`. It must be deterministic,
        because a batch may be replayed. Import `pyspark.sql.functions` inside the function. Or a SQL query over the
        view `source`. For a table of several branches also a transform by name of the branch. None: the columns of
        `schema` are selected by name.
    parse: typed columns from a column of the source.
    lookups: columns of other stored tables, joined to the rows that `parse` makes and `transform` gets.
    python: lets `transform` run Arrow and pandas functions (`arrow_udf`, `pandas_udf`, `mapInArrow`, `mapInPandas`),
        within these limits. They must be deterministic, and compute each row from one row of the source.
    write: how rows come into the table.
    expect: the rules, each with an action for rows that break it.
    maintain: when its files are compacted and deleted.
    temporary: a named step that is never stored. Each table that reads it computes it in its own batch.
    schedule: cron expression in UTC. A view is refreshed at these times (None: by hand), or, where it is a tuple of
        tables, when one of them has new rows. A flow reads the new rows at these times, and stops (None: it runs
        continuously).
    interval_seconds: minimum time from the start of a batch to the start of the next; docs/concepts/fast-path.md.
    fresh_minutes: freshness promise: rows that are older than this in its sources are in the table. Sources are the
        tables upstream, up to the topic or folder. A table with no unread source rows is fresh, whatever the age of
        its newest commit. `sluice status` shows whether the promise is kept.
    driver: flows with the same driver share a Spark process.
    owner: the person or team responsible, stored as the property `sluice.owner`.
    cluster_by, partition_by: columns for liquid clustering or partitioning; only one of the two.
    time_column: the TIMESTAMP or DATE column that selects the range of a backfill. An aggregate uses its bucket.
    subject: a column, or a SQL expression over the columns of the table, that names the person whose row it is; or
        `Via`, the row of another table that tells. Rows of erased subjects are left out of each batch;
        docs/guides/erase-a-subject.md.
    reset_allowed: whether a full refresh may rebuild the table from its source. Default: False for a table fed by
        Kafka, because the topic may no longer hold all rows; for files, False only if some files are gone. True
        accepts the loss of such rows. New rows are read in any case.
    properties: Delta table properties, which override those of Sluice.
    personal: columns with personal data; "customer.email" is a field of a STRUCT. Pages, samples, errors and logs have
        a digest instead of their values (docs/guides/personal-data.md).
    not_personal: columns that have no personal data although their names look so, for the hints of `make check`.
    pseudonymise: STRING columns that are stored as pseudonyms, by the key of the platform; docs/guides/pseudonyms.md.
    steps: the temporary steps between `source` and this table, in order; set by the catalog.
    reads_personal: whether a table that it reads has personal columns; set by the catalog.
    file: path of its file from the root of the repository; set by the catalog.
    """

    name: str
    source: Source | Mapping[str, Source]
    comment: str
    schema: str = KAFKA_SCHEMA
    parse: Parse | None = None
    lookups: tuple[Lookup, ...] = ()
    transform: Transform | Mapping[str, Transform] | None = None
    python: PythonLimits | None = None
    write: Append | Upsert | Replace = Append()
    expect: tuple[Rule, ...] = ()
    maintain: Maintenance = Maintenance()
    schedule: str | tuple[str, ...] | None = None
    interval_seconds: float = 2.0
    fresh_minutes: float | None = None
    driver: str = "main"
    temporary: bool = False
    owner: str | None = None
    cluster_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    time_column: str | None = None
    # Not part of `repr`, by which older releases tell whether a definition has changed.
    subject: str | Via | None = field(default=None, repr=False)
    reset_allowed: bool | None = None
    properties: dict[str, str] = field(default_factory=dict)
    # Not part of `repr`, by which older releases tell whether a definition has changed.
    personal: tuple[str, ...] = field(default=(), repr=False)
    not_personal: tuple[str, ...] = field(default=(), repr=False)
    pseudonymise: tuple[str, ...] = field(default=(), repr=False)
    steps: tuple["Table", ...] = ()
    reads_personal: bool = field(default=False, repr=False, compare=False)
    # The path does not belong to the definition of the table.
    file: str = field(default="", repr=False, compare=False)

    @property
    def flows(self) -> tuple["Flow", ...]:
        """Its flows; empty for a view, which is refreshed as a whole."""
        return () if self.is_view else self.readers

    @property
    def readers(self) -> tuple["Flow", ...]:
        """Its flows, or for a view what reads each of its sources: everything that has a position in a source."""
        return self._readers

    @cached_property
    def _readers(self) -> tuple["Flow", ...]:
        declared = {field.name: getattr(self, field.name) for field in fields(Table)}
        if not isinstance(self.source, Mapping):
            return (Flow(**declared),)
        return tuple(
            Flow(**{**declared, "source": source, "transform": self._transform_of(branch)}, branch=branch)
            for branch, source in self.source.items()
        )

    def _transform_of(self, branch: str) -> Transform | None:
        return self.transform.get(branch) if isinstance(self.transform, Mapping) else self.transform

    @property
    def single_flow(self) -> "Flow":
        """Its flow, for a caller who knows that it has one source."""
        (flow,) = self.flows
        return flow

    @property
    def sources(self) -> tuple[Source, ...]:
        return tuple(self.source.values()) if isinstance(self.source, Mapping) else (self.source,)

    @property
    def upstream(self) -> tuple[Delta, ...]:
        """Its sources that are tables."""
        return tuple(source for source in self.sources if isinstance(source, Delta))

    @property
    def topics(self) -> tuple[Kafka, ...]:
        """Its sources that are topics."""
        return tuple(source for source in self.sources if isinstance(source, Kafka))

    @property
    def is_view(self) -> bool:
        return self.write.replaces

    @property
    def has_personal_data(self) -> bool:
        """Whether its rows, or those that it reads, have personal columns."""
        return bool(self.personal or self.pseudonymise) or self.reads_personal

    @property
    def reads_files(self) -> bool:
        """Whether it is fed by files, which no other source can join."""
        return not isinstance(self.source, Mapping) and self.source.reads_files

    def write_as(self, kind: type[W]) -> W:
        """Its write mode, for a caller who knows its kind."""
        assert isinstance(self.write, kind), f"{self.name} is written by {self.write}"
        return self.write

    def __post_init__(self) -> None:
        if not isinstance(self.schema, str) or not isinstance(self.write, WriteMode):
            # The check of types says so.
            return
        # The check of types refuses what is no source.
        added = self.source.added_schema if isinstance(self.source, AnySource) else ""
        if added and added not in self.schema:
            declared = "" if self.schema == KAFKA_SCHEMA else f"{self.schema},"
            object.__setattr__(self, "schema", f"{declared}{added}")
        if self.merges_changes and self.computed_schema not in self.schema:
            object.__setattr__(self, "schema", f"{self.schema.rstrip()},{self.computed_schema}")

    @property
    def subject_expression(self) -> str:
        """The SQL expression of what names the person of a row. Only for a table with a `subject`."""
        assert self.subject is not None
        return self.subject if isinstance(self.subject, str) else self.subject.expression

    @property
    def cron(self) -> str | None:
        """Its schedule, if that names times."""
        return self.schedule if isinstance(self.schedule, str) else None

    @property
    def refreshed_by(self) -> tuple[str, ...]:
        """The tables whose new rows refresh the view."""
        return self.schedule if isinstance(self.schedule, tuple) else ()

    @property
    def layer(self) -> str:
        return self.name.split(".")[0]

    @property
    def quarantine(self) -> str:
        """The table for rows that break a rule, with a row for each file that cannot be read."""
        return f"quarantine.{self.name.replace('.', '_')}"

    @property
    def watermark(self) -> Watermark | None:
        return self.write.watermark

    @property
    def has_quarantine(self) -> bool:
        """Whether rows of the table, or files of its source, may be quarantined."""
        late = self.watermark.late if self.watermark else ""
        return self.reads_files or "quarantine" in (late, *(rule.otherwise for rule in self.rules))

    @property
    def merges_changes(self) -> bool:
        """Whether its source rows are changes of keys."""
        return self.write.merges_changes

    @property
    def is_recomputed(self) -> bool:
        """Whether each batch recomputes rows from all rows of its source."""
        return self.write.is_recomputed

    @property
    def computed_schema(self) -> str:
        """The columns that the merge of changes computes, as DDL; empty for other tables."""
        write = self.write
        if not write.sequence_by or not (write.partial or write.is_history):
            return ""
        type_ = ddl.definitions(self.schema).get(write.sequence_by, "BIGINT")
        return (PARTIAL_SCHEMA if write.partial else HISTORY_SCHEMA).format(type=type_)

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Its expectations. Changes must also name their key and their place in the sequence, and what they do."""
        write = self.write
        if not write.sequence_by:
            return self.expect
        named = [name for name in (self.parse.into if self.parse else ()) if _is_named(name, write)]
        has_errors = bool(named) and "_errors" in ddl.columns(self.schema)
        known = [no_error(*named, name=FLAG_RULE)] if has_errors else []
        if not known and (write.deletes or write.truncates):
            # Checked where the conditions are: the columns that they name need not be columns of the table.
            known.append(Expect(FLAG_RULE, "true", implied=True))
        type_ = ddl.definitions(self.schema).get(write.sequence_by, "")
        if below := below_last(write.sequence_by, type_, SEQUENCE_RULE):
            known.append(below)
        return (not_null(*write.keys, write.sequence_by, name=CHANGE_RULE), *known, *self.expect)

    @property
    def retained(self) -> str:
        """The table of changes that no row of the table shows, but that decide what later changes do."""
        return f"retained.{self.name.replace('.', '_')}"

    @property
    def sliced_by(self) -> str | None:
        """The column that selects the range of a backfill."""
        bucket = self.write.recompute
        return bucket.name if bucket else self.time_column

    @property
    def merges_in_windows(self) -> bool:
        """Whether its flow runs only in maintenance windows."""
        return self.write.in_windows


@dataclass(frozen=True, kw_only=True)
class View(Table):
    """A materialized view: its rows are computed from its sources, which are stored tables, in one commit.

    It has the options of `Table`. Its `schedule` says when it is refreshed; None: by hand.

    write: no other mode is possible.
    """

    write: Replace = Replace()


@dataclass(frozen=True, kw_only=True)
class Step(Table):
    """A named step between tables that is never stored: each table that reads it computes it in its own batches.

    It has the options of `Table` that say how rows are computed.

    temporary: no step is stored.
    """

    temporary: bool = True


@dataclass(frozen=True, kw_only=True)
class Flow(Table):
    """What runs: a query that carries the rows of one source into a table. The catalog makes it from the table.

    For a view, what a refresh reads of one source. name: of the table that it writes. branch: its name among several
    sources; None for the only one.
    """

    source: Source
    transform: Transform | None = None
    branch: str | None = None

    @property
    def flow(self) -> str:
        """Its name: the name of the table, plus the branch if it has one."""
        return f"{self.name}.{self.branch}" if self.branch else self.name

    @property
    def readers(self) -> tuple["Flow", ...]:
        return (self,)

    def source_as(self, kind: type[S]) -> S:
        """Its source, for a caller who knows its kind."""
        assert isinstance(self.source, kind), f"{self.flow} reads {self.source}"
        return self.source


def _is_named(column: str, write: WriteMode) -> bool:
    """Whether the column decides what a change does."""
    conditions = [condition for condition in (write.deletes, write.truncates) if condition]
    return any(re.search(rf"\b{re.escape(column)}\b", condition, re.IGNORECASE) for condition in conditions)


def table_of(flow: str) -> str:
    """The name of the table that the flow writes."""
    return ".".join(flow.split(".")[:2])
