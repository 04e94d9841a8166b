"""What is known of the sources of flows: whether they answer, how far behind the flows are, what is about to expire."""

from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from sqlalchemy import Engine

from include.control import backlog
from include.control.supervision import Outlook
from include.errors import SluiceError, Unreachable
from include.ledger import checkpoint, kafka, landing, retention
from include.ledger.retention import Clock
from include.settings import settings
from include.spec import Files, Kafka, Table

# An alarm has to leave time to act: half of what Kafka keeps, or a day where only the size of the topic is limited.
ALARM_SHARE = 0.5
ALARM_SECONDS = 86_400


def look(engine: Engine, tables: list[Table]) -> dict[str, Outlook]:
    """By flow. Writes down how far each is behind. Raises Unreachable for the control database only."""
    waits: dict[str, str] = {}
    silent: list[str] = []
    clocks: dict[str, Clock | None] = {}
    behind: dict[str, int] = {}
    for table in tables:
        try:
            if (position := _position(table)) is None:
                continue
            if isinstance(table.source, Kafka):
                found = _clocks(table.source, position, silent)
                clocks[table.flow] = retention.soonest(found)
                behind[table.flow] = sum(one.unread for one in found)
            elif isinstance(table.source, Files):
                behind[table.flow] = landing.waiting(table.source, _checkpoint(table), position)
            else:
                version = DeltaTable(str(settings().table_path(table.source.table))).version()
                behind[table.flow] = version - checkpoint.read_version(position)
        except Unreachable as error:
            waits[table.flow] = str(error)
            if isinstance(table.source, Kafka):
                silent.append(str(error))
        except (SluiceError, DeltaError, OSError, ValueError) as error:
            # Its start will name it: the checkpoint or the source table is damaged.
            print(f"{table.flow}: how far it is behind cannot be told: {error}")
    backlog.remember(engine, behind)
    growing = backlog.growing(engine)
    return {
        table.flow: Outlook(waits.get(table.flow), _grows(growing.get(table.flow)), _expires(clocks.get(table.flow)))
        for table in tables
    }


def _position(table: Table) -> Any:
    """Where the flow has come to, as in its checkpoint; None before it has read anything."""
    committed = checkpoint.last_committed(_checkpoint(table))
    return None if committed is None else checkpoint.end_offset(_checkpoint(table), committed)


def _checkpoint(table: Table) -> Path:
    home = settings().checkpoints(table.flow)
    return home / str(checkpoint.newest_generation(home))


def _clocks(source: Kafka, position: dict[str, Any], silent: list[str]) -> list[Clock]:
    """silent: what was said by flows whose broker did not answer."""
    if silent:
        # One broker serves all topics, and asking again would cost another timeout.
        raise Unreachable(silent[0])
    servers = settings().kafka
    return [
        clock
        for topic in kafka.Topics(servers).names(source)
        for clock in retention.clock(servers, topic, checkpoint.positions(position, topic))
    ]


def _grows(growth: tuple[int, int] | None) -> str | None:
    minutes = backlog.TREND_SECONDS // 60
    return growth and f"falls behind: {growth[0]:,} unread {minutes} minutes ago, {growth[1]:,} now"


def _expires(clock: Clock | None) -> str | None:
    if clock is None or clock.expires_in_seconds is None:
        return None
    alarm_seconds = ALARM_SHARE * clock.retention_seconds if clock.retention_seconds else ALARM_SECONDS
    if clock.expires_in_seconds > alarm_seconds:
        return None
    hours = clock.expires_in_seconds / 3600
    where = f"topic '{clock.topic}', partition {clock.partition},"
    return f"Kafka deletes unread records of {where} in {hours:.1f} h: {clock.why}"
