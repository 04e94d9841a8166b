"""The command `graph`: who reads whom, and how far behind."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from include import catalog
from include.monitoring.graph import build_graph


def add(commands: Any) -> None:
    """Adds the command `graph`."""
    parser = commands.add_parser("graph", help="who reads whom, and how far behind")
    parser.add_argument("--json", action="store_true", help="for programs: nodes and edges")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> None:
    graph = build_graph(catalog.load())
    if not arguments.json:
        print(graph.text())
        return
    nodes, edges = [asdict(node) for node in graph.nodes], [edge.as_json() for edge in graph.edges]
    print(json.dumps({"nodes": nodes, "edges": edges}, indent=2))
