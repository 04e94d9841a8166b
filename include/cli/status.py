"""The commands about flows: state and lag, who reads whom, and what batches took."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from include import catalog
from include.cli.output import FlowName, Json, Limit, show
from include.control.supervision import supervisor_presence
from include.flows.lag import Lag
from include.monitoring import account, query_progress
from include.monitoring.account import Account
from include.monitoring.graph import Edge, Graph, Node, build_graph
from include.monitoring.query_progress import PHASES_MS
from include.monitoring.status import IN_WINDOWS, VIEW, FlowStatus, statuses
from include.settings import settings
from include.text_columns import duration, in_columns


def show_status(
    troubles: Annotated[
        bool, typer.Option("--troubles", help="Only what is wrong; JSON has the headline, too.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show what is wrong, then every flow: wanted and seen state, lag, freshness, trend."""
    tables = catalog.load()
    taken = account.take(tables)
    if troubles:
        show(as_json, taken.as_json(), taken.lines())
        return
    all_statuses = statuses(tables)
    # People see it in the account. JSON on stdout must stay parseable.
    absence = supervisor_presence.absence(settings().control_url) if as_json else None
    if not as_json:
        print(*taken.lines(), sep="\n", end="\n\n")
    for notice in filter(None, (absence, *tables.notices)):
        print(notice, end="\n\n", file=sys.stderr if as_json else sys.stdout)
    document = [_with_troubles(status, taken) for status in all_statuses]
    show(as_json, document, [text(all_statuses)])


def _with_troubles(status: FlowStatus, taken: Account) -> dict[str, Any]:
    name = status.table if status.state == VIEW else status.flow
    return {**status.as_json(), "troubles": [trouble.as_json() for trouble in taken.of_flow(name)]}


def text(flow_statuses: Iterable[FlowStatus]) -> str:
    """Formats the statuses for people: one line for each flow, and below them what is wrong."""
    lines = [("flow", "state", "behind by", "oldest unread", "promise", "trend")]
    notes = []
    for status in flow_statuses:
        state = status.state or "unknown"
        wanted = "" if status.wanted in (None, "running") else f" (wanted {status.wanted})"
        age = "?" if status.lag.seconds is None else duration(status.lag.seconds) if status.lag.seconds else ""
        lines.append(
            (
                status.flow,
                f"{state}, {status.refresh}" if status.refresh else state + wanted,
                _behind(status.lag),
                age,
                status.freshness.words,
                status.trend.words,
            )
        )
        notes += _notes(status)
        if status.recomputed:
            notes.append(f"{status.table}: its last refresh recomputed all rows: {status.recomputed}")
    return "\n".join([in_columns(lines, left_columns=6), *dict.fromkeys(notes)])


def _behind(lag: Lag) -> str:
    if lag.unknown or not lag.rows:
        return lag.short_words
    return f"{lag.words}, {'over ' if lag.is_more else ''}{lag.rows:,} rows, {(lag.bytes or 0) / 1e6:,.1f} MB"


def _notes(status: FlowStatus) -> list[str]:
    notes = list(status.stale)
    if status.state is None:
        notes.append(status.reason)
    elif status.state == VIEW and status.reason:
        # A view with several sources gives this note once.
        notes.append(f"{status.table}: {status.reason}")
    elif status.state not in ("HEALTHY", "STOPPED", IN_WINDOWS, VIEW):
        notes.append(f"{status.flow}: {status.state}: {status.reason}")
    if status.lag.unknown:
        notes.append(status.lag.reason)
    if status.longer_interval_seconds and status.state == "HEALTHY":
        seconds = status.longer_interval_seconds
        notes.append(f"{status.flow}: its driver is busy, so that its batches begin every {seconds:.1f} s")
    notes += [
        f"{status.flow}: {rows:,} rows of its newest batches have no partner in {lookup}"
        for lookup, rows in status.no_partner.items()
    ]
    if status.executors:
        # The flows of a driver give this note once.
        notes.append(status.executors.words)
    if status.in_flight is not None:
        notes.append(f"{status.flow}: batch {status.in_flight} is planned and not committed: a restart replays it")
    clock, hours = status.lag.expires, status.lag.hours_until_loss
    if clock and clock.is_soon and hours is not None:
        where = f"topic '{clock.topic}', partition {clock.partition}"
        notes.append(f"{status.flow}: Kafka deletes unread records of {where} in {hours:,.1f} h")
    return notes


