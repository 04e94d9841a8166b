"""What windows cost: python -m benchmarks.windows [--small] [--only PART], in a home of its own, without a broker.

1. How long a flow waits at its gate in addition to the work in the window, and how a window affects another flow of the
   driver. The job of the window runs in its own process, as in production.
2. CPU seconds per GB of compaction: Sluice's plan, plain OPTIMIZE, and delta-rs, over copies of a table in one session.
3. A thousand small appends with windows in between: the number of files relative to the minimum, and rewritten bytes.
"""

import argparse
import itertools
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import SparkSession

from benchmarks.jobs.window import CATALOG, OTHER, SOURCE, WATCHED
from benchmarks.support import measure
from benchmarks.support.host import running_host, stop
from benchmarks.support.measure import Row, Spent
from benchmarks.support.session import cpu_seconds, session
from include.control.jobs import store
from include.control.jobs.windows import Window
from include.control.store import database
from include.delta.delta_log import DeltaLog
from include.engine.stream.host import Host
from include.engine.tables import maintain
from include.errors import report
from include.lake import locations
from include.maintenance import plan
from include.maintenance.plan import OPTIMIZE, Facts
from include.settings import settings
from include.spec import Maintenance

MB = 2**20


def rows(count: int, seed: int) -> pa.Table:
    """Rows of about 100 bytes, half of them random. Columns: number, time, value, payload."""
    generator = numpy.random.default_rng(seed)
    return pa.table(
        {
            "number": pa.array(range(count), pa.int64()),
            "time": pa.array((seed * 1_000_000 + numpy.arange(count)), pa.timestamp("us", "UTC")),
            "value": pa.array(generator.integers(0, 1_000, count), pa.int32()),
            "payload": pa.array([generator.bytes(48) for _ in range(count)], pa.binary()),
        }
    )


def pauses(spark: SparkSession, count: int) -> None:
    """Run two flows in a driver, with a batch a second, and `count` windows on the table of one of them."""
    append(rows(100, 0))
    engine, host = database.connect(settings().control_url), running_host(spark, [WATCHED, OTHER])
    stopped = threading.Event()
    feeder = threading.Thread(target=feed, args=(stopped,), daemon=True)
    feeder.start()
    time.sleep(40)
    spans = []
    for _ in range(count):
        spans.append(run_window(engine))
        time.sleep(8)
    stopped.set()
    feeder.join()
    print_pauses(engine, host, spans)
    stop(host)


def append(table: pa.Table) -> None:
    write_deltalake(str(locations.table_path(SOURCE)), table, mode="append")


def feed(stopped: threading.Event) -> None:
    seed = 1
    while not stopped.wait(1):
        append(rows(200, seed))
        seed += 1


def run_window(engine: object) -> tuple[float, float]:
    """Run a window in its own process. Returns when it opened and closed, in seconds since 1970."""
    command = [sys.executable, "-m", "benchmarks.jobs.window"]
    subprocess.run(command, check=True, capture_output=True)
    newest = store.newest(engine, Window, WATCHED.name, 1)[0]
    return newest.opened_at or 0, newest.ended_at or 0


