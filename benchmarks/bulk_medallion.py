"""Much from Kafka to gold: python -m benchmarks.bulk_medallion [--count N] [--small], with a broker of its own.

Measures CPU seconds of a million readings through bronze, silver and gold: Sluice with --once, three stock jobs in
sequence, and a run of Spark Declarative Pipelines. A run over a single record measures their start, which is
subtracted.
"""

import argparse
import shutil
from functools import partial
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.bulk_bronze import MUCH, fill, without_start
from benchmarks.jobs.sluice import TABLES
from benchmarks.support.engine import Engine, broker, homes
from benchmarks.support.measure import OURS, Row, Spent, cpu_figure, record, run_alternating, together
from include.errors import report

LAYERS = tuple(TABLES)
STOCK, PIPELINES = "stock, three jobs", "Spark Declarative Pipelines"
JOBS = {
    OURS: ("sluice.py", [LAYERS]),
    STOCK: ("stock.py", [(layer,) for layer in LAYERS]),
    PIPELINES: ("declarative_pipelines.py", [LAYERS]),
}


def gold_of(engine: Engine) -> Path:
    return engine.home / "lake" / "gold" if engine.name == PIPELINES else engine.table(TABLES["gold"].name)


def require_all(engine: Engine, count: int) -> None:
    """Assert the row count. Of a hundred records, one is implausible and one repeated; pipelines keep the latter."""
    rows = DeltaTable(str(gold_of(engine))).to_pyarrow_table(columns=["readings"])["readings"].to_pylist()
    left_out = (1 if engine.name == PIPELINES else 2) * (count // 100)
    assert sum(rows) == count - left_out, (engine.name, sum(rows))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bulk_medallion", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=2_000_000, help="records, a multiple of 100, default 2,000,000")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each, in turn, default 1")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.count = 10_000
    with homes() as folder, broker(folder) as kafka:
        fill(kafka, arguments.count, size=0)

        def run(name: str, topic: str) -> Spent:
            job, groups = JOBS[name]
            engine = Engine(name, folder / "home", job, kafka)
            spent = [engine.run(*layers, "--once", "--topic", topic) for layers in groups]
            if topic == MUCH:
                require_all(engine, arguments.count)
            shutil.rmtree(engine.home)
            return together(spent)

        blocks = run_alternating({name: partial(without_start, partial(run, name)) for name in JOBS}, arguments.rounds)
    cpu = {name: cpu_figure(spent, arguments.count / 1e6) for name, spent in blocks.items()}
    record(Row(f"Kafka to gold, {arguments.count:,} readings", "CPU-s per million", cpu))


if __name__ == "__main__":
    report(main)