def show_graph(as_json: Json = False) -> None:
    """Show who reads whom, and how far behind."""
    graph = build_graph(catalog.load())
    document = {"nodes": [asdict(node) for node in graph.nodes], "edges": [edge.as_json() for edge in graph.edges]}
    show(as_json, document, graph_lines(graph))


def graph_lines(graph: Graph) -> Iterator[str]:
    """Describes each node in a line, indented below each node that it reads."""
    readers = {edge.target for edge in graph.edges}
    for node in graph.nodes:
        if node.name not in readers:
            yield from _branch(graph, node, None, 0)


def _branch(graph: Graph, node: Node, edge: Edge | None, depth: int) -> Iterator[str]:
    yield "  " * depth + _node_line(node, edge)
    for outgoing in graph.edges:
        if outgoing.source == node.name:
            below = next(target for target in graph.nodes if target.name == outgoing.target)
            yield from _branch(graph, below, outgoing, depth + 1)


def _node_line(node: Node, edge: Edge | None) -> str:
    parts = [node.name]
    if node.kind == "step":
        parts.append("(a step, not stored)")
    if node.kind == "table":
        parts.append("not stored yet" if node.rows is None else f"{node.rows:,} rows")
    if node.quarantined:
        parts.append(f"{node.quarantined:,} quarantined")
    if node.stale:
        parts.append("STALE: sluice jobs says why")
    if edge and edge.lag:
        lag = edge.lag
        behind = "up to date" if lag.is_up_to_date else f"behind by {lag.words}" if not lag.unknown else lag.words
        parts.append(behind if edge.flow == edge.target else f"{edge.flow} {behind}")
    return f"{parts[0]}  {', '.join(parts[1:])}".rstrip()


def show_progress(flow: FlowName, limit: Limit = 20, as_json: Json = False) -> None:
    """Show what the newest batches of a flow took, also idle and failed ones."""
    newest = query_progress.newest(flow, limit)
    if not newest:
        # Raises for an unknown flow. A flow that is no longer declared may still have progress.
        catalog.load().flow(flow)
    documents = [_progress_as_json(row) for row in newest]
    show(as_json, documents, map(_progress_line, newest), f"no progress of {flow} is recorded yet")


def _progress_as_json(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "at": row["at"].isoformat(), "source_metrics": dict(row["source_metrics"] or {})}


def _progress_line(row: dict[str, Any]) -> str:
    occurred_at: datetime = row["at"]
    batch = "" if row["batch"] is None else f"/{row['batch']}"
    head = f"{occurred_at:%Y-%m-%d %H:%M:%S}Z  {row['generation']}{batch}  {row['event']}"
    if row["event"] in (query_progress.FAILED, query_progress.ENDED):
        return f"{head}  {(row['error'] or '').partition(chr(10))[0]}".rstrip()
    durations = ", ".join(
        f"{name.removesuffix('_ms').replace('_', ' ')} {row[name]:,}" for name in PHASES_MS if row[name]
    )
    rates = (row["input_rows_per_second"], row["processed_rows_per_second"])
    per_second = " in, ".join("?" if rate is None else f"{rate:,.1f}" for rate in rates)
    rows = "" if row["event"] == query_progress.IDLE else f"  {row['input_rows']:,} rows, {per_second} out a second"
    return f"{head}{rows}  ms: {durations}"


def gather(as_json: Json = False) -> None:
    """Append what drivers wrote down to ledger.query_progress, which they do once a minute by themselves."""
    gathered = 0
    while row_count := query_progress.gather():
        gathered += row_count
        if not as_json:
            print(f"{row_count:,} rows came into {query_progress.TABLE}")
    waiting = sum(query_progress.size_of(segment) for segment in query_progress.segments())
    held = f"{waiting / 1e6:,.1f} MB are in the hands of drivers that still write them"
    lines = ["nothing done, another process gathers at this moment" if row_count is None else held]
    show(as_json, {"rows": gathered, "is_done": row_count is not None, "waiting_bytes": waiting}, lines)
