"""What a page of the console costs: python -m benchmarks.console, in a home of its own, without Airflow.

Stores a synthetic snapshot with an hour of history, and asks for the board of 50 and of 300 flows and for the graph of
300 tables: milliseconds until the answer is complete (95th percentile), kilobytes as sent, and the answer 304. Then ten
clients ask a server for the board of 50 flows as often as an open page does, while a supervisor stores a snapshot each
minute: the share of a core that the server takes.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
from fastapi.testclient import TestClient

from include.console import app
from include.console.__main__ import HOST, PORT
from include.console.viewer import Viewer
from include.control.store import database
from include.errors import report
from include.monitoring import snapshot
from tests.support import console

REQUESTS = 100
HISTORY_MINUTES = 58
PAGES = ((50, "/"), (300, "/"), (300, "/graph"))
# As EVERY_MS in include/console/static/console.js.
BOARDS, POLL_SECONDS = 10, 4
SNAPSHOT_SECONDS, OPEN_SECONDS = 60, 180


def main() -> None:
    for flows, path in PAGES:
        with tempfile.TemporaryDirectory() as directory:
            print(_measured(flows, path, Path(directory)))
    with tempfile.TemporaryDirectory() as directory:
        print(_open_boards(50, f"sqlite:///{directory}/control.db"))


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


def _open_boards(flows: int, control_url: str) -> str:
    engine = database.connect(control_url)
    console.store(engine, console.synthetic(flows, console.now(engine)), HISTORY_MINUTES)
    environment = {**os.environ, "SLUICE_CONTROL_URL": control_url}
    server = subprocess.Popen([sys.executable, "-m", "include.console"], env=environment, stderr=subprocess.DEVNULL)
    try:
        with ThreadPoolExecutor(BOARDS) as pool:
            tags = list(pool.map(_poll, [None] * BOARDS))
            begun_seconds, answers = _cpu_seconds(server), 0
            for turn in range(OPEN_SECONDS // POLL_SECONDS):
                if turn and turn * POLL_SECONDS % SNAPSHOT_SECONDS == 0:
                    snapshot.store(engine, console.synthetic(flows, console.now(engine)))
                next_at = time.monotonic() + POLL_SECONDS
                before, tags = tags, list(pool.map(_poll, tags))
                answers += sum(tag != earlier for tag, earlier in zip(tags, before, strict=True))
                time.sleep(max(0.0, next_at - time.monotonic()))
            share = (_cpu_seconds(server) - begun_seconds) / OPEN_SECONDS
    finally:
        server.terminate()
        server.wait()
        engine.dispose()
    return f"{BOARDS} open boards of {flows}: {share:.1%} of a core, {answers} whole answers in {OPEN_SECONDS} s"


def _poll(tag: str | None) -> str:
    """Asks for the board as an open page does, and returns its tag. Waits for a server that has yet to start."""
    headers = {"If-None-Match": tag} if tag else {}
    transport = httpx.HTTPTransport(retries=10)
    with httpx.Client(transport=transport, trust_env=False) as client:
        return client.get(f"http://{HOST}:{PORT}/", headers=headers).headers["etag"]


def _cpu_seconds(server: "subprocess.Popen[bytes]") -> float:
    times = psutil.Process(server.pid).cpu_times()
    return float(times.user + times.system)


def _p95_ms(ask: Callable[[], object]) -> float:
    taken_ms = []
    for _ in range(REQUESTS):
        began_at = time.perf_counter()
        ask()
        taken_ms.append((time.perf_counter() - began_at) * 1000)
    return statistics.quantiles(taken_ms, n=20)[-1]


if __name__ == "__main__":
    report(main)
