"""What every file format is: how the driver reads the head of a file, and how Spark reads the records.

A format is one module here and one entry of `registry`; docs/guides/add-a-format.md shows how to add one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from pyarrow import fs
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql import types as T

from include.engine.files.formats.columns import Columns, FileColumn
from include.errors import Unreachable
from include.spec import Files, Table, ddl

UNREADABLE, VANISHED, EMPTY = "unreadable", "vanished", "empty"
TEXT = T.StringType()
# Spark would plan for hours.
MOST_COLUMNS = 10_000
# The column of the file's URI. No column of a file has this name, because nobody can read it.
PATH = "\ue000path"
# The field of `_rescued_data` for a record that does not fit its file.
RECORD = "_record"
# Maps each byte to one character, so that bytes that are no UTF-8 survive.
BYTES = "ISO-8859-1"

# Decides which columns of the table take those of the files, and adds new ones to the table. Raises FlowBroken.
Resolve = Callable[[Iterable[FileColumn]], Columns]


@dataclass(frozen=True)
class FileHeader:
    """The head of a file. kind: equal for files that are read together. names: columns of a CSV. encoding: from a byte
    order mark, else empty. line_separator: how the rows of a CSV end, if Spark cannot find out, else empty. problem:
    why the file is not read. rule: the quarantine's name of the problem.
    """

    path: str
    kind: Hashable = None
    names: tuple[str, ...] = ()
    encoding: str = ""
    line_separator: str = ""
    nanoseconds: frozenset[tuple[str, ...]] = frozenset()
    problem: str = ""
    rule: str = UNREADABLE
    outage: Unreachable | None = None


@dataclass(frozen=True)
class FileGroup:
    """Files of a batch whose heads have the same `kind`. uris: as Hadoop expects them, in the order of `heads`."""

    heads: Sequence[FileHeader]
    uris: Sequence[str]

    @property
    def head(self) -> FileHeader:
        """The head of any of them."""
        return self.heads[0]


class Format(ABC):
    """A file format."""

    @abstractmethod
    def head(self, system: fs.FileSystem, path: str, source: Files, declared: Sequence[str]) -> FileHeader:
        """Returns the head of a file. It reads little, because the driver does so for each file of a batch.

        declared: the columns that the table declares. Raises OSError, ValueError or `pyarrow.ArrowException` for a file
        that is not read: its message goes to the quarantine.
        """

    def checked(self, table: Table, source: Files, heads: list[FileHeader]) -> list[FileHeader]:
        """Returns the heads of a batch; what is wrong beside other files, or the table, becomes a problem of a file."""
        return heads

    @abstractmethod
    def rows(
        self, spark: SparkSession, source: Files, groups: Sequence[FileGroup], resolve: Resolve
    ) -> list[DataFrame]:
        """Returns the records of the files: columns of the table, `PATH`, `_index` and `_rescued_data`, in frames.

        groups: at least one. resolve: is called once, with all columns of the files.
        """


def empty(path: str) -> FileHeader:
    """Returns the head of an empty file, which is not read."""
    return FileHeader(path, problem="it is empty", rule=EMPTY)


def too_many(columns: int) -> str:
    return f"it has {columns:,} columns, and those of more than {MOST_COLUMNS:,} are not read: divide it"


def require_distinct(names: Iterable[str]) -> None:
    """Raises OSError for columns that Spark takes for one."""
    seen: dict[str, str] = {}
    for name in names:
        if other := seen.get(ddl.folded(name)):
            raise OSError(f"it has the columns '{other}' and '{name}', which Spark takes for one: rename one of them")
        seen[ddl.folded(name)] = name


def reader(spark: SparkSession) -> DataFrameReader:
    """Returns a reader of exactly the paths that it is given."""
    # Names may contain a `*`, with which Spark would read other files twice, unless it does not expand patterns.
    return spark.read.option("__globPaths__", "false").option("recursiveFileLookup", "true")


def with_row_numbers(rows: DataFrame) -> DataFrame:
    """Adds the path and `_row`, the row's number in its file. Splits of a file are in order, and so are their rows."""
    metadata = rows.metadataColumn("_metadata")
    rows = rows.select(
        "*",
        metadata["file_path"].alias(PATH),
        metadata["file_block_start"].alias("_piece"),
        F.monotonically_increasing_id().alias("_place"),
    )
    order = Window.partitionBy(PATH).orderBy("_piece", "_place")
    return rows.withColumn("_row", (F.row_number().over(order) - 1).cast("bigint")).drop("_piece", "_place")


def with_values(rows: DataFrame, values: dict[str, Column], rescued: Column) -> DataFrame:
    """Returns the rows with these columns of the table, the path, `_index` and what is rescued."""
    file_columns = [F.col(PATH), F.col("_index"), rescued.alias("_rescued_data")]
    return rows.select(*[value.alias(name) for name, value in values.items()], *file_columns)


def utf8(text: Column | str) -> Column:
    """Decodes a text that was read as `BYTES`; NULL if its bytes are no UTF-8."""
    return F.try_validate_utf8(F.encode(text, BYTES).cast("string"))


def any_of(conditions: Iterable[Column]) -> Column:
    """Whether one of them holds. Thousands of ORs, each within the next one, would exceed Spark's stack."""
    return F.coalesce(*[F.when(condition, F.lit(True)) for condition in conditions], F.lit(False))


def as_json(entries: list[tuple[Column, Column]]) -> Column:
    """Returns the entries that have a value, as a JSON object."""
    return F.to_json(F.map_filter(F.create_map(*chain(*entries)), lambda _, value: value.isNotNull()))
