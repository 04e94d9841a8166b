"""Some real rows of a flow's source, the newest ones, chosen so that little is read and nothing is written."""

from dataclasses import dataclass
from math import ceil

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from include.engine.batch import read
from include.errors import Unreachable
from include.readers import kafka_broker, landing_folder, starting_version
from include.readers.delta_backlog import Feed
from include.readers.delta_log import LiveFile, Log
from include.readers.landing_folder import Landed
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table
from include.validation.delta_sources import FEED

MOST_TABLE_FILES = 200
MOST_VERSIONS = 100
# Whole files are read, as their flow reads them.
MOST_LANDED_FILES = 5
MOST_LANDED_BYTES = 64_000_000


@dataclass(frozen=True)
class Sample:
    """rows: of a source. what: which these are, in words."""

    rows: DataFrame
    what: str


def newest(spark: SparkSession, flow: Table, count: int) -> Sample:
    """Raises Unreachable where the source does not answer, or is not there yet."""
    if isinstance(flow.source, Kafka):
        return _of_topics(spark, flow.source, count)
    assert isinstance(flow.source, Delta)
    if flow.source.changes:
        return _of_changes(spark, flow, flow.source, count)
    return _of_table(spark, flow, flow.source, count)


def log_of(flow: Table, source: Delta) -> Log:
    """The log of a stored source. Raises Unreachable where it is not stored yet."""
    if not settings().is_stored(source.table):
        raise Unreachable(
            f"{flow.flow} reads {source.table}, which is not stored yet: start the flow {source.table} first, or give "
            f"rows of it in a file, --from-file"
        )
    return Log(settings().table_path(source.table))


def landed(table: Table) -> list[Landed]:
    """The newest files of its folder. Raises Unreachable where the folder is not there."""
    assert isinstance(table.source, Files)
    found: list[Landed] = []
    for file in sorted(landing_folder.landed(table.source).values(), key=lambda file: file.modified_ms, reverse=True):
        if found and (sum(one.bytes for one in found) + file.bytes > MOST_LANDED_BYTES):
            break
        found.append(file)
    return found[:MOST_LANDED_FILES]


def _of_topics(spark: SparkSession, source: Kafka, count: int) -> Sample:
    topics = kafka_broker.Topics(settings().kafka)
    spans = {
        (topic, partition): span for topic in topics.names(source) for partition, span in topics.offsets(topic).items()
    }
    shares = _shares({key: end - begin for key, (begin, end) in spans.items()}, count)
    begins: dict[str, dict[int, int]] = {}
    for (topic, partition), share in shares.items():
        begins.setdefault(topic, {})[partition] = spans[topic, partition][1] - share
    if not begins:
        return Sample(spark.createDataFrame([], source.schema), f"{source}, which holds no records yet")
    rows = read.kafka_from(spark, source, begins).limit(count)
    return Sample(rows, f"the newest records of each partition of {source}")


def _shares(held: dict[tuple[str, int], int], count: int) -> dict[tuple[str, int], int]:
    """How many records of each partition to read: equally many, and what one does not hold is read from others."""
    found: dict[tuple[str, int], int] = {}
    fewest_first = sorted((size, key) for key, size in held.items() if size)
    for place, (size, key) in enumerate(fewest_first):
        left = count - sum(found.values())
        if share := min(size, ceil(left / (len(fewest_first) - place))):
            found[key] = share
    return found


def _of_table(spark: SparkSession, flow: Table, source: Delta, count: int) -> Sample:
    log = log_of(flow, source)
    rows = _newest_rows(spark, log, source.table, count)
    return Sample(rows, f"rows of the newest files of {source.table}, version {log.newest}")


def _newest_rows(spark: SparkSession, log: Log, table: str, count: int) -> DataFrame:
    found: list[LiveFile] = []
    for file in sorted(log.state.live, key=lambda file: (file.modified_at, file.path), reverse=True):
        if sum(one.rows or 0 for one in found) >= count or len(found) == MOST_TABLE_FILES:
            break
        found.append(file)
    if not found:
        return spark.read.format("delta").load(str(log.table)).limit(0)
    return read.delta_files(spark, table, [file.path for file in found]).limit(count)


def _of_changes(spark: SparkSession, flow: Table, source: Delta, count: int) -> Sample:
    log = log_of(flow, source)
    starting_version.require_feed(flow.flow, source)
    first = _first_change(log, count)
    if first is None:
        rows = _newest_rows(spark, log, source.table, count)
        # As a stream that begins gets what its source holds.
        begin = {
            "_change_type": F.lit("insert"),
            "_commit_version": F.lit(log.newest).cast("bigint"),
            "_commit_timestamp": F.timestamp_seconds(F.lit(log.commit(log.newest).timestamp)),
        }
        what = f"rows of the newest files of {source.table}, version {log.newest}, as inserts: it keeps no change yet"
        return Sample(rows.withColumns(begin), what)
    reader = spark.read.format("delta").option("readChangeFeed", "true")
    changes = reader.option("startingVersion", first).option("endingVersion", log.newest).load(str(log.table))
    rows = changes.orderBy(F.desc("_commit_version")).limit(count)
    return Sample(rows, f"the newest changes of {source.table}, versions {first} to {log.newest}")


def _first_change(log: Log, count: int) -> int | None:
    """The version from which on the source keeps at least so many changes, or all that it keeps; None for none."""
    feed, first, rows = Feed(log, changes=True), None, 0
    for version in log.versions[: -MOST_VERSIONS - 1 : -1]:
        configured = [action["metaData"] for action in log.actions(version, b'"metaData"') if "metaData" in action]
        if feed.brings(version):
            # Unknown where a file does not say.
            first, rows = version, feed.since(version).rows or 0
        if rows >= count or (configured and not _keeps_changes(log, version - 1)):
            break
    return first


def _keeps_changes(log: Log, version: int) -> bool:
    return version in log.versions and log.state_at(version).properties.get(FEED) == "true"
