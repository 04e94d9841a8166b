"""Finds the rows that a table would lose in a full refresh because its source no longer holds them."""

from collections.abc import Iterator
from functools import reduce
from operator import or_

import pyarrow.compute as pc

from include.checkpoints import landing_folder
from include.delta import stored_table
from include.errors import UsageError
from include.flows import resume_position
from include.kafka import broker, cluster
from include.ledger import verify_offsets
from include.settings import settings
from include.spec import Files, Kafka, Table

FILE = "_filename"


def lines(table: Table) -> Iterator[str]:
    """Describes for people what would be lost.

    Raises UsageError where the declaration does not permit the loss, and Unreachable.
    """
    for flow in table.flows:
        if isinstance(flow.source, Kafka):
            yield from _records(flow, flow.source)
    if isinstance(table.source, Files) and (lost := missing_files(table, _files_in_folder(table.source))):
        yield f"  {_file_words(lost)} that it holds lie in {_folder(table.source)} no more, and those rows will be gone"


def missing_files(table: Table, existing: set[str]) -> list[str]:
    """Returns the files with rows in the table that are missing in `existing`.

    Raises UsageError where the declaration does not permit their loss.
    """
    missing = sorted(stored_file_names(table.name) - existing)
    if missing and table.reset_allowed is None:
        assert isinstance(table.source, Files)
        raise UsageError(
            f"{table.name} cannot be refreshed: {_file_words(missing)} that it holds cannot be read in "
            f"{_folder(table.source)} any more, and those rows would be gone; new data still flows: put back what is "
            f"missing, or declare reset_allowed=True to do without it"
        )
    return missing


def stored_file_names(table: str) -> set[str]:
    """Returns the files that have rows in a stored table."""
    stored = stored_table.dataset(table)
    file_names: set[str] = set()
    for rows in stored.to_batches(columns=[FILE]):
        file_names.update(rows.column(0).unique().to_pylist())
    return file_names


def _files_in_folder(source: Files) -> set[str]:
    path = landing_folder.file_system(settings().folder(source.path))[1]
    return {file.path.removeprefix(f"{path}/") for file in landing_folder.files_in_folder(source).values()}


def _folder(source: Files) -> str:
    return settings().folder(source.path)


def _file_words(names: list[str]) -> str:
    return f"file '{names[0]}'" if len(names) == 1 else f"{len(names):,} files ('{names[0]}' the first)"


def _records(flow: Table, source: Kafka) -> Iterator[str]:
    """Describes the lost Kafka records. A topic that the flow has never read has none in the table."""
    if not (metadata := resume_position.last_commit_metadata(flow)):
        return
    if not set(verify_offsets.OFFSET_COLUMNS) <= verify_offsets.columns(flow.name):
        yield f"  what Kafka no longer holds of {source} will be gone: the table does not keep how much that is"
        return
    topics = broker.Topics(cluster.of(source))
    read = metadata["source"]["topics"]
    current_ids = topics.ids(read)
    stored = stored_table.dataset(flow.name)
    for topic, topic_id in read.items():
        is_lost = pc.field("topic") == topic
        if current_ids.get(topic) == topic_id:
            begins = [
                (pc.field("partition") == partition) & (pc.field("offset") < begin)
                for partition, (begin, _) in topics.offsets(topic).items()
            ]
            is_lost &= reduce(or_, begins)
        lost_rows = stored.count_rows(filter=is_lost)
        compacts = current_ids.get(topic) == topic_id and "compact" in topics.configuration(topic)["cleanup.policy"]
        suffix = ", and those that compaction took" if compacts else ""
        yield f"  {lost_rows:,} of its records are in topic '{topic}' no more, and will be gone{suffix}"
