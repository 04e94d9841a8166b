"""Prints the running processes, and the rows and the lag of each table: `make status`."""

import json
import time
from dataclasses import asdict, dataclass
from typing import Annotated

import psutil
import typer

from include import catalog
from include.control.store import database
from include.delta.delta_log import DeltaLog
from include.errors import SluiceError, report
from include.flows.lag import Lag
from include.lake import locations
from include.local import object_store
from include.local.processes import Platform
from include.monitoring import account
from include.monitoring import lag as lags
from include.monitoring.status import rows
from include.settings import settings
from include.text_columns import in_columns


@dataclass(frozen=True)
class Started:
    """A process that `make up` started. pid, seconds: None if it has died. seconds: its age. memory: in bytes."""

    name: str
    pid: int | None
    seconds: float | None
    memory: int
    log: str


@dataclass(frozen=True)
class Processes:
    """What runs. descendants: how many others these have started. memory: of the descendants, in bytes."""

    processes: list[Started]
    descendants: int
    memory: int


@dataclass(frozen=True)
class TableSummary:
    """written_at: time of its newest commit, in seconds since 1970; None if the log does not say it.

    behind: words for its lag, by flow or by source of a view.
    """

    table: str
    is_stored: bool
    is_view: bool
    rows: int | None
    written_at: float | None
    behind: dict[str, str]


def main(as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")] = False) -> None:
    """Show what runs on this machine, and the rows and the lag of each table."""
    object_store.use_declared(settings())
    running = processes(Platform(settings().home))
    if as_json:
        tables, _ = summaries()
        taken = account.take(catalog.load()).as_json()
        print(json.dumps({**asdict(running), "tables": [asdict(table) for table in tables], **taken}, indent=2))
        return
    print(account.take(catalog.load()).headline, "`sluice status` says why.", end="\n\n")
    print(_process_lines(running))
    for notice in catalog.load().notices:
        print(f"\n{notice}")
    print(f"\n{summary()}")


def processes(platform: Platform) -> Processes:
    """The processes that `make up` started, and all their descendants."""
    listed = []
    for name in platform.names():
        process = platform.find(name)
        age = database.boottime() - process.started_at if process else None
        memory = _memory([psutil.Process(process.pid)]) if process else 0
        listed.append(Started(name, process.pid if process else None, age, memory, str(platform.log(name))))
    pids = {started.pid for started in listed}
    descendants = [process for process in platform.processes() if process.pid not in pids]
    return Processes(listed, len(descendants), _memory(descendants))


def _process_lines(running: Processes) -> str:
    if not running.processes and not running.descendants:
        return "nothing is running: `make up` starts it"
    lines = [("process", "pid", "up for", "memory")]
    for started in running.processes:
        if started.seconds is None:
            lines.append((started.name, "-", "DEAD", f"see {started.log}"))
        else:
            lines.append((started.name, str(started.pid), _age(started.seconds), _megabytes(started.memory)))
    if running.descendants:
        lines.append((f"{running.descendants} more, started by these", "", "", _megabytes(running.memory)))
    return "\n".join(f"{name:<26}{pid:>9}{age:>12}   {memory}" for name, pid, age, memory in lines)


def summary() -> str:
    """Returns one line for each table: rows, lag, and age of its newest commit.

    Tables with several flows, and views with several sources, have one more line for each. The reasons of unknown lags
    follow.
    """
    tables, reasons = summaries()
    lines = [("table", "rows", "behind its source by", "newest commit")]
    for table in tables:
        kind, [*words] = "source" if table.is_view else "flow", table.behind.values()
        behind = "".join(words) if len(words) < 2 else f"{len(words)} {kind}s"
        lines.append((table.table, "not yet" if table.rows is None else f"{table.rows:,}", behind, _since(table)))
        if len(words) > 1:
            lines += [(f"  {kind} {flow}", "", words, "") for flow, words in table.behind.items()]
    return "\n".join([in_columns(lines, left_columns=1), *reasons])


def summaries() -> tuple[list[TableSummary], list[str]]:
    """Each table, followed by its quarantine, and the reasons of unknown lags."""
    tables = catalog.load()
    measured = lags.measure(tables.readers.values())
    listed = []
    for table in tables.tables.values():
        listed.append(_summary(table.name, table.is_view, {flow.flow: measured[flow.flow] for flow in table.readers}))
        if table.has_quarantine or locations.is_stored(table.quarantine):
            listed.append(_summary(table.quarantine, False, {}))
    return listed, list(dict.fromkeys(lag.reason for lag in measured.values() if lag.unknown))


def _summary(table: str, is_view: bool, lags_of: dict[str, Lag]) -> TableSummary:
    behind = {flow: lag.short_words for flow, lag in lags_of.items()}
    is_stored = locations.is_stored(table)
    return TableSummary(table, is_stored, is_view, rows(table), _written_at(table) if is_stored else None, behind)


def _written_at(table: str) -> float | None:
    try:
        log = DeltaLog(locations.table_path(table))
        return log.commit(log.newest).timestamp
    except SluiceError:
        return None


def _since(table: TableSummary) -> str:
    if not table.is_stored:
        return ""
    return "?" if table.written_at is None else f"{time.time() - table.written_at:.0f} s ago"


def _age(age_seconds: float) -> str:
    minutes, seconds = divmod(int(age_seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _megabytes(memory: int) -> str:
    return f"{memory / 1e6:,.0f} MB"


def _memory(processes: list[psutil.Process]) -> int:
    """Proportional set size in bytes: shared memory is counted once."""
    total = 0
    for process in processes:
        try:
            total += getattr(process.memory_full_info(), "pss", process.memory_info().rss)
        except psutil.Error:
            continue
    return total


if __name__ == "__main__":
    report(main)
