"""What a batch of a hundred rows costs: python -m benchmarks.small_batches [--root DIR] [--small], with a broker.

Measures CPU seconds of Python and JVM for bronze (from Kafka), silver (rules, deduplication) and gold (by minute):
Sluice, stock Spark and Delta, and with `--root` another checkout of Sluice. First the two minutes after the start of
a driver, with a batch every two seconds; then blocks of consecutive batches after a warm-up, in turn.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from deltalake import DeltaTable

from benchmarks.jobs.sluice import TABLES
from benchmarks.support import readings
from benchmarks.support.engine import Engine, broker, homes
from benchmarks.support.measure import OURS, Figure, Row, Spent, cpu_figure, record, run_alternating, spend
from include.errors import report
from include.local.broker import create_topic
from include.spec import Delta

ROWS = 100
COLD_SECONDS_APART = 2
WARM_SECONDS_MOST = 300
STOCK, BEFORE = "stock", "the other checkout"
SOURCE_ROWS = {"silver": readings.bronze_rows, "gold": readings.silver_rows}


class Feed:
    """Feeds the source of a layer of an engine, with a file or a hundred records per batch."""

    def __init__(self, engine: Engine, layer: str, kafka: str) -> None:
        self.engine, self.flow = engine, TABLES[layer].flow
        self._layer, self._kafka, self._sent = layer, kafka, 0
        self._topic = f"{layer}-{engine.home.name}"
        if layer == "bronze":
            create_topic(kafka, self._topic, 3)
        else:
            source = TABLES[layer].source
            assert isinstance(source, Delta)
            self._table = engine.table(source.table)

    def begin(self) -> None:
        """Start the engine, and wait for its first batch."""
        self.feed(1)
        bounds = ("--rows", str(ROWS), "--files", "1", "--topic", self._topic)
        self.engine.start(self._layer, *bounds, *(() if self.engine.name == STOCK else ("--interval", "0.05")))
        self.wait()

    def feed(self, batches: int) -> None:
        if self._layer == "bronze":
            readings.send(self._kafka, self._topic, self._sent, batches * ROWS)
        else:
            readings.append(self._table, SOURCE_ROWS[self._layer], self._sent, ROWS, batches)
        self._sent += batches * ROWS

    def wait(self) -> None:
        end = self._sent if self._layer == "bronze" else DeltaTable(str(self._table)).version()
        self.engine.wait(self.flow, end)

    def run(self, batches: int) -> None:
        self.feed(batches)
        self.wait()

    def spend(self, work: Callable[[], object]) -> Spent:
        return spend(self.engine.cpu_seconds, work)


def cold(feed: Feed, seconds: float) -> Figure:
    """CPU seconds per batch, in the first `seconds` after the first batch."""
    began = time.monotonic()
    batches_before = feed.engine.batches(feed.flow)

    def trickle() -> None:
        while (remaining := began + seconds - time.monotonic()) > 0:
            next_at = time.monotonic() + min(remaining, COLD_SECONDS_APART)
            feed.run(1)
            time.sleep(max(0.0, next_at - time.monotonic()))

    spent = feed.spend(trickle)
    return cpu_figure([spent], feed.engine.batches(feed.flow) - batches_before)


def warm_up(feed: Feed, batches: int) -> None:
    deadline = time.monotonic() + WARM_SECONDS_MOST
    for _ in range(batches):
        if time.monotonic() < deadline:
            feed.run(1)


def layer_rows(layer: str, engines: list[Engine], kafka: str, arguments: argparse.Namespace) -> list[Row]:
    feeds = [Feed(engine, layer, kafka) for engine in engines]
    cold_figures: dict[str, Figure] = {}
    try:
        for feed in feeds:
            feed.begin()
            cold_figures[feed.engine.name] = cold(feed, arguments.cold)
            warm_up(feed, arguments.warm)
        blocks = {feed.engine.name: partial(feed.spend, partial(feed.run, arguments.batches)) for feed in feeds}
        spent = run_alternating(blocks, arguments.rounds)
    finally:
        for engine in engines:
            engine.end()
    warm_figures = {name: cpu_figure(blocks_spent, arguments.batches) for name, blocks_spent in spent.items()}
    return [
        Row(f"{layer}: batch of {ROWS} rows, warm", "CPU-s", warm_figures),
        Row(f"{layer}: batch of {ROWS} rows, first {arguments.cold:.0f} s", "CPU-s", cold_figures),
    ]


def engines_in(folder: Path, kafka: str, root: Path | None) -> list[Engine]:
    engines = [
        Engine(OURS, folder / "sluice", "sluice.py", kafka),
        Engine(STOCK, folder / "stock", "stock.py", kafka),
    ]
    return engines + ([Engine(BEFORE, folder / "before", "sluice.py", kafka, root.resolve())] if root else [])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_batches", description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="another checkout of Sluice to compare with")
    parser.add_argument("--layer", action="append", choices=list(TABLES), help="only this one; may be given again")
    parser.add_argument("--batches", type=int, default=20, help="of a block, default 20")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each, in turn, default 5")
    parser.add_argument("--warm", type=int, default=100, help="batches before the first block, default 100")
    parser.add_argument("--cold", type=float, default=120, help="seconds that count as cold, default 120")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.batches, arguments.rounds, arguments.warm, arguments.cold = 2, 2, 2, 8
    for layer in arguments.layer or TABLES:
        with homes() as folder, broker(folder) as kafka:
            record(*layer_rows(layer, engines_in(folder, kafka, arguments.root), kafka, arguments))


if __name__ == "__main__":
    report(main)
