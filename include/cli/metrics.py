"""The command `metrics`: prints metrics for Prometheus, or serves them."""

import argparse
from typing import Any

from prometheus_client import generate_latest, start_http_server

from include import catalog
from include.errors import SetupError
from include.monitoring.prometheus import registry


def add(commands: Any) -> None:
    """Adds the command `metrics`."""
    parser = commands.add_parser("metrics", help="for Prometheus: once, or on a port of 127.0.0.1")
    parser.add_argument("--port", type=int, metavar="N", help="serve them there instead of printing them once")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    if arguments.port is None:
        print(generate_latest(registry(catalog.load())).decode(), end="")
        return
    try:
        _, thread = start_http_server(arguments.port, "127.0.0.1", registry(catalog.load()))
    except (OSError, OverflowError) as error:
        raise SetupError(f"--port is {arguments.port}, where nobody can listen ({error}): name another") from error
    print(f"metrics at http://127.0.0.1:{arguments.port}/metrics", flush=True)
    thread.join()
