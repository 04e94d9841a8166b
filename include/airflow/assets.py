"""Each table is an Airflow asset, `sluice://<layer>/<name>`. A task emits an event for each table with new rows.

Airflow keeps an event only if a DAG names the asset: a table for which no DAG waits costs Airflow nothing.
"""

from collections.abc import Iterable
from typing import Any

from airflow.sdk import Asset, Context

from include import catalog, logs
from include.airflow.run import Run
from include.control.store import database
from include.delta.table_logs import TableLogs
from include.errors import SluiceError
from include.monitoring import new_rows
from include.settings import settings


def asset(table: str) -> Asset:
    """The asset of a table, for the `schedule` of a DAG. Raises UsageError if no file declares the table."""
    return Asset(uri(catalog.load().table(table).name))


def uri(table: str) -> str:
    """The name and the URI of the table's asset."""
    return f"sluice://{table.replace('.', '/', 1)}"


def announce(
    context: Context, tables: Iterable[str], at_least_seconds: float = 0.0, table_logs: TableLogs | None = None
) -> None:
    """Let the running task emit an event for each of these tables that has new rows, if it succeeds.

    at_least_seconds, table_logs: as for `new_rows.find`. Raises nothing: what is missed, the next minute announces.
    """
    # An AssetAlias would make every table an asset that some DAG names, for good.
    task: Any = context["task"]
    try:
        found = new_rows.find(database.connect(settings().control_url), tables, at_least_seconds, table_logs)
    except SluiceError as error:
        logs.warning(f"no asset gets an event for now: {error}")
        return
    for table in found:
        outlet = Asset(uri(table.table))
        task.outlets = [*task.outlets, outlet]
        context["outlet_events"][outlet].extra = table.extra()


def announce_of_run(context: Context, _result: Any) -> None:
    """For `post_execute` of a job: announces the table that its run is for."""
    announce(context, [Run.of(context).table])


def record(context: Context) -> None:
    """For `on_success_callback`: Airflow has taken the events, so that no later task emits them again."""
    events, outlets = context["outlet_events"], getattr(context["task"], "outlets", [])
    extras: list[Any] = [events[outlet].extra for outlet in outlets if isinstance(outlet, Asset)]
    versions = {str(extra["table"]): int(extra["version"]) for extra in extras if {"table", "version"} <= extra.keys()}
    if versions:
        new_rows.record(database.connect(settings().control_url), versions)
