"""What a page of the console costs: python -m benchmarks.console, in a home of its own, without Airflow.

Stores a synthetic snapshot with an hour of history, and asks for the board of 50 and of 300 flows and for the graph of
300 tables: milliseconds until the answer is complete (95th percentile), kilobytes as sent, and the answer 304.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from fastapi.testclient import TestClient

from include.console import app
from include.console.viewer import Viewer
from include.control.store import database
from include.errors import report
from tests.support import console

REQUESTS = 100
HISTORY_MINUTES = 58
PAGES = ((50, "/"), (300, "/"), (300, "/graph"))


def main() -> None:
    for flows, path in PAGES:
        with tempfile.TemporaryDirectory() as directory:
            print(_measured(flows, path, Path(directory)))


def _measured(flows: int, path: str, directory: Path) -> str:
    engine = database.connect(f"sqlite:///{directory / 'control.db'}")
    console.store(engine, console.synthetic(flows, console.now(engine)), HISTORY_MINUTES)
    client = TestClient(app.create(lambda: Viewer("bench", True), lambda: engine))
    answer = client.get(path)
    known = {"If-None-Match": answer.headers["etag"]}
    whole_ms = _p95_ms(lambda: client.get(path).raise_for_status())
    unchanged_ms = _p95_ms(lambda: client.get(path, headers=known))
    sent_kb = answer.num_bytes_downloaded / 1000
    engine.dispose()
    return (
        f"{'board' if path == '/' else 'graph'} of {flows}: {whole_ms:,.0f} ms p95, {sent_kb:,.1f} kB gzipped; "
        f"304 in {unchanged_ms:,.1f} ms p95"
    )


def _p95_ms(ask: Callable[[], object]) -> float:
    taken_ms = []
    for _ in range(REQUESTS):
        began_at = time.perf_counter()
        ask()
        taken_ms.append((time.perf_counter() - began_at) * 1000)
    return statistics.quantiles(taken_ms, n=20)[-1]


if __name__ == "__main__":
    report(main)
