"""How soon a backfill is there: python -m benchmarks.in_driver [--small], in a home of its own, without a broker.

Backfills the same range while streams run: in their driver, and with spark-submit, in turn. Measures the time from the
request, or from the start of the process, to the commit that replaces the range. A flow that reads the table must be
drained before.
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake
from pyspark.sql import SparkSession
from sqlalchemy import Engine

from benchmarks.jobs.backfill import BELOW, CATALOG, MADE_AGAIN, RANGE, SOURCE
from benchmarks.support.session import session
from include import catalog
from include.control import commands
from include.control.commands import Action, Command
from include.control.flows import orders
from include.control.jobs import all_kinds, backfills, store
from include.control.jobs.backfills import Backfill
from include.control.lease_renewer import LeaseRenewer
from include.control.leases import lease
from include.control.leases.process import Holder
from include.control.store import database, job_id
from include.delta.delta_log import DeltaLog
from include.engine.jobs.job_runner import JobRunner
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.errors import SluiceError, report
from include.lake import locations
from include.settings import ROOT, settings

NAME = "main"
SUBMIT = [str(Path(sys.executable).parent / "spark-submit"), str(ROOT / "benchmarks" / "jobs" / "backfill.py")]


def feed(stopped: threading.Event) -> None:
    """Append numbers from 0 to 599 repeatedly."""
    for number in itertools.count(0, 200):
        rows = pa.table({"number": pa.array([(number + n) % 600 for n in range(200)], pa.int64())})
        write_deltalake(str(locations.table_path(SOURCE)), rows, mode="append")
        if stopped.wait(2):
            return


def run_driver(spark: SparkSession, engine: Engine) -> threading.Thread:
    """Start a supervised driver with the flows of both tables."""
    jvm = driver.jvm_pid()
    lease_renewer = LeaseRenewer(
        engine, Holder.here(NAME, jvm), settings().lease_seconds, lambda reason: driver.halt(jvm, reason)
    )
    lease_renewer.take([lease.driver_lease(NAME)])
    lease_renewer.start()
    orders.begin(engine, [MADE_AGAIN.name, BELOW.name], by_hand=False)
    # No table file declares these tables.
    catalog.reload = lambda: CATALOG
    host, job_runner = Host(spark, engine, lease_renewer, NAME), JobRunner(spark, engine, NAME)
    thread = threading.Thread(target=host.run, args=([MADE_AGAIN, BELOW], True, job_runner), daemon=True)
    thread.start()
    return thread


def streams_go() -> bool:
    # The table may not exist yet.
    with suppress(SluiceError):
        return DeltaLog(locations.table_path(BELOW.name)).newest >= 5
    return False


def in_driver(engine: Engine) -> float:
    """Seconds from the request to the commit. Returns when the readers are done, too."""
    began = time.time()
    number = backfills.request(engine, MADE_AGAIN.name, RANGE, "a benchmark", NAME)
    assert number
    while not (status := all_kinds.status(engine, job_id.backfill(number))).is_done:
        assert not status.failure, status.failure
        time.sleep(0.2)
    return committed_at(engine) - began


def by_spark_submit(engine: Engine) -> float:
    """Seconds from the start of spark-submit to the commit."""
    began = time.time()
    result = subprocess.run(
        SUBMIT, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return committed_at(engine) - began


def committed_at(engine: Engine) -> float:
    """The commit time of the newest backfill of the table, in seconds since 1970."""
    backfill = store.newest(engine, Backfill, MADE_AGAIN.name, 1)[0]
    path = locations.table_path(MADE_AGAIN.name)
    assert DeltaLog(path).commit(backfill.version or 0).metadata["backfill"]["key"] == backfill.key
    return (path / "_delta_log" / f"{backfill.version:020}.json").stat().st_mtime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.in_driver", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    pairs = 1 if parser.parse_args().small else 5
    with session(CATALOG) as spark:
        engine, stopped = database.connect(settings().control_url), threading.Event()
        threading.Thread(target=feed, args=(stopped,), daemon=True).start()
        time.sleep(2)
        thread = run_driver(spark, engine)
        while not streams_go():
            time.sleep(0.5)
        variants = {"driver": in_driver, "spark-submit": by_spark_submit}
        durations: dict[str, list[float]] = {name: [] for name in variants}
        for number in range(pairs):
            for name in list(variants)[:: 1 if number % 2 else -1]:
                durations[name].append(variants[name](engine))
                print(f"  {name}: {durations[name][-1]:.1f} s", flush=True)
        stopped.set()
        commands.execute(engine, Command(Action.STOP, tuple(CATALOG.tables), "a benchmark", "it is over"))
        thread.join(60)
        print_durations(durations)


def print_durations(durations: dict[str, list[float]]) -> None:
    for name, seconds in durations.items():
        print(f"  {name:<14}{statistics.median(seconds):6.1f} s ({min(seconds):.1f} to {max(seconds):.1f})")
    ratios = [slow / fast for fast, slow in zip(durations["driver"], durations["spark-submit"], strict=True)]
    print(
        f"a backfill asked of a running driver is committed {statistics.median(ratios):.1f} times sooner than by a "
        f"spark-submit ({min(ratios):.1f} to {max(ratios):.1f} in {len(ratios)} pairs)"
    )


if __name__ == "__main__":
    report(main)
