"""What one more idle flow costs its driver: python -m benchmarks.idle_flows [--small], with a broker of its own.

Measures memory and CPU of a driver with one flow and with 32 flows, whose topics hold one record that has been read.
Compares the difference per flow with a separate driver for each flow.
"""

import argparse
import time
from pathlib import Path

from benchmarks.jobs.sluice import copies
from benchmarks.support import readings
from benchmarks.support.engine import Engine, broker, homes
from benchmarks.support.measure import OURS, Figure, Row, Spent, record, spend
from include.errors import report
from include.local.broker import create_topic

FEW = 1
APART = "a driver each"


def idle(folder: Path, kafka: str, flows: int, arguments: argparse.Namespace) -> tuple[Spent, float]:
    """CPU of a driver with idle flows, and its memory at the end in bytes."""
    topic = f"idle-{flows}"
    for number in range(flows):
        create_topic(kafka, f"{topic}-{number}", 1)
        readings.send(kafka, f"{topic}-{number}", 0, 1)
    engine = Engine(OURS, folder / topic, "sluice.py", kafka)
    try:
        engine.start("bronze", "--copies", str(flows), "--topic", topic)
        for table in copies(flows, topic):
            engine.wait(table.flow, 1, timeout_seconds=600)
        time.sleep(arguments.settle)
        spent = spend(engine.cpu_seconds, lambda: time.sleep(arguments.seconds))
        return spent, engine.bytes_used()
    finally:
        engine.end()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.idle_flows", description=__doc__.splitlines()[0])
    parser.add_argument("--flows", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=120, help="that count, default 120")
    parser.add_argument("--settle", type=float, default=90, help="seconds before that, default 90")
    parser.add_argument("--small", action="store_true", help="to see that it works; its figures say nothing")
    arguments = parser.parse_args()
    if arguments.small:
        arguments.flows, arguments.seconds, arguments.settle = 3, 10, 5
    with homes() as folder, broker(folder) as kafka:
        (single, single_bytes), (many, many_bytes) = (
            idle(folder, kafka, flows, arguments) for flows in (FEW, arguments.flows)
        )
    added_flows, is_flagged = arguments.flows - FEW, not (single.is_quiet and many.is_quiet)
    title = f"one more idle flow, {FEW} to {arguments.flows}"
    shares = [100 * spent.cpu_seconds / spent.wall_seconds for spent in (single, many)]
    cpu = {OURS: Figure(((shares[1] - shares[0]) / added_flows,), is_flagged), APART: Figure((shares[0],), is_flagged)}
    memory = {OURS: Figure(((many_bytes - single_bytes) / added_flows / 1e6,)), APART: Figure((single_bytes / 1e6,))}
    record(Row(title, "CPU, % of a core", cpu), Row(f"{title}: memory", "MB", memory))


if __name__ == "__main__":
    report(main)
