"""A process that writes or compacts a table of two flows: python -m tests.support.jobs.online NAME eu|us|windows

It prints `ready`, and waits for a line of input. `eu` and `us` run that flow to the end of its source. `windows` opens
one window after the other until its input ends.
"""

import sys
import threading

from include.catalog import Catalog
from include.control.jobs import windows
from include.control.store import database
from include.engine.jobs.worker import Worker, leases, open_worker
from include.errors import report
from include.settings import settings
from include.spec import Delta, Maintenance, Table

PAUSE_SECONDS = 1


def table_of(name: str) -> Table:
    """A silver table that reads two bronze tables, one version in each batch. A few of its files become one."""
    return Table(
        name=f"silver.{name}",
        comment="both",
        source={branch: Delta(f"bronze.{name}_{branch}", max_files=1) for branch in ("eu", "us")},
        schema="id INT",
        interval_seconds=0.1,
        maintain=Maintenance(target_file_mb=0.004),
    )


def open_windows(worker: Worker, table: Table) -> None:
    has_ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), has_ended.set()), daemon=True).start()
    worker.renewer.take(leases(table))
    while True:
        is_last = has_ended.is_set()
        number = windows.plan(worker.engine, table.name, "a test", "many files", is_worth_it=True)
        worker.window(table, number).run(worker.halt)
        if is_last:
            return
        has_ended.wait(PAUSE_SECONDS)


def main() -> None:
    name, role = sys.argv[1:]
    table = table_of(name)
    engine = database.connect(settings().control_url)
    with open_worker(engine, Catalog({table.name: table}), role, []) as worker:
        print("ready", flush=True)
        sys.stdin.readline()
        if role == "windows":
            open_windows(worker, table)
            return
        [flow] = [flow for flow in table.flows if flow.branch == role]
        worker.renewer.take([flow.flow])
        worker.host.run_once([flow])


if __name__ == "__main__":
    report(main)
