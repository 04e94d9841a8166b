"""What a long log costs a batch: python -m benchmarks.log_length [--small], with a broker of its own.

Measures CPU seconds of a batch of a hundred rows, after a warm-up. The targets have 100 commits, 10,000 commits, and
5,000 commits with maintenance windows. The earlier commits have a file with a hundred rows each.
"""

import argparse
import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from benchmarks.jobs.sluice import TABLES
from benchmarks.small_batches import ROWS, Feed, warm_up
from benchmarks.support import readings
from benchmarks.support.engine import Engine, broker, homes
from benchmarks.support.measure import OURS, Row, cpu_figure, record, run_alternating
from include.errors import report

FEW = 100
# The number of commits between two windows.
COMMITS_PER_WINDOW = 500


def lengthen(feed: Feed, commits: int, rows: Callable[[int, int], pa.Table], is_maintained: bool) -> None:
    """Stop the flow, add commits to its target up to this number, and start the flow again."""
    feed.engine.end()
    folder = feed.engine.table(feed.flow)
    while (missing := commits - DeltaTable(str(folder)).version()) > 0:
        # Negative numbers are older than the first reading, so a batch finds none of these rows.
        append_commits(folder, rows(-missing * ROWS, ROWS), min(missing, COMMITS_PER_WINDOW))
        if is_maintained:
            maintain(feed)
    feed.begin()


def append_commits(folder: Path, rows: pa.Table, count: int) -> None:
    """Append these rows `count` times: a commit by delta-rs, and copies of it.

    A commit by delta-rs takes time in proportion to the files of the table, too long for 10,000 commits.
    """
    write_deltalake(str(folder), rows, mode="append", schema_mode="merge")
    first = DeltaTable(str(folder)).version()
    actions = [json.loads(line) for line in log_file(folder, first).read_text().splitlines()]
    commit = next(action for action in actions if "commitInfo" in action)
    add = next(action["add"] for action in actions if "add" in action)
    for version in range(first + 1, first + count):
        name = f"copy-{version}.parquet"
        shutil.copyfile(folder / add["path"], folder / name)
        lines = (json.dumps(action) for action in (commit, {"add": {**add, "path": name}}))
        log_file(folder, version).write_text("\n".join(lines))
    DeltaTable(str(folder)).create_checkpoint()


def log_file(folder: Path, version: int) -> Path:
    return folder / "_delta_log" / f"{version:020}.json"


def maintain(feed: Feed) -> None:
    feed.engine.run(TABLES_BY_FLOW[feed.flow], "--maintain")


TABLES_BY_FLOW = {table.flow: layer for layer, table in TABLES.items()}
TARGET_ROWS = {"bronze": readings.bronze_rows, "silver": readings.silver_rows}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.log_length", description=__doc__.splitlines()[0])
    parser.add_argument("--layer", choices=list(TARGET_ROWS), action="append", help="only this one")
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--maintained", type=int, default=5_000, help="commits of a table that has windows")
    parser.add_argument("--batches", type=int, default=20, help="of a block, default 20")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each, in turn, default 5")
    parser.add_argument("--warm", type=int, default=60, help="batches before the first block, default 60")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.commits, arguments.maintained, arguments.batches, arguments.rounds, arguments.warm = 300, 150, 2, 2, 2
    for layer in arguments.layer or TARGET_ROWS:
        record(layer_row(layer, arguments))


def layer_row(layer: str, arguments: argparse.Namespace) -> Row:
    long_name, maintained_name = f"{arguments.commits:,} commits", f"{arguments.maintained:,} commits and windows"
    sizes = {OURS: FEW, long_name: arguments.commits, maintained_name: arguments.maintained}
    with homes() as folder, broker(folder) as kafka:
        feeds = {
            name: Feed(Engine(name, folder / str(commits), "sluice.py", kafka), layer, kafka)
            for name, commits in sizes.items()
        }
        try:
            for name, feed in feeds.items():
                feed.begin()
                lengthen(feed, sizes[name], TARGET_ROWS[layer], is_maintained=name == maintained_name)
                warm_up(feed, arguments.warm)
            blocks = {name: partial(feed.spend, partial(feed.run, arguments.batches)) for name, feed in feeds.items()}
            spent = run_alternating(blocks, arguments.rounds)
        finally:
            for feed in feeds.values():
                feed.engine.end()
    cpu = {name: cpu_figure(blocks_spent, arguments.batches) for name, blocks_spent in spent.items()}
    return Row(f"{layer}: batch of {ROWS} rows, of a table with {FEW} commits", "CPU-s", cpu)


if __name__ == "__main__":
    report(main)
