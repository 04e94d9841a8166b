"""How far a rewind has come, by the logs of its tables and the checkpoints of their flows."""

from collections.abc import Iterable, Iterator

from include.control.jobs.rewinds import Part, Rewind
from include.readers.active_commits import REWIND
from include.readers.checkpoint import newest_generation
from include.readers.delta_log import Log
from include.readers.timeline import Timeline
from include.recovery import rewind_plan
from include.settings import settings
from include.spec import Table


def versions(part: Part, table: Table) -> dict[str, int]:
    """Where its quarantine and itself go back to; the quarantine first, as in a batch."""
    quarantine = {} if part.quarantine is None else {table.quarantine: part.quarantine}
    return quarantine | {table.name: part.version}


def is_there(name: str, version: int) -> bool:
    """Whether the table holds what it held at that version; what only moved rows since stays."""
    line = Timeline(name)
    return line.content(line.versions[-1]) == line.content(version)


def was_put_back(name: str, asked: Rewind) -> bool:
    log = Log(settings().table_path(name))
    return any((one.metadata.get(REWIND) or {}).get("key") == asked.key for one in log.commits())


def owed(asked: Rewind, tables: Iterable[Table]) -> Iterator[Table]:
    """The flows of these tables that have yet to begin a generation behind what was put back: those that write such a
    table, and those that read one.
    """
    touched = {name for name in asked.cut if settings().is_stored(name) and was_put_back(name, asked)}
    for table in tables:
        if table.name not in touched and not rewind_plan.reads(table, touched):
            continue
        for flow in table.flows:
            before = asked.cut[table.name].generations.get(flow.flow)
            newest = newest_generation(settings().checkpoints(flow.flow))
            if before is not None and newest is not None and newest <= before:
                yield flow
