"""How many rows each table holds and how far its flow is behind, without a JVM."""

from datetime import UTC, datetime

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from include import catalog
from include.errors import SluiceError, Unreachable
from include.ledger import checkpoint, kafka, landing
from include.settings import settings
from include.spec import Files, Kafka, Table


def rows(table: str) -> int | None:
    """Rows in the newest version, from the log's statistics; None where the table is not stored."""
    stored = _open(table)
    return None if stored is None else stored.count()


def lag(table: Table) -> str:
    """How far the table's flow is behind its source, in words."""
    checkpoints = settings().checkpoints(table.name)
    generation = checkpoint.newest_generation(checkpoints)
    done = None if generation is None else checkpoint.last_committed(checkpoints / str(generation))
    if generation is None or done is None:
        return "nothing read yet"
    offset = checkpoint.end_offset(checkpoints / str(generation), done)
    if isinstance(table.source, Kafka):
        ends = kafka.end_offsets(settings().kafka, table.source.topic)
        read = offset.get(table.source.topic, {})
        behind = sum(end - read.get(str(partition), 0) for partition, end in ends.items())
        return f"{behind:,} records"
    if isinstance(table.source, Files):
        return f"{landing.waiting(table.source, checkpoints / str(generation), offset):,} files"
    source = _open(table.source.table)
    return "source is gone" if source is None else f"{source.version() - checkpoint.read_version(offset):,} versions"


def summary() -> str:
    """One line a table: rows, lag, age of its newest commit."""
    lines = [("table", "rows", "behind its source by", "newest commit")]
    for table in catalog.load().tables.values():
        try:
            behind = lag(table)
        except Unreachable:
            behind = "unknown: no broker" if isinstance(table.source, Kafka) else "unknown: no folder"
        except SluiceError as error:
            behind = str(error)
        lines.append((table.name, _count(table.name), behind, _age(table.name)))
        if table.has_quarantine:
            lines.append((table.quarantine, _count(table.quarantine), "", _age(table.quarantine)))
    widths = [max(len(line[column]) for line in lines) for column in range(4)]
    return "\n".join(
        f"{name:<{widths[0]}}  {count:>{widths[1]}}  {behind:>{widths[2]}}  {age:>{widths[3]}}"
        for name, count, behind, age in lines
    )


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