def print_pauses(engine: object, host: Host, spans: list[tuple[float, float]]) -> None:
    window_pauses = [pause for window in store.newest(engine, Window, WATCHED.name) for pause in window.pauses]
    extra = sorted(pause.beyond_seconds for pause in window_pauses)
    print(f"{len(spans)} windows, open for {statistics.median(b - a for a, b in spans):.1f} s (median)")
    if extra:
        p95 = extra[min(len(extra) - 1, round(0.95 * len(extra)))]
        print(
            f"pauses beyond the work in the window: {len(extra)}, median {statistics.median(extra):.2f} s, "
            f"p95 {p95:.2f} s, longest {extra[-1]:.2f} s"
        )
    during, outside = [], []
    for progress in host._flows[OTHER.name].query.recentProgress:
        began = time.mktime(time.strptime(progress.timestamp[:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
        ended = began + progress.batchDuration / 1000
        if progress.numInputRows:
            is_during = any(began < closed and ended > opened for opened, closed in spans)
            (during if is_during else outside).append(progress.batchDuration)
    if during and outside:
        ratio = statistics.median(during) / statistics.median(outside)
        print(f"batches of another flow: {ratio:.2f} times as long while a window is open ({len(during)} batches)")


def compaction(spark: SparkSession, files: int, rows_each: int, rounds: int) -> None:
    """Measure CPU seconds per GB of three variants, in turn, over copies of a table."""
    path = locations.table_path("bronze.scattered")
    for seed in range(files):
        write_deltalake(str(path), rows(rows_each + seed, seed), mode="append")
    gigabytes = sum(file.bytes for file in DeltaLog(path).state.live) / 1e9
    variants = {measure.OURS: by_plan, "plain OPTIMIZE": by_optimize, "delta-rs": by_delta_rs}
    copy_numbers = itertools.count()

    def once(name: str) -> Spent:
        copy = locations.table_path(f"bronze.copy_{next(copy_numbers)}")
        shutil.copytree(path, copy)
        spent = measure.spend(cpu_seconds, lambda: variants[name](spark, copy))
        shutil.rmtree(copy)
        return spent

    blocks = {name: partial(once, name) for name in variants}
    # The first round warms up.
    measure.run_alternating(blocks, 1)
    spent = measure.run_alternating(blocks, rounds)
    figures = {name: measure.cpu_figure(blocks_spent, gigabytes) for name, blocks_spent in spent.items()}
    measure.record(Row(f"compaction of {files} files, {gigabytes * 1000:.0f} MB", "CPU-s per GB", figures))


def by_plan(spark: SparkSession, path: Path) -> None:
    compact_by_plan(spark, path, Maintenance(), waited_seconds=1e9)


def by_optimize(spark: SparkSession, path: Path) -> None:
    spark.sql(f"OPTIMIZE delta.`{path}`")


def by_delta_rs(_: SparkSession, path: Path) -> None:
    DeltaTable(str(path)).optimize.compact(target_size=128 * MB)


def compact_by_plan(spark: SparkSession, path: Path, policy: Maintenance, waited_seconds: float) -> int:
    """Compact by Sluice's plan. Returns the number of rewritten bytes."""
    live = DeltaLog(path).state.live
    facts = Facts(live=live, dead=[], now_seconds=time.time(), seconds_since_compaction=waited_seconds)
    step = plan.plan(facts, policy).step(OPTIMIZE)
    if step.is_worth_it:
        maintain.compact(spark, f"{path.parent.name}.{path.name}", step, {})
    return step.numbers.get("bytes_rewritten", 0)


def thousand_triggers(spark: SparkSession, triggers: int, every: int) -> None:
    path, policy = locations.table_path("bronze.triggers"), Maintenance(target_file_mb=8)
    rewritten = 0
    for number in range(triggers):
        write_deltalake(str(path), rows(1_000 + number % 300, number), mode="append")
        if number % every == every - 1:
            rewritten += compact_by_plan(spark, path, policy, waited_seconds=3_600)
    # A day later.
    rewritten += compact_by_plan(spark, path, policy, waited_seconds=86_400)
    log = DeltaLog(path)
    ingested = sum(commit.bytes or 0 for commit in log.commits() if commit.operation == "WRITE") or sum(
        action["add"]["size"]
        for version in log.versions
        if log.commit(version).operation == "WRITE"
        for action in log.actions(version, b'"add"')
        if "add" in action
    )
    live = sum(file.bytes for file in log.state.live)
    ideal = -(-live // (8 * MB))
    print(
        f"{triggers:,} appends of {ingested / triggers / 1000:.0f} kB, a window every {every}: "
        f"{len(log.state.live)} files, {len(log.state.live) / ideal:.2f} of the fewest possible ({ideal}); "
        f"{rewritten / ingested:.2f} bytes written again for each byte that came"
    )


def print_duration(work: Callable[[], None]) -> None:
    begin = time.monotonic()
    work()
    print(f"  ({time.monotonic() - begin:.0f} s)", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.windows", description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    parser.add_argument("--only", action="append", choices=["triggers", "compaction", "pauses"], help="a part of it")
    arguments = parser.parse_args()
    small, only = arguments.small, arguments.only
    with session(CATALOG) as spark:
        parts = {
            "triggers": lambda: thousand_triggers(spark, 100 if small else 1_000, 25),
            "compaction": lambda: compaction(
                spark, 30 if small else 300, 1_000 if small else 10_000, 1 if small else 3
            ),
            "pauses": lambda: pauses(spark, 2 if small else 20),
        }
        for part in only or parts:
            print_duration(parts[part])


if __name__ == "__main__":
    report(main)
