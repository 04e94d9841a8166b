"""Prints the running processes, and the status of each flow: `make status`."""

import psutil

from include import catalog
from include.cli.status import summary
from include.control.store import database
from include.control.supervision import supervisor_presence
from include.errors import report
from include.local import object_store
from include.local.processes import Platform
from include.settings import settings


def main() -> None:
    platform = Platform(settings().home)
    object_store.use_declared(settings())
    print(processes(platform))
    for notice in filter(
        None, (supervisor_presence.absence(settings().control_url), *catalog.load().warnings.values())
    ):
        print(f"\n{notice}")
    print(f"\n{summary()}")


def processes(platform: Platform) -> str:
    """A line for each process that `make up` started, and a line for all their descendants."""
    rows = [("process", "pid", "up for", "memory")]
    pids = set()
    for name in platform.names():
        process = platform.find(name)
        if process:
            pids.add(process.pid)
            rows.append(
                (
                    name,
                    str(process.pid),
                    _age(database.boottime() - process.started_at),
                    _memory([psutil.Process(process.pid)]),
                )
            )
        else:
            rows.append((name, "-", "DEAD", f"see {platform.log(name)}"))
    descendants = [process for process in platform.processes() if process.pid not in pids]
    if descendants:
        rows.append((f"{len(descendants)} more, started by these", "", "", _memory(descendants)))
    if len(rows) == 1:
        return "nothing is running: `make up` starts it"
    return "\n".join(f"{name:<26}{pid:>9}{age:>12}   {memory}" for name, pid, age, memory in rows)


def _age(age_seconds: float) -> str:
    minutes, seconds = divmod(int(age_seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"


def _memory(processes: list[psutil.Process]) -> str:
    """Proportional set size: shared memory is counted once."""
    total = 0
    for process in processes:
        try:
            total += getattr(process.memory_full_info(), "pss", process.memory_info().rss)
        except psutil.Error:
            continue
    return f"{total / 1e6:,.0f} MB"


if __name__ == "__main__":
    report(main)
