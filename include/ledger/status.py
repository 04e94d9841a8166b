"""How many rows each table holds and how far its flow is behind, without a JVM."""

from datetime import UTC, datetime
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from include import catalog
from include.errors import SluiceError, Unreachable
from include.ledger import checkpoint, kafka, landing
from include.settings import settings
from include.spec import Delta, Files, Kafka, Table


def rows(table: str) -> int | None:
    """Rows in the newest version, from the log's statistics; None where the table is not stored."""
    stored = _open(table)
    return None if stored is None else stored.count()


def lag(flow: Table) -> str:
    """How far the flow is behind its source, in words."""
    checkpoints = settings().checkpoints(flow.flow)
    generation = checkpoint.newest_generation(checkpoints)
    done = None if generation is None else checkpoint.last_committed(checkpoints / str(generation))
    if generation is None or done is None:
        return "nothing read yet"
    offset = checkpoint.end_offset(checkpoints / str(generation), done)
    if isinstance(flow.source, Kafka):
        return f"{_unread(flow.source, offset):,} records"
    if isinstance(flow.source, Files):
        return f"{landing.waiting(flow.source, checkpoints / str(generation), offset):,} files"
    assert isinstance(flow.source, Delta)
    source = _open(flow.source.table)
    return "source is gone" if source is None else f"{source.version() - checkpoint.read_version(offset):,} versions"


def _unread(source: Kafka, offset: dict[str, Any]) -> int:
    topics = kafka.Topics(settings().kafka)
    behind = 0
    for topic in topics.names(source):
        read = checkpoint.positions(offset, topic)
        behind += sum(end - read.get(partition, begin) for partition, (begin, end) in topics.offsets(topic).items())
    return behind


def summary() -> str:
    """One line a table: rows, lag, age of its newest commit; and one for each flow where it has several."""
    lines = [("table", "rows", "behind its source by", "newest commit")]
    for table in catalog.load().tables.values():
        flows = table.flows
        behind = _lag_or_why_not(flows[0]) if len(flows) == 1 else f"{len(flows)} flows"
        lines.append((table.name, _count(table.name), behind, _age(table.name)))
        if len(flows) > 1:
            lines += [(f"  flow {flow.flow}", "", _lag_or_why_not(flow), "") for flow in flows]
        if table.has_quarantine:
            lines.append((table.quarantine, _count(table.quarantine), "", _age(table.quarantine)))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        f"{name:<{widths[0]}}  {count:>{widths[1]}}  {behind:>{widths[2]}}  {age:>{widths[3]}}"
        for name, count, behind, age in lines
    )


def _lag_or_why_not(flow: Table) -> str:
    try:
        return lag(flow)
    except Unreachable:
        return "unknown: no broker"
    except SluiceError as error:
        return str(error)


def _open(table: str) -> DeltaTable | None:
    try:
        return DeltaTable(str(settings().table_path(table)))
    except TableNotFoundError:
        return None


def _count(table: str) -> str:
    number = rows(table)
    return "not yet" if number is None else f"{number:,}"


def _age(table: str) -> str:
    stored = _open(table)
    if stored is None:
        return ""
    written = datetime.fromtimestamp(stored.history(1)[0]["timestamp"] / 1000, UTC)
    return f"{(datetime.now(UTC) - written).total_seconds():.0f} s ago"
