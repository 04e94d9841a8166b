"""A table, as its file declares it: how its rows are written, kept and laid out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from include.rules import Rule
from include.spec.origin import FILES_SCHEMA, KAFKA_SCHEMA, Avro, Cast, Files, Json, Source

LAYERS = ("bronze", "silver", "gold")
LATE_ACTIONS = ("quarantine", "drop")
BUCKET_UNITS = ("minute", "hour", "day")


@dataclass(frozen=True)
class Watermark:
    """How late a row may come: the column `of`, a TIMESTAMP, lies at most `minutes` behind the newest one so far.

    The newest so far is that of all batches before, among rows that broke no rule. A row without a time is never late.
    late: what becomes of one that comes later: `quarantine`, under the name of `rule`, or `drop`.
    """

    of: str
    minutes: float
    late: str = "quarantine"

    @property
    def rule(self) -> str:
        """What a late row has broken."""
        return f"later than {self.minutes:g} minutes"


@dataclass(frozen=True)
class Append:
    """Rows are added and never changed.

    unique: columns that identify a row; of several rows with one identity the first counts, also across batches.
    first_by: which row is first within one batch.
    watermark: rows of one identity are found for certain where they are at most its minutes apart, and no others are
        looked for in what is stored; so the identity need not contain a time.
    """

    unique: tuple[str, ...] = ()
    first_by: tuple[str, ...] = ()
    watermark: Watermark | None = None


@dataclass(frozen=True)
class Bucket:
    """A time bucket: the column `name` is the source's timestamp `of`, cut down to `unit` (minute, hour or day, UTC).

    The engine adds the column before `transform` sees the rows.
    """

    name: str
    of: str
    unit: str


@dataclass(frozen=True)
class Upsert:
    """One row per `keys`, kept current.

    recompute: an aggregate that must be right after late rows. For every bucket a batch touches, `transform` sees all
    rows the source holds for that bucket as of the batch's end version, so a replay comes out the same. The bucket is
    one of the keys. Without one, each batch sees all rows of the source: for small tables, where a late row changes
    what follows it (a running balance, say).
    in_windows: no stream runs; what its source has gathered is merged whenever the table's window is open.
    """

    keys: tuple[str, ...]
    recompute: Bucket | None = None
    in_windows: bool = False


@dataclass(frozen=True)
class Replace:
    """A materialized view: recomputed in full from Delta tables, and replaced in one commit, which no reader sees half.

    Of several sources, by name, `transform` gets each as an argument of that name, and SQL calls them so.
    """


@dataclass(frozen=True)
class Maintenance:
    """How a table is kept in shape, in windows that no other writer shares.

    schedule: cron expression, UTC, at which `maintain.<table>` looks whether there is something to do; None: by hand;
        "hourly": at a minute of its own, so that not all tables are looked at together.
    target_file_mb: the size compaction aims at.
    most_rewritten_mb: how much one window rewrites at most.
    time_travel_hours: for how long every version of the table stays readable.
    every_batches: a table that a stream upserts is compacted by that stream, after so many batches.
    most_held_hours: how long a stopped flow may keep VACUUM from its work before people are told.
    longest_minutes: a window that is not over by then is ended by force; nor is one waited for any longer.
    """

    schedule: str | None = "hourly"
    target_file_mb: float = 128
    most_rewritten_mb: float = 10_240
    time_travel_hours: float = 168
    every_batches: int = 200
    longest_minutes: float = 60
    most_held_hours: float = 720

    @property
    def retention_seconds(self) -> float:
        """For how long VACUUM keeps what was removed: the promise and an hour, no more than twice the promise."""
        # An hour more, as a window dates its removals when it begins, and VACUUM looks at the clock when it deletes.
        promised_seconds = self.time_travel_hours * 3600
        return promised_seconds + min(3600, promised_seconds)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A streaming table, one of its flows (the same table with one source), a materialized view, or a step on the way
    to a table.

    name: `<layer>.<name>`, the same as the file's path.
    source: one, or several by the names of their branches; each is a flow of its own, and all append to this table.
        The branch "" is the flow that bears the table's name, as the only flow does. Those of a view are no branches.
    schema: Spark DDL of the stored columns. A table fed by Kafka without a transform has `KAFKA_SCHEMA`; one fed by
        files gets `FILES_SCHEMA` in addition, and may have further columns.
    transform: source rows to table rows, deterministic: a replayed batch must come out the same. The rows are a
        `pyspark.sql.DataFrame`; import `pyspark.sql.functions` inside the function. Or a SQL query, which calls them
        `source`. Without one, the columns of `schema` are taken by name.
    temporary: a named step that is never stored: each table that reads it does it first, in its own batch.
    schedule: cron expression, UTC, at which a view is refreshed (None: by hand), or at which its flows read what has
        come and stop again (None: all the time).
    interval_seconds: the shortest time from the start of one batch to the start of the next; docs/architecture.md.
    fresh_minutes: a promise to its readers: what has been in its sources for longer is in the table. Its sources are
        the table it reads, and all that feeds that one, back to the topic or folder. Where nothing is unread the table
        is fresh, however old its newest commit is. `python -m include.ledger status` shows whether it is kept.
    driver: flows that name the same driver share one Spark process.
    owner: who answers for the table; stored as the property `sluice.owner`.
    cluster_by, partition_by: columns by which its files are laid out; one of the two.
    time_column: the TIMESTAMP or DATE by which a range of its rows is cut for a backfill. An aggregate has its bucket.
    reset_allowed: whether a full refresh may make all of it anew from its source. By default not where Kafka feeds it:
        Kafka forgets, and nothing is to throw away what the topic no longer holds. Files are refused by default only
        where some that the table holds are gone; True does without what is gone. New data flows in any case.
    properties: Delta table properties, over Sluice's own.
    branch: of one of several flows; the catalog sets it.
    steps: the temporary steps between `source` and this table, in their order; the catalog fills them in.
    file: where it is declared, from the root of the repository; the catalog sets it.
    """

    name: str
    source: Source | Mapping[str, Source]
    comment: str
    schema: str = KAFKA_SCHEMA
    parse: Json | Avro | Cast | None = None
    transform: Callable[[Any], Any] | str | None = None
    write: Append | Upsert | Replace = Append()
    expect: tuple[Rule, ...] = ()
    maintain: Maintenance = Maintenance()
    schedule: str | None = None
    interval_seconds: float = 2.0
    fresh_minutes: float | None = None
    driver: str = "main"
    temporary: bool = False
    owner: str | None = None
    cluster_by: tuple[str, ...] = ()
    partition_by: tuple[str, ...] = ()
    time_column: str | None = None
    reset_allowed: bool | None = None
    properties: dict[str, str] = field(default_factory=dict)
    branch: str | None = None
    steps: tuple["Table", ...] = ()
    # Where a table is declared is no part of what it declares.
    file: str = field(default="", repr=False, compare=False)

    @property
    def flow(self) -> str:
        """The name of its flow: the table's, and that of the branch where it has one."""
        return f"{self.name}.{self.branch}" if self.branch else self.name

    @property
    def flows(self) -> tuple["Table", ...]:
        """Its flows, each with one source; a view has none."""
        return () if self.is_view else self.readers

    @property
    def readers(self) -> tuple["Table", ...]:
        """Its flows, or of a view the same for each source: what has a place in a source, and may be behind it."""
        if not isinstance(self.source, Mapping):
            return (self,)
        return tuple(replace(self, source=source, branch=branch) for branch, source in self.source.items())

    @property
    def is_view(self) -> bool:
        return isinstance(self.write, Replace)

    def __post_init__(self) -> None:
        if isinstance(self.source, Files) and isinstance(self.schema, str) and FILES_SCHEMA not in self.schema:
            declared = "" if self.schema == KAFKA_SCHEMA else f"{self.schema},"
            object.__setattr__(self, "schema", f"{declared}{FILES_SCHEMA}")

    @property
    def layer(self) -> str:
        return self.name.split(".")[0]

    @property
    def quarantine(self) -> str:
        """The table that gets the rows which break a rule, and a row for each file that could not be read."""
        return f"quarantine.{self.name.replace('.', '_')}"

    @property
    def watermark(self) -> Watermark | None:
        return self.write.watermark if isinstance(self.write, Append) else None

    @property
    def has_quarantine(self) -> bool:
        """Whether rows of its, or files of its source, may go there."""
        late = self.watermark.late if self.watermark else ""
        return isinstance(self.source, Files) or "quarantine" in (late, *(rule.otherwise for rule in self.expect))

    @property
    def sliced_by(self) -> str | None:
        """The column by which a range of its rows is cut."""
        bucket = self.write.recompute if isinstance(self.write, Upsert) else None
        return bucket.name if bucket else self.time_column

    @property
    def merges_in_windows(self) -> bool:
        """Whether its flow runs in its windows only."""
        return isinstance(self.write, Upsert) and self.write.in_windows


def table_of(flow: str) -> str:
    """The name of the table that the flow writes."""
    return ".".join(flow.split(".")[:2])
