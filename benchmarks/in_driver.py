"""How soon a backfill is there: python -m benchmarks.in_driver [--small], in a home of its own, without a broker.

The same range of the same table, beside streams that go on: asked of their driver, and by a spark-submit of its own, in
turn. From the moment at which it was asked for, or at which the process was started, to the commit that replaces the
range; behind a flow that reads the table and has to be drained first.
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

from benchmarks.backfill_job import BELOW, CATALOG, MADE_AGAIN, RANGE, SOURCE
from benchmarks.session import session
from include import catalog
from include.control import commands, lease, orders
from include.control.commands import Action, Command
from include.control.jobs import backfill_queue, backfills
from include.control.lease_renewer import LeaseRenewer
from include.control.process import Holder
from include.control.store import database
from include.engine.jobs.job_runner import JobRunner
from include.engine.stream import driver
from include.engine.stream.host import Host
from include.errors import SluiceError, report
from include.readers.delta_log import Log
from include.settings import ROOT, settings

NAME = "main"
SUBMIT = [str(Path(sys.executable).parent / "spark-submit"), str(ROOT / "benchmarks" / "backfill_job.py")]


def feed(ends: threading.Event) -> None:
    """Ten minutes of numbers, over and over."""
    for number in itertools.count(0, 200):
        rows = pa.table({"number": pa.array([(number + n) % 600 for n in range(200)], pa.int64())})
        write_deltalake(str(settings().table_path(SOURCE)), rows, mode="append")
        if ends.wait(2):
            return


def run_driver(spark: SparkSession, engine: Engine) -> threading.Thread:
    """A supervised driver with the flows of both tables."""
    jvm = driver.jvm_pid()
    keeper = LeaseRenewer(engine, Holder.here(NAME, jvm), settings().lease_seconds, lambda why: driver.halt(jvm, why))
    keeper.take([lease.of_driver(NAME)])
    keeper.start()
    orders.begin(engine, [MADE_AGAIN.name, BELOW.name], by_hand=False)
    # These tables stand in no file.
    catalog.reload = lambda: CATALOG
    host, beside = Host(spark, engine, keeper, NAME), JobRunner(spark, engine, NAME)
    hosted = threading.Thread(target=host.run, args=([MADE_AGAIN, BELOW], True, beside), daemon=True)
    hosted.start()
    return hosted


def streams_go() -> bool:
    # It is about to be created.
    with suppress(SluiceError):
        return Log(settings().table_path(BELOW.name)).newest >= 5
    return False


def in_driver(engine: Engine) -> float:
    """Seconds to its commit; returns when all below is done."""
    began = time.time()
    number = backfill_queue.ask(engine, MADE_AGAIN.name, RANGE, "a benchmark", NAME)
    assert number
    while not (now := backfill_queue.standing(engine, number)).is_done:
        assert not now.failure, now.failure
        time.sleep(0.2)
    return committed_at(engine) - began


def by_spark_submit(engine: Engine) -> float:
    """The same."""
    began = time.time()
    done = subprocess.run(SUBMIT, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return committed_at(engine) - began


def committed_at(engine: Engine) -> float:
    """When the newest backfill of the table replaced its range."""
    done = backfills.newest(engine, MADE_AGAIN.name, 1)[0]
    path = settings().table_path(MADE_AGAIN.name)
    assert Log(path).commit(done.version or 0).metadata["backfill"]["key"] == done.key
    return (path / "_delta_log" / f"{done.version:020}.json").stat().st_mtime


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.in_driver", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    pairs = 1 if parser.parse_args().small else 5
    with session(CATALOG) as spark:
        engine, ends = database.connect(settings().control_url), threading.Event()
        threading.Thread(target=feed, args=(ends,), daemon=True).start()
        time.sleep(2)
        hosted = run_driver(spark, engine)
        while not streams_go():
            time.sleep(0.5)
        ways = {"driver": in_driver, "spark-submit": by_spark_submit}
        took: dict[str, list[float]] = {name: [] for name in ways}
        for number in range(pairs):
            for name in list(ways)[:: 1 if number % 2 else -1]:
                took[name].append(ways[name](engine))
                print(f"  {name}: {took[name][-1]:.1f} s", flush=True)
        ends.set()
        commands.execute(engine, Command(Action.STOP, tuple(CATALOG.tables), "a benchmark", "it is over"))
        hosted.join(60)
        say(took)


def say(took: dict[str, list[float]]) -> None:
    for name, seconds in took.items():
        print(f"  {name:<14}{statistics.median(seconds):6.1f} s ({min(seconds):.1f} to {max(seconds):.1f})")
    ratios = [slow / fast for fast, slow in zip(took["driver"], took["spark-submit"], strict=True)]
    print(
        f"a backfill asked of a running driver is committed {statistics.median(ratios):.1f} times sooner than by a "
        f"spark-submit ({min(ratios):.1f} to {max(ratios):.1f} in {len(ratios)} pairs)"
    )


if __name__ == "__main__":
    report(main)
