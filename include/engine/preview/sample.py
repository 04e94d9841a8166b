"""Samples the newest rows of a flow's source; reads little and writes nothing."""

from dataclasses import dataclass
from math import ceil

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.checkpoints import landing_folder
from include.checkpoints.landing_folder import FolderFile
from include.delta import versions
from include.delta.backlog import StreamSource
from include.delta.delta_log import DeltaLog, LiveFile
from include.engine.batch import read
from include.errors import Unreachable
from include.kafka import broker, cluster
from include.project.sources import CHANGE_FEED_PROPERTY
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table

MOST_TABLE_FILES = 200
MOST_VERSIONS = 100
# Files are read completely, as the flow reads them.
MOST_LANDED_FILES = 5
MOST_LANDED_BYTES = 64_000_000


@dataclass(frozen=True)
class Sample:
    """Some rows of a source, with its columns. what: a phrase that names them."""

    rows: DataFrame
    what: str


def newest(spark: SparkSession, flow: Table, count: int) -> Sample:
    """Returns about `count` of the source's newest rows. Raises Unreachable if the source does not respond or exist."""
    if flow.origin.reads_topics:
        return _sample_topics(spark, flow.source_as(Kafka), count)
    sample_rows = _sample_changes if flow.origin.changes else _sample_table
    return sample_rows(spark, flow, flow.source_as(Delta), count)


def log_of(flow: Table, source: Delta) -> DeltaLog:
    """Returns the Delta log of a source. Raises Unreachable if it is not stored yet."""
    if not settings().is_stored(source.table):
        raise Unreachable(
            f"{flow.flow} reads {source.table}, which is not stored yet: start the flow {source.table} first, or give "
            f"rows of it in a file, --from-file"
        )
    return DeltaLog(settings().table_path(source.table))


def landed(table: Table) -> list[FolderFile]:
    """Returns the newest files of the table's folder. Raises Unreachable if the folder does not exist."""
    newest_files: list[FolderFile] = []
    for file in sorted(
        landing_folder.files_in_folder(table.source_as(Files)).values(), key=lambda file: file.modified_ms, reverse=True
    ):
        if newest_files and (sum(chosen.bytes for chosen in newest_files) + file.bytes > MOST_LANDED_BYTES):
            break
        newest_files.append(file)
    return newest_files[:MOST_LANDED_FILES]


def _sample_topics(spark: SparkSession, source: Kafka, count: int) -> Sample:
    topics = broker.Topics(cluster.of(source))
    ranges = {
        (topic, partition): range_
        for topic in topics.names(source)
        for partition, range_ in topics.offsets(topic).items()
    }
    shares = _shares({key: end - begin for key, (begin, end) in ranges.items()}, count)
    begin_offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), share in shares.items():
        begin_offsets.setdefault(topic, {})[partition] = ranges[topic, partition][1] - share
    if not begin_offsets:
        return Sample(spark.createDataFrame([], source.schema), f"{source}, which holds no records yet")
    rows = read.kafka_from(spark, source, begin_offsets).limit(count)
    return Sample(rows, f"the newest records of each partition of {source}")


def _shares(sizes: dict[tuple[str, int], int], count: int) -> dict[tuple[str, int], int]:
    """Returns how many records of each partition to read: equally many, and more of others if a partition holds
    fewer.
    """
    shares: dict[tuple[str, int], int] = {}
    fewest_first = sorted((size, key) for key, size in sizes.items() if size)
    for index, (size, key) in enumerate(fewest_first):
        missing = count - sum(shares.values())
        if share := min(size, ceil(missing / (len(fewest_first) - index))):
            shares[key] = share
    return shares


def _sample_table(spark: SparkSession, flow: Table, source: Delta, count: int) -> Sample:
    log = log_of(flow, source)
    rows = _newest_rows(spark, log, source.table, count)
    return Sample(rows, f"rows of the newest files of {source.table}, version {log.newest}")


def _newest_rows(spark: SparkSession, log: DeltaLog, table: str, count: int) -> DataFrame:
    newest_files: list[LiveFile] = []
    for file in sorted(log.state.live, key=lambda file: (file.modified_at, file.path), reverse=True):
        if sum(chosen.rows or 0 for chosen in newest_files) >= count or len(newest_files) == MOST_TABLE_FILES:
            break
        newest_files.append(file)
    if not newest_files:
        return spark.read.format("delta").load(str(log.table)).limit(0)
    return read.delta_files(spark, table, [file.path for file in newest_files]).limit(count)


def _sample_changes(spark: SparkSession, flow: Table, source: Delta, count: int) -> Sample:
    log = log_of(flow, source)
    versions.require_change_feed(flow.flow, source)
    first = _first_change(log, count)
    if first is None:
        rows = _newest_rows(spark, log, source.table, count)
        # A stream of the change feed that begins now reads the source's rows like this.
        change_columns = {
            "_change_type": F.lit("insert"),
            "_commit_version": F.lit(log.newest).cast("bigint"),
            "_commit_timestamp": F.timestamp_seconds(F.lit(log.commit(log.newest).timestamp)),
        }
        what = f"rows of the newest files of {source.table}, version {log.newest}, as inserts: it keeps no change yet"
        return Sample(rows.withColumns(change_columns), what)
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    changes = reader.option("startingVersion", first).option("endingVersion", log.newest).load(str(log.table))
    rows = changes.orderBy(F.desc("_commit_version")).limit(count)
    return Sample(rows, f"the newest changes of {source.table}, versions {first} to {log.newest}")


def _first_change(log: DeltaLog, count: int) -> int | None:
    """Returns the version from which the feed keeps at least `count` changes, or all that it keeps; None if it has
    none.
    """
    feed, first, rows = StreamSource(log, changes=True), None, 0
    for version in log.versions[: -MOST_VERSIONS - 1 : -1]:
        metadata_actions = [
            action["metaData"] for action in log.actions(version, b'"metaData"') if "metaData" in action
        ]
        if feed.brings(version):
            # The count is None if some file has no statistics.
            first, rows = version, feed.since(version).rows or 0
        if rows >= count or (metadata_actions and not _keeps_changes(log, version - 1)):
            break
    return first


def _keeps_changes(log: DeltaLog, version: int) -> bool:
    return version in log.versions and log.state_at(version).properties.get(CHANGE_FEED_PROPERTY) == "true"
