"""What the DAGs `full_refresh.<table>` do before Spark starts: what it would do, and whether somebody approved it."""

from typing import Any

from airflow.sdk import Param
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException
from sqlalchemy import Engine

from include import catalog
from include.control import commands
from include.control.store import database
from include.errors import DeclarationError, UsageError
from include.orchestration.tasks import verdict
from include.recovery.backfills import rehearsal
from include.settings import settings
from include.validation import slices

ACTION = "full refresh"
FORM = {
    "reason": Param(type="string", minLength=1, description="for whoever approves it, and whoever reads the audit"),
    "alone": Param(False, type="boolean", description="leave the tables below as they are: they are STALE then"),
    "dry_run": Param(False, type="boolean", description="say what would be done, and do nothing"),
}


def plan(name: str, asked: dict[str, Any]) -> str:
    """What will be done, in Markdown.

    Raises AirflowFailException where the table cannot be refreshed, AirflowSkipException where nothing is to be done,
    and Unreachable.
    """
    tables = catalog.load()
    try:
        table = tables.as_its_file_says(name)
        range_ = slices.of(table, None, None, as_a_whole=True)
        if not settings().is_stored(name):
            raise UsageError(f"{name} is not stored yet: start its flow, and nothing is to be made")
        lines = list(rehearsal(table, tables, range_, asked["alone"]))
    except (UsageError, DeclarationError) as error:
        raise AirflowFailException(str(error)) from error
    print("\n".join(lines))
    if asked["dry_run"]:
        raise AirflowSkipException("it was only to say what would be done")
    return "\n".join(f"{'  ' * one.startswith('  ')}- {one.strip()}" for one in lines) + f"\n\nWhy: {asked['reason']}"


def arguments(
    name: str, asked: dict[str, Any], who: str | None, answer: dict[str, Any] | None, run: str, engine: Engine
) -> list[str]:
    """Of the job. who: asked for it. answer: of whoever was asked to approve it.

    Raises AirflowSkipException, so that nothing follows, where nobody did.
    """
    found = verdict(answer, who)
    result = f"is begun, {found.said}" if found.is_approved else f"nothing done, {found.said}"
    with database.transaction(engine) as connection:
        commands.record(connection, who or "unknown", ACTION, name, asked["reason"], result)
    if not found.is_approved:
        raise AirflowSkipException(f"{name}: {result}")
    return ["--table", name, "--full", *["--alone"] * asked["alone"], "--run", run]
