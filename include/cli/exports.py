"""The commands for other systems: Prometheus, Kafka's tools, OpenLineage and the catalog that other engines ask."""

from dataclasses import asdict
from typing import Annotated

import typer
from prometheus_client import generate_latest, start_http_server

from include import catalog
from include.cli.output import Json, show
from include.errors import SetupError
from include.monitoring import consumer_groups, lineage_loader, registration
from include.monitoring.prometheus import registry
from include.monitoring.registration import Registration
from include.settings import settings


def serve_metrics(
    port: Annotated[int | None, typer.Option(metavar="N", help="Serve them on this port of 127.0.0.1.")] = None,
) -> None:
    """Print the metrics once, in the text format of Prometheus, or serve them on a port."""
    if port is None:
        print(generate_latest(registry(catalog.load())).decode(), end="")
        return
    try:
        _, thread = start_http_server(port, "127.0.0.1", registry(catalog.load()))
    except (OSError, OverflowError) as error:
        raise SetupError(f"--port is {port}, where nobody can listen ({error}): name another") from error
    print(f"metrics at http://127.0.0.1:{port}/metrics", flush=True)
    thread.join()


def mirror_offsets(as_json: Json = False) -> None:
    """Show Kafka's tools how far flows are, as consumer groups sluice.FLOW."""
    outcomes = consumer_groups.mirror(catalog.load())
    document = {flow: asdict(mirrored) for flow, mirrored in outcomes.items()}
    lines = (f"{mirrored.group}: {mirrored.refusal or 'mirrored'}" for mirrored in outcomes.values())
    show(as_json, document, lines, "nothing to mirror: no flow has read from Kafka yet")


def send_lineage(
    url: Annotated[
        str | None, typer.Option(help="Of the receiver; else OPENLINEAGE_URL, else the file lineage/events.ndjson.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell OpenLineage of each flow's newest batch, once."""
    outcomes = lineage_loader.emit_events(catalog.load(), url)
    show(as_json, outcomes, (f"{flow}: {batch}" for flow, batch in outcomes.items()), "nothing new to tell")


def show_catalog(
    now: Annotated[
        bool, typer.Option("--register", help="Also create and correct entries, as each minute does.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show the names of tables in the catalog of SLUICE_CATALOG, and what differs there."""
    if settings().catalog_prefix is None and not now:
        show(as_json, {}, (), "no table is registered anywhere: see SLUICE_CATALOG")
        return
    tables = catalog.load()
    found = registration.register(tables) if now else registration.survey(tables)
    document = {table: asdict(entry) for table, entry in found.items()}
    lines = (_line(table, entry) for table, entry in found.items())
    show(as_json, document, lines, "nothing to register: no layer of SLUICE_CATALOG_LAYERS has a table")


def _line(table: str, entry: Registration) -> str:
    details = entry.reason or entry.done
    return f"{table} as {entry.name}: {entry.state}{f': {details}' if details else ''}"
