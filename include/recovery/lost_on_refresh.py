"""What a table holds that its source holds no more, so that a full refresh from there would not bring it back."""

from collections.abc import Iterator
from functools import reduce
from operator import or_

import pyarrow.compute as pc  # type: ignore[import-untyped]

from include.errors import UsageError
from include.ledger import verify_offsets
from include.readers import kafka_broker, landing_folder, resume_position, stored_rows
from include.settings import settings
from include.spec import Files, Kafka, Table

FILE = "_filename"


def lines(table: Table) -> Iterator[str]:
    """For people. Raises UsageError where nobody has allowed to do without that, and Unreachable."""
    for flow in table.flows:
        if isinstance(flow.source, Kafka):
            yield from _records(flow, flow.source)
    if isinstance(table.source, Files) and (gone := files(table, _lying(table.source))):
        yield f"  {_said(gone)} that it holds lie in {_folder(table.source)} no more, and those rows will be gone"


def files(table: Table, found: set[str]) -> list[str]:
    """The files that have rows in the table and are not among those found. Raises UsageError where its rows may not
    be thrown away.
    """
    gone = sorted(names(table.name) - found)
    if gone and table.reset_allowed is None:
        assert isinstance(table.source, Files)
        raise UsageError(
            f"{table.name} cannot be refreshed: {_said(gone)} that it holds cannot be read in {_folder(table.source)} "
            f"any more, and those rows would be gone; new data still flows: put back what is missing, or declare "
            f"reset_allowed=True to do without it"
        )
    return gone


def names(table: str) -> set[str]:
    """The files that have rows in a stored table."""
    stored = stored_rows.dataset(table)
    found: set[str] = set()
    for rows in stored.to_batches(columns=[FILE]):
        found.update(rows.column(0).unique().to_pylist())
    return found


def _lying(source: Files) -> set[str]:
    path = landing_folder.file_system(settings().folder(source.path))[1]
    return {one.path.removeprefix(f"{path}/") for one in landing_folder.landed(source).values()}


def _folder(source: Files) -> str:
    return settings().folder(source.path)


def _said(gone: list[str]) -> str:
    return f"file '{gone[0]}'" if len(gone) == 1 else f"{len(gone):,} files ('{gone[0]}' the first)"


def _records(flow: Table, source: Kafka) -> Iterator[str]:
    """Not of a topic that it has never read: there is nothing of that in the table."""
    if not (stamp := resume_position.last_stamp(flow)):
        return
    if not set(verify_offsets.PLACE) <= verify_offsets.columns(flow.name):
        yield f"  what Kafka no longer holds of {source} will be gone: the table does not keep how much that is"
        return
    topics = kafka_broker.Topics(settings().kafka)
    read = stamp["source"]["topics"]
    now = topics.ids(read)
    stored = stored_rows.dataset(flow.name)
    for topic, topic_id in read.items():
        own = pc.field("topic") == topic
        if now.get(topic) == topic_id:
            begins = [
                (pc.field("partition") == partition) & (pc.field("offset") < begin)
                for partition, (begin, _) in topics.offsets(topic).items()
            ]
            own &= reduce(or_, begins)
        gone = stored.count_rows(filter=own)
        compacts = now.get(topic) == topic_id and "compact" in topics.configuration(topic)["cleanup.policy"]
        more = ", and those that compaction took" if compacts else ""
        yield f"  {gone:,} of its records are in topic '{topic}' no more, and will be gone{more}"
